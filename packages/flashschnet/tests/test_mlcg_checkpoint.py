"""State dicts named as mlcg names them, against mlcg's formulas written out edge by edge."""

from __future__ import annotations

import math

import pytest
import torch
from icml_flashschnet import load_mlcg

PREFIX = "models.SchNet.model."
CUTOFF, TYPES, HIDDEN, FILTERS, BASIS, LAYERS, OUT = 6.0, 7, 10, 12, 9, 2, (8, 5)


def state(kind: str = "gauss", prefix: str = PREFIX) -> dict[str, torch.Tensor]:
    """Random weights under mlcg's names."""
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return 0.4 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = {"embedding_layer.weight": draw(TYPES, HIDDEN)}
    if kind == "gauss":
        offset = torch.linspace(0, CUTOFF, BASIS, dtype=torch.float64)
        weights |= {"rbf_layer.offset": offset, "rbf_layer.coeff": -0.5 / (offset[1] - offset[0]) ** 2}
    else:
        start = math.exp(-CUTOFF)
        weights["rbf_layer.means"] = torch.linspace(start, 1, BASIS, dtype=torch.float64)
        weights["rbf_layer.betas"] = torch.full(
            (BASIS,), (2 / BASIS * (1 - start)) ** -2, dtype=torch.float64
        )
    for n in range(LAYERS):
        block = f"interaction_blocks.{n}."
        weights |= {
            block + "conv.lin1.weight": draw(FILTERS, HIDDEN),
            block + "conv.lin2.weight": draw(HIDDEN, FILTERS),
            block + "conv.lin2.bias": draw(HIDDEN),
            block + "conv.filter_network.layers.0.weight": draw(FILTERS, BASIS),
            block + "conv.filter_network.layers.0.bias": draw(FILTERS),
            block + "conv.filter_network.layers.2.weight": draw(FILTERS, FILTERS),
            block + "lin.weight": draw(HIDDEN, HIDDEN),
            block + "lin.bias": draw(HIDDEN),
        }
    widths = (HIDDEN, *OUT)
    for n, (narrow, wide) in enumerate(zip(widths, OUT, strict=False)):
        weights[f"output_network.layers.{2 * n}.weight"] = draw(wide, narrow)
        weights[f"output_network.layers.{2 * n}.bias"] = draw(wide)
    weights[f"output_network.layers.{2 * len(OUT)}.weight"] = draw(1, OUT[-1])
    return {prefix + name: value for name, value in weights.items()}


def energy(weights: dict[str, torch.Tensor], kind: str, pos: torch.Tensor, types: torch.Tensor) -> float:
    """The energy by mlcg's formulas: a loop over blocks, receivers and senders."""
    w = {name.rpartition("model.")[2]: value for name, value in weights.items()}
    x = w["embedding_layer.weight"][types]

    def cut(r: float) -> float:
        return 0.5 * (math.cos(math.pi * r / CUTOFF) + 1) if r < CUTOFF else 0.0

    def expand(r: float) -> torch.Tensor:
        if kind == "gauss":
            return torch.exp(w["rbf_layer.coeff"] * (r - w["rbf_layer.offset"]) ** 2) * cut(r)
        z = math.exp(5.0 / CUTOFF * -r)
        return torch.exp(-w["rbf_layer.betas"] * (z - w["rbf_layer.means"]) ** 2) * cut(r)

    for n in range(LAYERS):
        b = {
            k.removeprefix(f"interaction_blocks.{n}."): v
            for k, v in w.items()
            if k.startswith(f"interaction_blocks.{n}.")
        }
        projected = x @ b["conv.lin1.weight"].T
        summed = torch.zeros(len(pos), FILTERS, dtype=torch.float64)
        for i in range(len(pos)):
            for j in range(len(pos)):
                r = float((pos[i] - pos[j]).norm())
                if i == j or r >= CUTOFF:
                    continue
                hidden = torch.tanh(
                    b["conv.filter_network.layers.0.weight"] @ expand(r)
                    + b["conv.filter_network.layers.0.bias"]
                )
                summed[i] += projected[j] * (b["conv.filter_network.layers.2.weight"] @ hidden) * cut(r)
        mixed = torch.tanh(summed @ b["conv.lin2.weight"].T + b["conv.lin2.bias"])
        x = x + mixed @ b["lin.weight"].T + b["lin.bias"]
    for n in range(len(OUT)):
        x = torch.tanh(
            x @ w[f"output_network.layers.{2 * n}.weight"].T + w[f"output_network.layers.{2 * n}.bias"]
        )
    return float((x @ w[f"output_network.layers.{2 * len(OUT)}.weight"].T).sum())


@pytest.mark.parametrize("kind", ["gauss", "expnorm"])
@pytest.mark.parametrize("prefix", ["", "model.", PREFIX])
def test_energies_are_those_of_mlcgs_formulas(kind, prefix, tmp_path):
    weights = state(kind, prefix)
    torch.save(weights, tmp_path / "model.pt")
    generator = torch.Generator().manual_seed(5)
    pos = 5 * torch.rand(8, 3, generator=generator, dtype=torch.float64)
    types = torch.randint(TYPES, (8,), generator=generator)
    model = load_mlcg(tmp_path / "model.pt")
    assert (model.config.rbf, model.config.r_cut, model.config.out) == (kind, CUTOFF, OUT)
    expected = energy(weights, kind, pos, types)
    assert float(model(pos, types).detach()) == pytest.approx(expected, rel=1e-10)


def test_single_precision_and_priors_beside_the_network():
    weights = {name: value.float() for name, value in state().items()} | {"models.bonds.k": torch.ones(3)}
    with pytest.warns(UserWarning, match="not models.bonds"):
        assert load_mlcg(weights).dtype == torch.float32


class Whole:
    """An object that a file would have to execute code for."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(f"{PREFIX}interaction_blocks.1.lin.bias"), "lacks .* interactions.1.update.bias"),
        (lambda s: s.pop(f"{PREFIX}embedding_layer.weight"), "expected one embedding_layer.weight"),
        (lambda s: s.pop(f"{PREFIX}rbf_layer.coeff"), "the radial basis holds \\['offset'\\]"),
        (lambda s: s.update({f"{PREFIX}attention.q": torch.ones(1)}), "does not have: attention.q"),
        (lambda s: s[f"{PREFIX}rbf_layer.offset"].add_(0.3), "it was trained, or has another lower end"),
        (
            lambda s: s.update({f"{PREFIX}interaction_blocks.0.lin.weight": torch.ones(3, 3)}),
            "interactions.0.update.weight has shape \\[3, 3\\]",
        ),
    ],
)
def test_another_network_is_refused_by_name(change, message):
    weights = state()
    change(weights)
    with pytest.raises(ValueError, match=message):
        load_mlcg(weights)


def test_whole_objects_are_not_unpickled(tmp_path):
    torch.save({"model": Whole()}, tmp_path / "whole.pt")
    with pytest.raises(ValueError, match="state_dict\\(\\), ...\\) and give that"):
        load_mlcg(tmp_path / "whole.pt")
    with pytest.raises(FileNotFoundError, match="no model file"):
        load_mlcg(tmp_path / "nowhere.pt")
