"""What `icml run` runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icml_core import Run, resumable


def decode(
    *,
    run: Run,
    model: str = "task:sudoku",
    prompts: Path | None = None,
    field: str = "prompt",
    checker: str | None = None,
    trust_remote_code: bool = False,
    chat: bool = True,
    rule: str = "ccd_ds",
    gen_length: int = 64,
    steps: int | None = None,
    budget: int | None = None,
    block_length: int | None = None,
    d: int = 3,
    v: int | None = None,
    eps: float = 0.3,
    temperature: float = 0.0,
    top_p: float | None = None,
    stop_at_eos: bool = True,
    infill: bool = False,
    limit: int = 8,
) -> dict[str, Any]:
    """Decode prompts with a masked diffusion model, and show in which order positions were filled, and why.

    Writes answers.jsonl, trace.csv (one line an accepted token), order.png of the first prompt, and
    report.json.

    Args:
        model: task:addition, task:sudoku or task:trips (small models, trained on first use); a folder of
            LLaDA, Dream or another model of transformers; or a folder that ccd.train_mdm wrote.
        prompts: JSONL with one prompt a line; of a task, its own puzzles by default.
        field: entry of a line that holds the prompt.
        checker: FILE.py:FUNCTION of (line, answer) that says whether an answer is right.
        trust_remote_code: whether code in the model's folder may run.
        chat: put prompts into the tokenizer's chat template, where it has one.
        rule: confidence, neg_entropy, margin, left_to_right, random, threshold, klass, ccd, ccd_ds,
            ccd_released, ccd_plus.
        gen_length: tokens of an answer.
        steps: forward passes, for rules with a fixed budget.
        budget: tokens a step instead.
        block_length: decode block after block.
        d: contexts that are averaged.
        v: positions kept of each; twice the tokens of a step and at least 4 by default.
        eps: bound of the averaged entropy, nats.
        temperature: of the tokens.
        top_p: nucleus of the tokens.
        stop_at_eos: finish once the end token and all before it are decided.
        infill: prompts hold the mask token where text is wanted, and nothing is appended.
        limit: most prompts.
    """
    from icml_ccd import decode_job

    options = {
        "rule": rule,
        "steps": steps,
        "budget": budget,
        "block_length": block_length,
        "d": d,
        "V": v,
        "eps": eps,
        "temperature": temperature,
        "top_p": top_p,
        "stop_at_eos": stop_at_eos,
        "generator": run.seed,
    }
    source = decode_job.Source(model, prompts, field, trust_remote_code, chat, limit)
    return decode_job.decode_prompts(run, source, gen_length, infill, checker, options)


@resumable(may_change=("checkpoint_every",))
def train_mdm(
    *,
    run: Run,
    data: Path | None = None,
    task: str = "addition",
    start: str = "new",
    length: int = 128,
    steps: int = 2000,
    batch: int = 64,
    lr: float = 3e-3,
    width: int = 64,
    layers: int = 2,
    optimizer: str = "adamw",
    checkpoint_every: int = 200,
) -> dict[str, Any]:
    """Train a masked diffusion model on a task or on text; Ctrl-C leaves a checkpoint for --resume.

    Writes model/ (weights and configuration), metrics.jsonl and loss.png.

    Args:
        data: text file, cut into windows; without it the task is trained.
        task: addition, sudoku or trips.
        start: new, or smollm2: SmolLM2-135M made bidirectional, for text.
        length: tokens of a window of text.
        steps: updates.
        batch: rows of an update.
        lr: peak learning rate; 1e-4 suits smollm2.
        width: of a new model.
        layers: of a new model.
        optimizer: of torch, or plugin.component.
        checkpoint_every: steps between checkpoints.
    """
    from icml_ccd import training_job

    return training_job.run_training(
        run,
        data=data,
        task=task,
        start=start,
        length=length,
        steps=steps,
        batch=batch,
        lr=lr,
        width=width,
        layers=layers,
        optimizer=optimizer,
        checkpoint_every=checkpoint_every,
    )


def bench(
    *, run: Run, tasks: tuple[str, ...] = ("addition", "sudoku", "trips"), n: int = 400, quick: bool = False
) -> dict[str, Any]:
    """Accuracy against forward passes of every rule on tasks with a checker.

    Trains the tasks' small models on first use. Writes bench.csv, differences.json (CCD over other rules,
    paired intervals) and a picture of the curves for each task.

    Args:
        tasks: of addition, sudoku and trips.
        n: puzzles a task.
        quick: few settings of each rule, and models trained for a second.
    """
    from icml_ccd import bench_job

    return bench_job.run_bench(run, list(tasks), n, quick)


def loglik(
    *,
    run: Run,
    model: str = "task:addition",
    prompts: Path | None = None,
    field: str = "prompt",
    answer_field: str = "answer",
    trust_remote_code: bool = False,
    n_mc: int = 128,
    limit: int = 32,
) -> dict[str, Any]:
    """Bounds of the log-likelihood of answers under a masked diffusion model, with standard errors.

    Writes loglik.csv.

    Args:
        model: as for ccd.decode.
        prompts: JSONL with prompt and answer a line; of a task, its own puzzles by default.
        field: entry that holds the prompt.
        answer_field: entry that holds the answer.
        trust_remote_code: whether code in the model's folder may run.
        n_mc: masked copies of an answer.
        limit: most lines.
    """
    from icml_ccd import decode_job

    source = decode_job.Source(model, prompts, field, trust_remote_code, False, limit)
    return decode_job.score_answers(run, source, answer_field, n_mc)
