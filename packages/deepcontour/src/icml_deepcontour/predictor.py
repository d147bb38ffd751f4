"""A trained predictor of eigenvalues with calibrated error quantiles, in scikit-learn's conventions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save_file

from icml_deepcontour.eno import ENO
from icml_deepcontour.training import EnoTraining, FitOptions

FORMAT = "icml-deepcontour-predictor"
LARGEST_HEADER = 10_000_000


class Predictor:
    """Eigenvalues of new instances of a family, from their fields.

    Args:
        options: schedule and sizes; a `FitOptions`, or its fields by name.
        seed: of everything random.
        device: where it trains and predicts.

    Attributes:
        model_: the trained `ENO`.
        q95_: error that is exceeded with 5 % probability, by conformal calibration, [M].
        history_: a row for each epoch.
        test_error_: median relative error on instances never seen, and the same over the local spacing.
        split_: who was used for what.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scale = rng.uniform(1, 2, size=40)
        >>> fields = np.ones((40, 1, 8, 8)) * scale[:, None, None, None]
        >>> model = Predictor(epochs=30, width=8, modes=2, layers=1)
        >>> model = model.fit(fields, scale[:, None] * np.arange(1, 6))
        >>> lam, q95 = model.predict(fields[:2])
        >>> lam.shape, q95.shape, bool((np.diff(lam) > 0).all())
        ((2, 5), (5,), True)
    """

    def __init__(
        self, options: FitOptions | None = None, *, seed: int = 0, device: str = "cpu", **named: Any
    ) -> None:
        known = {f.name for f in fields_of(FitOptions)}
        if unknown := sorted(set(named) - known):
            raise TypeError(f"unknown options {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        if options is not None and named:
            raise TypeError("give options or their fields by name, not both")
        self.options, self.seed, self.device = options or FitOptions(**named), seed, device

    def fit(
        self,
        fields: Float[np.ndarray, "n c H W"],
        eigenvalues: Float[np.ndarray, "n M"],
        *,
        groups: Any = None,
        checkpoint: Path | None = None,
        resume: bool = False,
        progress: Callable[[dict[str, float]], None] | None = None,
    ) -> Predictor:
        """Train on solved instances.

        Args:
            fields: coefficient fields, or features [n, f] such as `spectral_features` gives.
            eigenvalues: of each instance, rising.
            groups: [n]; instances that are near-duplicates share a group, and never stand on both sides of
                the
                split.
            checkpoint, resume, progress: see `EnoTraining.fit`.

        Raises:
            ValueError: shapes that do not fit, values that are not finite.
        """
        training = EnoTraining(
            fields, eigenvalues, self.options, groups=groups, seed=self.seed, device=self.device
        )
        self.history_ = training.fit(checkpoint=checkpoint, resume=resume, progress=progress)
        self.model_, self.split_ = training.model, training.split
        self.shape_ = tuple(np.shape(fields)[1:])
        y = np.asarray(eigenvalues, dtype=float)
        held = self.split_.calibration
        errors = np.abs(self._run(np.asarray(fields)[held]) - y[held])
        self.q95_ = conformal_quantile(errors, spacing_of(y), self.options.confidence)
        test = self.split_.test if len(self.split_.test) else held
        off = np.abs(self._run(np.asarray(fields)[test]) - y[test])
        scale = np.maximum(np.abs(y[test]), 1e-3 * np.abs(y[test]).max())
        self.test_error_ = {
            "relative": float(np.median(off / scale)),
            "spacing": float(np.median(off / spacing_of(y))),
        }
        return self

    def predict(
        self, fields: Float[np.ndarray, "B c H W"]
    ) -> tuple[Float[np.ndarray, "B M"], Float[np.ndarray, " M"]]:
        """Predicted eigenvalues, rising, and the calibrated quantile of their errors.

        Raises:
            ValueError: fields of another shape than those of the training.
            RuntimeError: not fitted.
        """
        if not hasattr(self, "model_"):
            raise RuntimeError("this Predictor has not been fitted; call fit, or load one")
        x = np.asarray(fields)
        if x.shape[1:] != self.shape_:
            raise ValueError(
                f"fields have shape {list(x.shape)}; this predictor was trained "
                f"on [B, {', '.join(map(str, self.shape_))}]"
            )
        if not np.isfinite(x).all():
            raise ValueError("fields have entries that are not finite")
        return self._run(x), self.q95_

    @torch.no_grad()
    def _run(self, fields: np.ndarray) -> np.ndarray:
        x = torch.as_tensor(np.asarray(fields, dtype=np.float32), device=self.device)
        parts = [self.model_(part) for part in x.split(64)]
        return torch.cat(parts).cpu().double().numpy() if parts else np.zeros((0, self.model_.n_eigenvalues))

    def save(self, path: str | Path) -> None:
        """Write one safetensors file."""
        if not hasattr(self, "model_"):
            raise RuntimeError("this Predictor has not been fitted; there is nothing to save")
        about = {
            "options": asdict(self.options),
            "seed": self.seed,
            "shape": self.shape_,
            "M": self.model_.n_eigenvalues,
            "test_error": self.test_error_,
        }
        tensors = {f"model.{k}": v.cpu().contiguous() for k, v in self.model_.state_dict().items()}
        tensors["q95"] = torch.from_numpy(self.q95_)
        save_file(tensors, str(path), {"format": FORMAT, "about": json.dumps(about)})

    @staticmethod
    def load(path: str | Path, *, device: str = "cpu") -> Predictor:
        """Read what `save` wrote. Nothing is unpickled.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no predictor.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no predictor {path}")
        try:
            with safe_open(path, framework="pt", device=device) as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
        except Exception as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from error
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{path} holds {metadata.get('format')!r}, not a predictor of icml-deepcontour")
        try:
            about = json.loads(metadata["about"])
            found = Predictor(FitOptions(**about["options"]), seed=int(about["seed"]), device=device)
            shape = tuple(int(s) for s in about["shape"])
            if len(shape) not in (1, 3) or int(about["M"]) > 100_000 or found.options.width > 4096:
                raise ValueError(f"sizes {shape}, M={about['M']}")
            o = found.options
            found.model_ = ENO(
                shape[0],
                int(about["M"]),
                width=o.width,
                modes=o.modes,
                layers=o.layers,
                features=len(shape) == 1,
            ).to(device)
            found.model_.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
            found.q95_, found.shape_ = tensors["q95"].cpu().double().numpy(), shape
            found.test_error_ = {k: float(v) for k, v in about["test_error"].items()}
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        found.model_.eval()
        return found


def spacing_of(eigenvalues: Float[np.ndarray, "n M"]) -> Float[np.ndarray, " M"]:
    """Mean distance of neighbours around every index, over a window of five."""
    M = eigenvalues.shape[1]
    if M == 1:
        return np.maximum(eigenvalues.std(axis=0), np.abs(eigenvalues).mean(axis=0) * 1e-3)
    mean = eigenvalues.mean(axis=0)
    reach = np.arange(M)
    low, high = np.maximum(reach - 2, 0), np.minimum(reach + 2, M - 1)
    return np.maximum((mean[high] - mean[low]) / (high - low), 1e-12 * np.abs(mean).max() + 1e-300)


def conformal_quantile(
    errors: Float[np.ndarray, "n M"], spacing: Float[np.ndarray, " M"], confidence: float
) -> Float[np.ndarray, " M"]:
    """The ceil((n + 1) c)-th smallest error, split conformal (V. Vovk et al., 2005), at every index.

    With too few calibration instances for that, errors over the local spacing are pooled with those of
    neighbouring indices until there are enough.
    """
    n, M = errors.shape
    relative = errors / spacing
    needed = int(np.ceil(1 / (1 - confidence)))
    reach = 0 if n >= needed else int(np.ceil((needed / n - 1) / 2))
    found = np.empty(M)
    for k in range(M):
        pool = np.sort(relative[:, max(0, k - reach) : k + reach + 1].ravel())
        at = min(int(np.ceil((len(pool) + 1) * confidence)), len(pool)) - 1
        found[k] = pool[at]
    return found * spacing
