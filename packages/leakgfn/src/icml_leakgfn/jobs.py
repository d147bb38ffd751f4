"""What `icml run` runs."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run, resumable
from icml_core.run import RECORD, read_record

if TYPE_CHECKING:
    from icml_leakgfn.gfn import LeakGFN
    from icml_leakgfn.samples import Samples

CHECKPOINT = "checkpoint.safetensors"


@resumable(may_change=("steps", "samples"))
def molecules(
    *,
    run: Run,
    reward: str = "qed",
    blocks: str = "default105",
    max_blocks: int = 8,
    min_blocks: int = 2,
    truncation: Literal["leak", "cap"] = "leak",
    stop: Literal["capped", "closed"] = "capped",
    loss: Literal["leak", "fm", "tb", "db", "subtb"] = "leak",
    steps: int = 1000,
    batch: int = 8,
    samples: int = 1000,
    temperature: float = 1.0,
    shorter: int | None = None,
    minimum: float | None = None,
    norm: float | None = None,
    exponent: float | None = None,
    on_error: Literal["raise", "floor"] = "floor",
    hidden: int = 128,
    message_steps: int = 8,
    lr: float = 5e-4,
    alpha: float = 0.1,
    gamma: float = 10.0,
    reach_mask: bool = False,
    replay: float = 0.0,
    collapse: float | None = None,
    from_run: Path | None = None,
    reference: int = 0,
    picture: bool = True,
    checkpoint_every: int = 200,
) -> dict[str, Any]:
    """Learn to make molecules in proportion to a score, and draw some.

    Writes molecules.smi and molecules.csv (SMILES, score, log reward, log probability), top.png (the best
    molecules), training.png, metrics.json, metrics.jsonl and checkpoint.safetensors. Ctrl-C leaves a
    checkpoint, and --resume goes on from it.

    Args:
        reward: qed, sa, similarity:celecoxib, similarity:SMILES, or package.module:function of your own (a
            molecule, or SMILES where its parameter is annotated str; a list where it has the attribute
            vectorised).
        blocks: default105, or a file: a SMILES with * a line, or SMILES and attachment atoms.
        max_blocks: most blocks of a molecule.
        min_blocks: fewest blocks of a molecule.
        truncation: what a molecule with max_blocks blocks and open attachment points is worth: nothing
            (leak), or its own score (cap).
        stop: whether a molecule may be finished with open attachment points, which become hydrogen.
        loss: leak, or a baseline.
        steps: of training.
        batch: molecules a step.
        samples: molecules to draw at the end.
        temperature: below 1 draws the likelier more often.
        shorter: draw at a smaller max_blocks than was trained for; training then takes all sizes from here
            on.
        minimum: R = (max(score, minimum) / norm)^exponent; by default the official values of the task.
        norm: as above.
        exponent: as above.
        on_error: what to do where the score fails: stop (raise), or count the molecule as the least (floor).
        hidden: width of the network.
        message_steps: of the network.
        lr: learning rate of Adam.
        alpha: weight of the chemical flow.
        gamma: weight of the ends.
        reach_mask: forbid what cannot be finished within max_blocks, instead of learning it.
        replay: share of a batch that is taken from the best molecules so far.
        collapse: end training where fewer of the last 100 molecules than this are different.
        from_run: directory of an earlier run of this job, whose network is used as it is, with its reward,
            blocks and sizes; another one given beside it is refused. Nothing is trained.
        reference: molecules of MOSES to judge novelty by; 0 for none (needs the package molsets).
        picture: draw.
        checkpoint_every: steps between checkpoints.
    """
    from icml_leakgfn.molecules import MoleculeGenerator

    world: dict[str, Any] = {
        "reward": reward,
        "blocks": blocks,
        "max_blocks": max_blocks,
        "min_blocks": min_blocks,
        "truncation": truncation,
        "stop": stop,
        "minimum": minimum,
        "norm": norm,
        "exponent": exponent,
    }
    if from_run is not None:
        world = _world_of(from_run, world)
    score, *shaped = (world.pop(name) for name in ("reward", "minimum", "norm", "exponent"))
    generator = MoleculeGenerator(
        score,
        **world,
        shaping=_shaping(score, *shaped),
        on_error=on_error,
        loss=loss,
        budgets=None if shorter is None else (shorter, world["max_blocks"]),
        hidden=hidden,
        message_steps=message_steps,
        lr=lr,
        alpha=alpha,
        gamma=gamma,
        reach_mask=reach_mask,
        replay=replay,
        stop_on_collapse=collapse,
        seed=run.seed,
        device=run.device,
    )
    gfn = generator.gfn
    if samples < 0 or steps < 0:
        raise ValueError(f"--samples {samples} and --steps {steps} must not be negative")
    if from_run is not None:
        gfn = _earlier(from_run, gfn)
    elif run.resumed and run.file(CHECKPOINT).is_file():
        gfn.restore(run.file(CHECKPOINT))
    if from_run is None:
        _train(run, gfn, steps, batch, checkpoint_every)
    drawn = gfn.sample(samples, seed=run.seed + 1, temperature=temperature, max_length=shorter)
    _write_molecules(run, drawn)
    figures = _judge(run, drawn, reference)
    if picture:
        _draw(run, gfn, drawn)
    return {
        "reward": score,
        "steps": gfn.step,
        "samples": len(drawn),
        "failures": len(gfn.reward.failures),
        "collapsed": gfn.collapsed_,
        **figures,
    }


def sampler(
    *,
    run: Run,
    world: Literal["brackets", "grid"] = "brackets",
    max_length: int = 8,
    loss: Literal["leak", "fm", "tb", "db", "subtb"] = "leak",
    steps: int = 1000,
    batch: int = 32,
    hidden: int = 128,
    lr: float = 2e-3,
    cut_reward: float = 0.05,
    samples: int = 100,
) -> dict[str, Any]:
    """Learn a small world whose exact distribution is known, and compare.

    Writes objects.csv (object, exact and learnt probability), samples.csv, training.png and metrics.jsonl.

    Args:
        world: words of brackets, finished where balanced; or a grid on which a third of the cells are no
            ends.
        max_length: L_max.
        loss: leak, or a baseline.
        steps: of training.
        batch: trajectories a step.
        hidden: width of the network.
        lr: learning rate of Adam, which falls along a cosine.
        cut_reward: what the baselines take a cut-off object to be worth.
        samples: objects to draw.
    """
    from icml_leakgfn.exact import exact_flow, exact_policy_distribution
    from icml_leakgfn.gfn import LeakGFN
    from icml_leakgfn.metrics import MoleculeMetrics

    env, reward = _world(world, max_length)
    gfn = LeakGFN(
        env,
        reward,
        loss=loss,
        hidden=hidden,
        lr=lr,
        decay_steps=max(1, steps),
        cut_reward=cut_reward,
        seed=run.seed,
        device=run.device,
    )
    exact = exact_flow(env, reward)
    _train(run, gfn, steps, batch, 0)
    found = exact_policy_distribution(gfn, graph=exact.graph)
    rows = [
        (name, p, q)
        for name, p, q, good in zip(
            env.label(exact.graph.states),
            exact.probability.tolist(),
            found.finished.tolist(),
            exact.objects.tolist(),
            strict=True,
        )
        if good
    ]
    _write(run, "objects.csv", ("object", "exact", "learnt"), sorted(rows, key=lambda r: -r[1]))
    drawn = gfn.sample(samples, seed=run.seed + 1)
    listed = zip(drawn.smiles, drawn.log_reward.tolist(), drawn.done.tolist(), strict=True)
    _write(run, "samples.csv", ("object", "log_reward", "done"), listed)
    _draw(run, gfn, None)
    figures = MoleculeMetrics().evaluate(found, exact=exact)
    return {"objects": len(rows), "cut_states": exact.cut_states, "Z": exact.Z, **figures}


def exact_flow(
    *,
    run: Run,
    blocks: Path | None = None,
    reward: str = "qed",
    max_blocks: int = 4,
    min_blocks: int = 2,
    stop: Literal["capped", "closed"] = "capped",
    max_states: int = 200_000,
) -> dict[str, Any]:
    """Enumerate all molecules of a few blocks, and write the exact probability of each.

    Writes molecules.csv (SMILES, score, probability), the likeliest first.

    Args:
        blocks: a file of few blocks; by default eight common ones.
        reward: as for leakgfn.molecules.
        max_blocks: most blocks.
        min_blocks: fewest blocks.
        stop: whether a molecule may be finished with open attachment points.
        max_states: give up beyond.
    """
    import numpy as np

    from icml_leakgfn.exact import exact_flow as solve
    from icml_leakgfn.fragments import FragmentEnv
    from icml_leakgfn.scores import molecule_reward
    from icml_leakgfn.trainings import EIGHT_BLOCKS

    env = FragmentEnv(EIGHT_BLOCKS if blocks is None else blocks, max_blocks, min_blocks, stop=stop)
    scorer = molecule_reward(reward, on_error="floor")
    with run.progress("enumeration", total=1) as bar:
        flows = solve(env, scorer, max_states=max_states)
        bar.advance(1)
    at = np.flatnonzero(flows.objects)
    at = at[np.argsort(-flows.log_reward[at], kind="stable")]
    raw, _ = scorer.scores(env, flows.graph.states[at])
    names = env.label(flows.graph.states[at])
    rows = zip(names, raw.tolist(), flows.probability[at].tolist(), strict=True)
    _write(run, "molecules.csv", ("smiles", "score", "probability"), rows)
    return {
        "states": len(flows.graph),
        "edges": len(flows.graph.child),
        "objects": len(at),
        "different_smiles": len(set(names)),
        "cut_states": flows.cut_states,
        "log_Z": flows.log_Z,
    }


def _shaping(reward: str, minimum: float | None, norm: float | None, exponent: float | None) -> Any:
    """The official shaping of the task with what was given instead; None where nothing was."""
    from dataclasses import replace

    from icml_leakgfn.rewards import PRESETS, Shaping

    given = {"minimum": minimum, "norm": norm, "exponent": exponent}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    return replace(PRESETS.get(reward, Shaping(0.01, 1.0, 4.0)), **given)


def _world(world: str, max_length: int) -> tuple[Any, Callable[[Any], Any]]:
    from icml_leakgfn.worlds import BracketEnv, HyperGridEnv, HyperGridReward, bracket_reward

    if world == "brackets":
        return BracketEnv(max_length, horizon=max_length + 4), bracket_reward
    return HyperGridEnv(max_length=max_length), HyperGridReward()


def _world_of(directory: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The reward, blocks and sizes of an earlier run, by what it recorded.

    Raises:
        FileNotFoundError: it has no record.
        ValueError: something else was given now than it had.
    """
    record = read_record(directory)
    if record is None or not isinstance(record.get("options"), dict):
        raise FileNotFoundError(f"--from-run {directory}: there is no {RECORD} in it to say how it was run")
    parameters = signature(molecules).parameters
    found = {}
    for name, value in given.items():
        default = parameters[name].default
        found[name] = record["options"].get(name, default)
        if value not in (default, found[name]):
            flag = "--" + name.replace("_", "-")
            raise ValueError(
                f"{flag} {value} was given, but the run {directory} had {found[name]}; leave "
                "it out, or train anew"
            )
    return found


def _earlier(directory: Path, gfn: LeakGFN) -> LeakGFN:
    """The network of an earlier run."""
    file = directory / CHECKPOINT
    if not file.is_file():
        raise FileNotFoundError(f"--from-run {directory}: there is no {CHECKPOINT} in it")
    return type(gfn).load(file, gfn.env, gfn.reward, device=str(gfn.device))


def _train(run: Run, gfn: LeakGFN, steps: int, batch: int, every: int) -> None:
    """Train up to ``steps``, with progress, figures, and checkpoints also on Ctrl-C."""
    with run.progress("training", total=max(0, steps - gfn.step)) as bar:

        def report(step: int, figures: dict[str, float], _: Any) -> None:
            if step % 10 == 0 or step == steps:
                run.log(step, **{k: v for k, v in figures.items() if k != "step"})
            bar.advance(1, loss=figures["loss"], cut=figures.get("cut", 0.0))
            if every and step % every == 0:
                _save(run, gfn)

        try:
            gfn.fit(batch=batch, total=steps, callbacks=[report])
        finally:
            if every and gfn.step:
                _save(run, gfn)


def _save(run: Run, gfn: LeakGFN) -> None:
    with run.path(CHECKPOINT) as temporary:
        gfn.save(temporary)


def _write_molecules(run: Run, drawn: Samples) -> None:
    with run.path("molecules.smi") as temporary:
        names = [name for name, done in zip(drawn.smiles, drawn.done, strict=True) if done == 2]
        temporary.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    rows = zip(
        drawn.smiles,
        drawn.score_raw.tolist(),
        drawn.log_reward.tolist(),
        drawn.log_prob.tolist(),
        drawn.done.tolist(),
        strict=True,
    )
    _write(run, "molecules.csv", ("smiles", "score", "log_reward", "log_prob", "done"), rows)
    if drawn.failures:
        _write(run, "failures.csv", ("smiles", "message"), drawn.failures.items())


def _judge(run: Run, drawn: Samples, reference: int) -> dict[str, Any]:
    import json

    from icml_leakgfn.metrics import MoleculeMetrics
    from icml_leakgfn.reference_molecules import moses_smiles

    if not len(drawn):
        return {}
    known = moses_smiles("train", reference) if reference else None
    figures = MoleculeMetrics().evaluate(drawn, reference=known)
    with run.path("metrics.json") as temporary:
        temporary.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return dict(figures)


def _draw(run: Run, gfn: LeakGFN, drawn: Samples | None) -> None:
    from icml_leakgfn.pictures import top_molecules, training_curves

    if gfn.history_:
        with run.path("training.png") as temporary:
            training_curves(gfn.history_, temporary)
    if drawn is not None and (drawn.log_reward > -float("inf")).any():
        with run.path("top.png") as temporary:
            top_molecules(drawn.smiles, drawn.score_raw.tolist(), temporary)


def _write(run: Run, name: str, header: tuple[str, ...], rows: Any) -> None:
    import csv

    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
