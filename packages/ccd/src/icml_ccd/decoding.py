"""Decode masked diffusion language models by any rule: confidence, entropy, thresholds, CCD."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from icml_ccd.engine import Callback, Choice, Engine
from icml_ccd.logit_shift import measure_shift
from icml_ccd.model_calls import Model, ModelCalls
from icml_ccd.rules import make_rule
from icml_ccd.settings import from_model, make_schedule, response_region, token_ids
from icml_ccd.step_state import BEHIND, Rule
from icml_ccd.token_choice import check_temperature, row_generators, uniforms
from icml_ccd.trace import DecodeOutput

TIES = 0.5
"""Share of steps decided by ties above which a warning is given."""
OWN = {"ccd": ("d", "V"), "ccd_ds": ("d", "V", "eps"), "ccd_plus": ("d", "V")}
"""Which of the arguments d, V and eps a rule takes."""


def decode(
    model: Model,
    input_ids: Int[Tensor, "batch prompt"],
    gen_length: int | None = None,
    steps: int | None = None,
    rule: str | Rule = "ccd_ds",
    *,
    d: int = 3,
    V: int | None = None,
    eps: float = 0.3,
    budget: int | None = None,
    rule_options: Mapping[str, Any] | None = None,
    block_length: int | None = None,
    infill: bool = False,
    mask_id: int | None = None,
    eos_id: int | Sequence[int] | None = None,
    pad_id: int | None = None,
    stop_at_eos: bool = False,
    eos_guard: bool | None = None,
    temperature: float = 0.0,
    top_p: float | None = None,
    score_temperature: float | Literal["same"] = 1.0,
    num_return_sequences: int = 1,
    shift_logits: bool | Literal["auto"] = "auto",
    attention_mask: Int[Tensor, "batch prompt"] | None = None,
    cache: bool = False,
    generator: torch.Generator | int | None = None,
    callback: Callback | None = None,
) -> DecodeOutput:
    """Fill masked positions step by step, those first that a rule prefers.

    Scores are those of softmax(logits / score_temperature) in float32, whatever the model's precision;
    temperature and nucleus act on the chosen position's token only. Ties go to the larger probability, then
    to the left. The mask token is never written. At temperature 0 the result is a function of the prompt.

    Args:
        model: callable from ids [batch, length] to logits [batch, length, vocabulary], or to something with
            ``.logits``; see ``model_calls`` for what it may offer to save work.
        input_ids: prompts; padded on the left where their lengths differ.
        gen_length: N, tokens of the response.
        steps: forward passes over which a rule with a fixed budget spreads the tokens; N by default.
        rule: a name of ``RULES`` or an object with ``select``. ``"ccd_plus"`` has a dynamic budget unless
            ``steps`` or ``budget`` is given.
        d, V, eps: contexts, positions of each and bound in nats, for the rules of CCD. V is twice the tokens
            of a step by default, and at least 4: a buffer no wider than a step's tokens averages nothing, as
            all that it holds is unmasked at once.
        budget: tokens a step instead of ``steps``; for dynamic rules, how many at least where none passes.
        rule_options: further options of the rule, such as ``{"threshold": 0.8}``.
        block_length: decode block after block (semi-autoregressive), a divisor of N. With ``infill`` blocks
            are stretches of the whole sequence, the last of which may be shorter.
        infill: fill the masks in ``input_ids``, wherever they stand, and change nothing else.
        mask_id: the mask token; the model's own where it says one.
        eos_id: end token or tokens.
        pad_id: what fills up behind an end token; the end token by default.
        stop_at_eos: finish a row without further passes once an end token and all before it are decided.
        eos_guard: let end tokens wait until all earlier positions of their block are decided, and fill the
            tail of end tokens in one step; by default for ``"ccd_plus"`` where ``eos_id`` is given.
        temperature: of the tokens; 0 takes the most probable.
        top_p: nucleus of the tokens.
        score_temperature: of the scores; ``"same"`` sharpens them like the tokens, as published loops do.
        num_return_sequences: responses a prompt, each with its own random numbers.
        shift_logits: whether logits at a position are for the next token (Dream) or its own (LLaDA);
            ``"auto"`` takes the model's word (an attribute ``shift_logits``), else measures it on the prompt.
        attention_mask: 1 for real tokens, 0 for padding.
        cache: let the model's ``forward_cached`` keep keys and values between the steps of a block.
        generator: of all random numbers; an integer is a seed, None the seed 0.
        callback: called after every step as ``callback(step, state, selection)``.

    Returns:
        Sequences as ``generate`` gives them, the number of calls of the model, a trace, and a report.

    Raises:
        TypeError: ids, a model's output or arguments of a wrong kind.
        ValueError: what does not fit together, with the numbers; ``UnclearShift`` where the alignment of
            logits cannot be told.
        FloatingPointError: NaN logits, with the step.

    Example:
        >>> model = lambda ids: torch.zeros(*ids.shape, 5).index_fill(2, torch.tensor(3), 1.0)
        >>> out = decode(model, torch.tensor([[1, 2]]), 4, rule="ccd", mask_id=9, shift_logits=False)
        >>> out.sequences.tolist(), out.n_forward
        ([[1, 2, 3, 3, 3, 3]], 4)
    """
    return prepare(**locals()).decoded()


class Prepared:
    """A decoding that has been checked and not yet been run."""

    def __init__(self, engine: Engine, repeat: int) -> None:
        self.engine, self.repeat = engine, repeat

    def decoded(self) -> DecodeOutput:
        """Run it."""
        engine = self.engine
        began = time.perf_counter()
        sequences = engine.run()
        if sequences.is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        report, trace = _report(engine, seconds), engine.trace
        share = report["largest_tie_share"]
        if share > TIES and trace.settings["rule"] not in ("left_to_right", "random"):
            warnings.warn(
                f"equal scores left {share:.0%} of the steps of a row to the order of positions "
                f"(correlation of order and position {trace.order_correlation()[0]:.2f}); use "
                "score_temperature=1.0, or a rule that tells these positions apart",
                stacklevel=3,
            )
        if self.repeat > 1:
            sequences, trace = sequences.repeat_interleave(self.repeat, 0), trace.repeated(self.repeat)
        return DecodeOutput(sequences, engine.calls.forwards, trace, report, engine.logp)


def prepare(
    model: Model,
    input_ids: Tensor,
    gen_length: int | None,
    steps: int | None,
    rule: str | Rule,
    *,
    d: int,
    V: int | None,
    eps: float,
    budget: int | None,
    rule_options: Mapping[str, Any] | None,
    block_length: int | None,
    infill: bool,
    mask_id: int | None,
    eos_id: int | Sequence[int] | None,
    pad_id: int | None,
    stop_at_eos: bool,
    eos_guard: bool | None,
    temperature: float,
    top_p: float | None,
    score_temperature: float | Literal["same"],
    num_return_sequences: int,
    shift_logits: bool | Literal["auto"],
    attention_mask: Tensor | None,
    cache: bool,
    generator: torch.Generator | int | None,
    callback: Callback | None,
    forced: Tensor | None = None,
) -> Prepared:
    """Check what ``decode`` was given; its arguments are explained there."""
    mask_id = from_model(model, "mask_id", "mask_token_id") if mask_id is None else mask_id
    if mask_id is None:
        raise ValueError("there is no mask token id: neither mask_id was given nor does the model say one")
    check_temperature(temperature, top_p)
    region = response_region(input_ids, mask_id, gen_length, infill, attention_mask)
    longest = int(region.undecided.sum(1).max()) if region.undecided.numel() else 0
    chosen = _rule(rule, d, V, eps, steps, budget, rule_options, longest)
    schedule = make_schedule(
        region.undecided.shape[1],
        longest,
        steps=steps,
        budget=budget,
        block_length=block_length,
        dynamic=chosen.dynamic,
        rule=chosen.name,
        infill=infill,
    )
    ends = token_ids("eos_id", eos_id)
    if not ends and (stop_at_eos or eos_guard):
        ends = token_ids("eos_id", from_model(model, "eos_id", "eos_token_id"))
        if not ends:
            raise ValueError("stop_at_eos and eos_guard need eos_id, and the model says none")
    guard = bool(ends) and chosen.name == "ccd_plus" if eos_guard is None else eos_guard
    shift, measured = _shift(model, shift_logits, region.ids, mask_id, region.attention_mask)
    repeat, times = 1, num_return_sequences
    if times < 1:
        raise ValueError(f"num_return_sequences={times}; at least 1 is needed")
    if times > 1 and temperature == 0:
        warnings.warn(
            f"num_return_sequences={times} at temperature 0 gives one response so often; it is computed once",
            stacklevel=3,
        )
        repeat, times = times, 1
    if times > 1:
        mask = region.attention_mask
        region = type(region)(
            region.ids.repeat_interleave(times, 0),
            region.undecided.repeat_interleave(times, 0),
            region.start,
            None if mask is None else mask.repeat_interleave(times, 0),
        )
    same = temperature if temperature > 0 else 1.0
    own_scores = same if score_temperature == "same" else float(score_temperature)
    if not own_scores > 0:
        raise ValueError(f"score_temperature={score_temperature} must be positive, or 'same'")
    uniform, order_keys = uniforms(
        row_generators(generator, len(region.ids)), region.undecided.shape[1], region.ids.device
    )
    choice = Choice(temperature, top_p, own_scores, mask_id, ends, pad_id, stop_at_eos, guard)
    calls = ModelCalls(model, region.attention_mask, cache)
    settings = {
        "rule": chosen.name,
        **chosen.settings(),
        "gen_length": region.undecided.shape[1],
        "steps": steps,
        "budget": schedule.budget if schedule.steps is None else None,
        "steps_of_blocks": schedule.steps,
        "block_length": block_length,
        "infill": infill,
        "mask_id": mask_id,
        "eos_id": ends,
        "stop_at_eos": stop_at_eos,
        "eos_guard": guard,
        "temperature": temperature,
        "top_p": top_p,
        "score_temperature": own_scores,
        "shift_logits": bool(shift),
        "shift_measured": measured,
        "cache": cache,
    }
    engine = Engine(
        calls, region, schedule, chosen, choice, int(shift), uniform, order_keys, settings, forced, callback
    )
    return Prepared(engine, repeat)


def _rule(
    rule: str | Rule,
    d: int,
    V: int | None,
    eps: float,
    steps: int | None,
    budget: int | None,
    options: Mapping[str, Any] | None,
    longest: int,
) -> Rule:
    if not isinstance(rule, str):
        if options:
            raise ValueError(f"rule_options={dict(options)} belong to a rule given by its name")
        # A rule remembers a decoding; the given one stays as it is.
        return copy.deepcopy(rule)
    at_once = budget or math.ceil(longest / max(1, steps or longest))
    given = {"d": d, "V": max(4, 2 * at_once) if V is None else V, "eps": eps}
    own = {name: given[name] for name in OWN.get(rule, ())}
    if rule == "ccd_plus" and steps is None and budget is None:
        own["eps"] = eps
    made = make_rule(rule, **{**own, **(options or {})})
    width = (options or {}).get("V", V) if "V" in own else None
    if width is not None and not made.dynamic and d > 1 and width <= at_once < longest:
        warnings.warn(
            f"V={width} positions are kept and {at_once} unmasked a step: all that the rule {rule!r} keeps "
            "is unmasked at once and nothing is averaged; take a larger V, or leave it out",
            stacklevel=4,
        )
    return made


def _shift(
    model: Model, asked: Any, ids: Tensor, mask_id: int, attention_mask: Tensor | None
) -> tuple[bool, dict[str, Any] | None]:
    if asked not in (True, False, "auto"):
        raise ValueError(f"shift_logits={asked!r} is none of True, False and 'auto'")
    if asked != "auto":
        return bool(asked), None
    said = getattr(model, "shift_logits", None)
    if said is not None:
        return bool(said), None
    found = measure_shift(model, ids, mask_id, attention_mask=attention_mask)
    return found.shifted, found._asdict()


def _report(engine: Engine, seconds: float) -> dict[str, Any]:
    """What the decoding cost, and whether a cache paid."""
    calls, trace = engine.calls, engine.trace
    decided = (trace.step >= 0).sum().item()
    behind = (trace.reason == BEHIND).sum().item()
    written = decided - behind
    report: dict[str, Any] = {
        "n_forward": calls.forwards,
        "tokens": written,
        "tokens_behind_the_end": behind,
        "computed_tokens": calls.computed_tokens,
        "cached_tokens": calls.cached_tokens,
        "seconds": seconds,
        "tokens_per_second": written / seconds if seconds > 0 else 0.0,
        "largest_tie_share": max(trace.tie_share()),
    }
    if calls.use_cache:
        share = calls.cached_tokens / max(1, calls.cached_tokens + calls.computed_tokens)
        report["cache"] = f"{share:.0%} of the tokens came from the cache"
        if share < 0.1:
            report["cache"] += ": it does not pay here; blocks with more steps, or longer prompts, would gain"
    return report
