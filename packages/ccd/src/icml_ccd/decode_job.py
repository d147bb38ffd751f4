"""The jobs that read prompts: decode them, or score their answers."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from icml_core import Run
from icml_core.run import write_json
from torch import Tensor

from icml_ccd.decoding import decode
from icml_ccd.folder_models import load_mdm
from icml_ccd.likelihood import loglik
from icml_ccd.pictures import order_picture
from icml_ccd.prompt_files import Prompt, load_checker, read_prompts
from icml_ccd.tasks import masked_out
from icml_ccd.tiny_mdm import FILE, TinyMDM
from icml_ccd.trace import DecodeOutput
from icml_ccd.trained_tasks import TASKS, task_model


@dataclass(frozen=True)
class Source:
    """Which model, and which prompts; see the job ``decode``."""

    model: str
    prompts: Path | None
    field: str
    trust_remote_code: bool
    chat: bool
    limit: int

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"--limit {self.limit}; at least one prompt is needed")

    @property
    def task(self) -> str | None:
        """Name of the task, where the model is one's."""
        return self.model.removeprefix("task:") if self.model.startswith("task:") else None

    def load(self, device: str) -> tuple[Any, Any]:
        """The model, and its tokenizer where it has one.

        Raises:
            ValueError: no model of this name.
        """
        if self.task is not None:
            return task_model(self.task, device=device), None
        folder = Path(self.model).expanduser()
        if not folder.is_dir():
            raise ValueError(f"--model {self.model} is neither task:NAME ({', '.join(TASKS)}) nor a folder")
        if (folder / FILE).is_file():
            tokenizer = None
            if (folder / "tokenizer.json").is_file():
                from icml_lm import load_tokenizer

                tokenizer = load_tokenizer(folder / "tokenizer.json")
            return TinyMDM.load(folder).to(device), tokenizer
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        model = load_mdm(folder, trust_remote_code=self.trust_remote_code, dtype=dtype, device=device)
        return model, model.tokenizer

    def lines(self) -> list[Prompt]:
        """The user's prompts.

        Raises:
            ValueError: there is no file of prompts.
        """
        if self.prompts is None:
            raise ValueError("--prompts FILE.jsonl is needed with a model that is no task's")
        return read_prompts(self.prompts, self.field)[: self.limit]


def decode_prompts(
    run: Run, source: Source, gen_length: int, infill: bool, checker: str | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Decode, and write answers, trace, picture and report."""
    check = load_checker(checker) if checker else None
    if source.task is not None and source.prompts is None:
        return _puzzles(run, source, options)
    lines = source.lines()
    model, tokenizer = source.load(run.device)
    if tokenizer is None:
        raise ValueError(f"{source.model} has no tokenizer; prompts are texts and need one")
    answers, right = [], []
    with run.progress("decoding", total=len(lines)) as bar:
        for number, prompt in enumerate(lines):
            ids = torch.tensor([_prompt_ids(tokenizer, prompt.text, source.chat and not infill)])
            given = {**options, "infill": infill, "gen_length": None if infill else gen_length}
            given["stop_at_eos"] &= getattr(model, "eos_id", None) is not None
            out = decode(model, ids.to(run.device), **given)
            start = 0 if infill else ids.shape[1]
            answer = tokenizer.decode(out.sequences[0, start:].tolist(), skip_special_tokens=True)
            line = {"prompt": prompt.text, "answer": answer, "n_forward": out.n_forward}
            if check is not None:
                line["correct"] = bool(check(prompt.line, answer))
                right.append(line["correct"])
            answers.append(line)
            if number == 0:
                _first(run, out, tokenizer)
            run.log(number, n_forward=out.n_forward, seconds=out.report["seconds"])
            bar.advance(1)
    _write_answers(run, answers)
    result = {"prompts": len(lines), "n_forward": sum(a["n_forward"] for a in answers) / len(answers)}
    return {**result, **({"accuracy": sum(right) / len(right)} if right else {})}


def _puzzles(run: Run, source: Source, options: dict[str, Any]) -> dict[str, Any]:
    """Puzzles of a task, checked."""
    model, _ = source.load(run.device)
    task = TASKS[source.model.removeprefix("task:")]
    given, _ = masked_out(task, source.limit, seed=run.seed)
    options = {**options, "stop_at_eos": False}
    out = decode(model, given.to(run.device), infill=True, **options)
    correct = task.check(given, out.sequences.cpu())
    rows = zip(out.sequences.tolist(), correct.tolist(), out.trace.forwards.tolist(), strict=True)
    _write_answers(run, [{"tokens": t, "correct": c, "n_forward": f} for t, c, f in rows])
    _first(run, out, None)
    return {
        "prompts": source.limit,
        "accuracy": float(correct.double().mean()),
        "n_forward": float(out.trace.forwards.double().mean()),
    }


def score_answers(run: Run, source: Source, answer_field: str, n_mc: int) -> dict[str, Any]:
    """Bounds of log-likelihoods, as a table."""
    pairs: list[tuple[Tensor, Tensor]] = []
    if source.task is not None and source.prompts is None:
        model, _ = source.load(run.device)
        whole, answer = TASKS[source.task].sample(source.limit, seed=run.seed)
        if not bool((answer[:, 1:] >= answer[:, :-1]).all()):
            raise ValueError(f"answers of {source.task} stand between what is given; take addition or trips")
        pairs = [(row[~a], row[a]) for row, a in zip(whole, answer, strict=True)]
    else:
        lines = source.lines()
        model, tokenizer = source.load(run.device)
        if tokenizer is None:
            raise ValueError(f"{source.model} has no tokenizer; prompts are texts and need one")
        for prompt in lines:
            text = prompt.line.get(answer_field)
            if not isinstance(text, str) or not text:
                raise ValueError(f"a line has no text under {answer_field!r}: {prompt.text[:60]!r}")
            pairs.append(tuple(torch.tensor(_prompt_ids(tokenizer, t, False)) for t in (prompt.text, text)))
    rows = []
    with run.progress("scoring", total=len(pairs)) as bar:
        for number, (prompt_ids, answer_ids) in enumerate(pairs):
            device = run.device
            found = loglik(
                model, prompt_ids.to(device), answer_ids.to(device), n_mc, generator=run.seed + number
            )
            rows.append({"line": number, "tokens": len(answer_ids), **found._asdict()})
            bar.advance(1)
    _write_csv(run, "loglik.csv", rows)
    tokens = sum(row["tokens"] for row in rows)
    return {"lines": len(rows), "nats_a_token": -sum(row["value"] for row in rows) / tokens}


def _prompt_ids(tokenizer: Any, text: str, chat: bool) -> list[int]:
    if chat and getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _first(run: Run, out: DecodeOutput, tokenizer: Any) -> None:
    """Trace, report and picture of the first row."""
    trace = out.trace
    rows = [
        {"step": step.step, "position": p, "token": t, "score": s, "reason": trace.reasons()[p]}
        for step in trace.steps()
        for p, t, s in zip(step.positions, step.tokens, step.scores, strict=True)
    ]
    _write_csv(run, "trace.csv", rows)
    write_json(run.file("report.json"), {"settings": trace.settings, **out.report})
    tokens = trace.token[0].tolist()
    known = [max(t, 0) for t in tokens]
    labels = [str(t) for t in tokens] if tokenizer is None else [tokenizer.decode([t]) for t in known]
    with run.path("order.png") as temporary:
        order_picture(trace, temporary, labels=[label.replace("$", r"\$") for label in labels])


def _write_answers(run: Run, answers: list[dict[str, Any]]) -> None:
    with run.path("answers.jsonl") as temporary:
        lines = [json.dumps(answer, ensure_ascii=False) for answer in answers]
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_csv(run: Run, name: str, rows: list[dict[str, Any]]) -> None:
    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]) if rows else ["step"])
        writer.writeheader()
        writer.writerows(rows)
