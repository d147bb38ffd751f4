"""Activations of any decoder, read and changed at named sites.

| site | tensor [batch, tokens, d] |
|---|---|
| ``embedding`` | the tokens' embeddings |
| ``residual.i`` | the residual stream after block i, counted from 0; negative counts from the last |
| ``attention.i`` | what the attention of block i adds |
| ``mlp.i`` | what the MLP of block i adds |
| ``norm`` | after the final norm, which the head reads |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icml_lm.decoder import parts

Change = Float[Tensor, "..."] | Callable[[Float[Tensor, "batch tokens d"]], Float[Tensor, "batch tokens d"]]
"""A vector that is added, or a function of the activation that gives the new one."""

_SITE = re.compile(r"(embedding|norm)|(residual|attention|mlp)\.(-?\d+)")


class SiteError(KeyError):
    """A site that the model does not have.

    Attributes:
        name: what was asked for.
        available: the sites that there are.
    """

    def __init__(self, name: str, available: list[str]) -> None:
        super().__init__(name)
        self.name, self.available = name, available

    def __str__(self) -> str:
        shown = self.available if len(self.available) <= 12 else [*self.available[:11], "..."]
        return f"the model has no site {self.name!r}; there are {', '.join(shown)}"


class Reading(Mapping[str, Tensor]):
    """Activations by site: those of the latest forward pass, or of all passes in ``calls``."""

    def __init__(self, names: Iterable[str]) -> None:
        self.calls: dict[str, list[Tensor]] = {name: [] for name in names}

    def __getitem__(self, site: str) -> Tensor:
        if site not in self.calls:
            raise SiteError(site, list(self.calls))
        if not self.calls[site]:
            raise ValueError(
                f"nothing has been read at {site!r}: no forward pass has run inside the with block"
            )
        return self.calls[site][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def clear(self) -> None:
        """Forget all passes."""
        for held in self.calls.values():
            held.clear()


def sites(model: Any) -> list[str]:
    """Names of all sites of a model.

    Raises:
        TypeError: the model is no decoder whose parts are known.
    """
    blocks = range(len(parts(model).blocks))
    inner = [f"{kind}.{i}" for i in blocks for kind in ("attention", "mlp", "residual")]
    return ["embedding", *inner, "norm"]


@contextmanager
def read(
    model: Any, sites: str | Iterable[str], *, keep: str = "last", gradient: bool = False
) -> Iterator[Reading]:
    """Copy activations while the body runs.

    Args:
        model: TinyLM, a transformers causal model, or PEFT's wrapper around either.
        sites: one site or several.
        keep: ``"last"`` for the latest forward pass alone, ``"all"`` for every one (a generation runs one
            over the prompt and then one a token).
        gradient: whether to keep the activations in the graph instead of copying them out of it.

    Raises:
        SiteError: the model has no such site.
        ValueError: another ``keep``.
    """
    if keep not in ("last", "all"):
        raise ValueError(f"keep is 'last' or 'all', not {keep!r}")
    names = [sites] if isinstance(sites, str) else list(sites)
    reading = Reading(names)
    with ExitStack() as stack:
        for name in names:
            held = reading.calls[name]

            def hook(_: nn.Module, __: Any, output: Any, held: list[Tensor] = held) -> None:
                if keep == "last":
                    held.clear()
                activation = _tensor(output)
                held.append(activation if gradient else activation.detach().clone())

            stack.callback(_module(model, name).register_forward_hook(hook).remove)
        yield reading


@contextmanager
def add(model: Any, changes: Mapping[str, Change]) -> Iterator[None]:
    """Change activations while the body runs; gradients flow through the change.

    Args:
        model: as for ``read``.
        changes: by site, a vector to add (of the stream's width, or broadcastable to the activation), or a
            function from the activation to the new one.

    Raises:
        SiteError: the model has no such site.
        ValueError: while the body runs, a vector of another width, or a function that changes the shape.
    """
    with ExitStack() as stack:
        for name, change in changes.items():

            def hook(_: nn.Module, __: Any, output: Any, name: str = name, change: Change = change) -> Any:
                activation = _tensor(output)
                if isinstance(change, Tensor):
                    if change.dim() == 0 or change.shape[-1] != activation.shape[-1]:
                        raise ValueError(
                            f"a vector of shape {tuple(change.shape)} does not fit the activation "
                            f"{tuple(activation.shape)} at {name!r}"
                        )
                    new = activation + change.to(activation)
                else:
                    new = change(activation)
                if new.shape != activation.shape:
                    raise ValueError(
                        f"the change at {name!r} made {tuple(new.shape)} of {tuple(activation.shape)}"
                    )
                return (new, *output[1:]) if isinstance(output, tuple) else new

            stack.callback(_module(model, name).register_forward_hook(hook).remove)
        yield


def _module(model: Any, name: str) -> nn.Module:
    found = parts(model)
    match = _SITE.fullmatch(name)
    if match is None:
        raise SiteError(name, sites(model))
    if match[1]:
        return getattr(found, match[1])
    index = int(match[3])
    if not -len(found.blocks) <= index < len(found.blocks):
        raise SiteError(name, sites(model))
    group = {"residual": found.blocks, "attention": found.attentions, "mlp": found.mlps}[match[2]]
    return group[index]


def _tensor(output: Any) -> Tensor:
    first = output[0] if isinstance(output, tuple) else output
    if not isinstance(first, torch.Tensor):
        raise TypeError(
            f"a module returned {type(output).__name__}, not a tensor or a tuple that begins with one"
        )
    return first
