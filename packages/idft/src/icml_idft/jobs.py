"""What `icml run` runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run, resumable

if TYPE_CHECKING:
    from icml_idft.hinted import HintedDecoder

Mode = Literal["linear", "sigmoid", "piecewise"]
Kind = Literal["sft", "dft", "idft", "indomain", "eaft", "reverse"]


def cll(
    *,
    run: Run,
    data: Path,
    model: str = "smollm2",
    reference: str | None = None,
    temperature: float = 1.0,
    batch: int = 8,
    limit: int = 1000,
    max_length: int = 2048,
) -> dict[str, Any]:
    """Score the answers of a data set: would this model have said them?

    Writes scores.csv (a line a row: tokens, mean phi, z, p-value) and scores.png.

    Args:
        data: JSONL with prompt and response, or messages, a line.
        model: smollm2, tiny:NAME, hf:PATH, or a path.
        reference: another model over the same vocabulary, for the log-ratio.
        temperature: of the model's distribution.
        batch: rows at once.
        limit: rows that are read.
        max_length: tokens that are kept of a row.
    """
    import torch
    from icml_lm import collate, load

    from icml_idft import plots
    from icml_idft.centred import cll as score
    from icml_idft.demonstrations import encode_rows, read_rows

    rows = read_rows(data, limit=limit)
    subject, tokenizer = load(model, device=run.device)
    other = None if reference is None else load(reference, device=run.device).model
    encoded = [r for r in encode_rows(rows, tokenizer, max_length=max_length).rows if _scorable(r.labels)]
    columns: list[tuple[float, ...]] = []
    with run.progress("scoring", total=len(encoded)) as bar:
        for start in range(0, len(encoded), batch):
            part = collate(encoded[start : start + batch], _pad(tokenizer))
            part = {k: v.to(run.device) for k, v in part.items()}
            found = score(
                subject,
                part["input_ids"],
                part["labels"] != -100,
                temperature,
                other,
                attention_mask=part["attention_mask"],
            )
            ratio = found.ratio_z if found.ratio_z is not None else torch.zeros_like(found.z)
            of_part = (found.scored.sum(1), found.mean, found.z, found.pvalue, ratio)
            columns += [tuple(map(float, row)) for row in zip(*of_part, strict=True)]
            bar.advance(len(found.z), phi=float(found.mean.mean()))
    names = ["tokens", "phi", "z", "pvalue", *(["ratio_z"] if other is not None else [])]
    with run.path("scores.csv") as temporary:
        lines = [",".join(["row", *names])]
        lines += [
            ",".join([str(i), *(f"{v:.6g}" for v in row[: len(names)])]) for i, row in enumerate(columns)
        ]
        temporary.write_text("\n".join(lines) + "\n")
    with run.path("scores.png") as temporary:
        plots.scores([row[1] for row in columns], [row[2] for row in columns], temporary)
    tokens = sum(row[0] for row in columns)
    return {
        "rows": len(columns),
        "tokens": tokens,
        "phi": sum(row[0] * row[1] for row in columns) / tokens,
        "refused": sum(row[3] < 0.05 for row in columns) / len(columns),
    }


def weights(
    *,
    run: Run,
    data: Path,
    model: str = "smollm2",
    beta: float = 1.0,
    gamma: tuple[float, float] = (0.1, 2.0),
    standardized: bool = False,
    limit: int = 200,
    max_length: int = 1024,
) -> dict[str, Any]:
    """Show what weights the losses would give a data set, and what that speaks for.

    Writes weights.csv (a line a kind: loss, mean weight, share below 0.1) and weights.png.

    Args:
        data: JSONL with prompt and response, or messages, a line.
        model: smollm2, tiny:NAME, hf:PATH, or a path.
        beta: Width of the exponent's rule, in nats.
        gamma: Bounds of the exponent.
        standardized: Phi in standard deviations.
        limit: Rows that are read.
        max_length: Tokens that are kept of a row.
    """
    import torch
    from icml_lm import collate, load

    from icml_idft import plots
    from icml_idft.advice import advise
    from icml_idft.demonstrations import encode_rows, read_rows
    from icml_idft.loss import KINDS, IDFTLoss

    losses = {k: IDFTLoss(k, beta, gamma, standardized=standardized) for k in KINDS}
    rows = read_rows(data, limit=limit)
    subject, tokenizer = load(model, device=run.device)
    encoded = [r for r in encode_rows(rows, tokenizer, max_length=max_length).rows if _scorable(r.labels)]
    sums = {kind: [0.0, 0.0, 0.0, 0.0] for kind in KINDS}
    points: list[tuple[float, float]] = []
    with run.progress("weighing", total=len(encoded)) as bar, torch.no_grad():
        for start in range(0, len(encoded), 4):
            part = collate(encoded[start : start + 4], _pad(tokenizer))
            part = {k: v.to(run.device) for k, v in part.items()}
            logits = subject(input_ids=part["input_ids"], attention_mask=part["attention_mask"]).logits
            for kind, loss in losses.items():
                loss(logits, part["labels"])
                stats = loss.stats
                n = stats["tokens"]
                for place, name in enumerate(("loss", "mean_weight", "suppressed")):
                    sums[kind][place] += n * stats[name]
                sums[kind][3] += n
            tokens = losses["idft"].tokens
            assert tokens is not None
            kept = part["labels"][:, 1:] != -100
            phi, w = tokens.phi[:, 1:][kept], tokens.weight[:, 1:][kept]
            points += list(zip(phi.tolist(), w.tolist(), strict=True))
            bar.advance(len(part["labels"]))
    with run.path("weights.csv") as temporary:
        lines = ["kind,loss,mean_weight,suppressed"]
        lines += [f"{k},{v[0] / v[3]:.6g},{v[1] / v[3]:.6g},{v[2] / v[3]:.6g}" for k, v in sums.items()]
        temporary.write_text("\n".join(lines) + "\n")
    with run.path("weights.png") as temporary:
        plots.weights(points, temporary)
    advice = advise(subject, encoded, pad=_pad(tokenizer))
    return {"recommend": advice.recommend, "why": advice.reason, "phi": advice.phi, "rows": len(encoded)}


@resumable
def finetune(
    *,
    run: Run,
    data: Path,
    model: str = "smollm2",
    loss: Kind = "idft",
    lr: float = 6e-5,
    epochs: int = 3,
    batch: int = 16,
    micro_batch: int = 0,
    optimizer: str = "adamw",
    schedule: Literal["cosine", "linear", "constant"] = "cosine",
    lr_warmup: int = 0,
    clip: float = 1.0,
    weight_decay: float = 0.0,
    beta: float = 1.0,
    gamma: tuple[float, float] = (0.1, 2.0),
    warmup: float = 0.0,
    transition: float = 0.0,
    warmup_kind: Literal["dft", "sft"] = "dft",
    standardized: bool = False,
    precondition: Literal["none", "sft"] = "none",
    lora: int = 0,
    merge: bool = False,
    packing: bool = False,
    max_length: int = 1024,
    validation: Path | None = None,
    limit: int | None = None,
    checkpoint_every: int = 50,
) -> dict[str, Any]:
    """Fine-tune a language model on demonstrations, and keep what it knows.

    Writes the folder model, metrics.jsonl, log.json and training.png. Ctrl-C leaves a checkpoint; --resume
    goes on from it bit for bit.

    Args:
        data: JSONL with prompt and response, or messages, a line.
        model: smollm2, tiny:NAME, hf:PATH, or a path.
        loss: sft, dft, idft, indomain, eaft or reverse.
        lr: Peak learning rate.
        epochs: Passes over the data.
        batch: Rows of a step.
        micro_batch: Rows in memory at once; 0 means the whole batch.
        optimizer: One of torch's, or plugin.component of an installed plug-in.
        schedule: Of the learning rate.
        lr_warmup: Steps of linear rise of the learning rate.
        clip: Norm to which gradients are clipped; 0 means never.
        weight_decay: Of the optimizer.
        beta: Width of the exponent's rule.
        gamma: Bounds of the exponent.
        warmup: Share of the steps before the adaptive exponent sets in.
        transition: Share of the steps over which it sets in.
        warmup_kind: What the warm-up is: dft, as published, or sft.
        standardized: Phi in standard deviations.
        precondition: sft takes Adam's second moment from the unweighted loss.
        lora: Rank of adapters; 0 trains all weights.
        merge: Whether to merge the adapters before the model is written.
        packing: Several rows in one.
        max_length: Tokens that are kept of a row.
        validation: JSONL of which NLL and phi are measured after each epoch.
        limit: Rows that are read.
        checkpoint_every: Steps between checkpoints; 0 means at the end and on Ctrl-C only.
    """
    from icml_core.run import write_json
    from icml_lm import load

    from icml_idft import finetuning, plots
    from icml_idft.demonstrations import read_rows
    from icml_idft.loss import IDFTLoss

    rule = IDFTLoss(loss, beta, gamma, warmup, transition, warmup_kind=warmup_kind, standardized=standardized)
    rows = read_rows(data, limit=limit)
    sets = None if validation is None else {"validation": read_rows(validation)}
    options = {
        "lr": lr,
        "epochs": epochs,
        "batch": batch,
        "micro_batch": micro_batch or None,
        "optimizer": optimizer,
        "schedule": schedule,
        "lr_warmup": lr_warmup,
        "clip": clip or None,
        "weight_decay": weight_decay,
        "precondition": None if precondition == "none" else precondition,
        "lora": lora or None,
        "packing": packing,
        "max_length": max_length,
        "seed": run.seed,
    }
    settings = finetuning.TrainOptions(**options)  # type: ignore[arg-type]
    subject, tokenizer = load(model, device=run.device)
    total = -(-len(rows) // settings.batch) * settings.epochs
    with run.progress("training", total=total) as bar:
        tuned, log = finetuning.finetune(
            subject,
            rows,
            tokenizer,
            loss=rule,
            eval_sets=sets,
            checkpoint=run.file("checkpoint"),
            checkpoint_every=checkpoint_every,
            callbacks=[lambda step, figures, m: run.log(step, **figures)],
            progress=bar,
            **options,
        )
    if lora and merge:
        from icml_lm import merge as merged

        tuned = merged(tuned)
    save_model(tuned, tokenizer, run.file("model"))
    write_json(run.file("log.json"), finetuning.log_as_dict(log))
    with run.path("training.png") as temporary:
        plots.training(log, temporary)
    figures = {
        name: values[-1] for name, values in log.figures.items() if name in ("nll", "mean_weight", "phi")
    }
    return {
        "loss": log.loss[-1],
        **figures,
        "steps": log.steps,
        "advice": None if log.advice is None else log.advice.recommend,
        **(log.evaluations[-1] if log.evaluations else {}),
    }


def hinted(
    *,
    run: Run,
    data: Path,
    model: str = "smollm2",
    target: str | None = None,
    beta: float = 3.0,
    mode: Mode = "linear",
    top_p: float = 0.95,
    temperature: float = 0.3,
    split: str = "\\boxed{",
    max_new_tokens: int = 1024,
    analysis: int = 512,
    batch: int = 8,
    limit: int = 1000,
) -> dict[str, Any]:
    """Rewrite answers by hinted decoding, as they come, without a check.

    Writes rewritten.jsonl (prompt, response, phi, lambda, finish a line).

    Args:
        data: JSONL with prompt and response a line; the response is the hint.
        model: The drafter, and the target.
        target: Another model for the target.
        beta: How fast the drafter's share grows with the target's entropy.
        mode: Of the share.
        top_p: Of the nucleus.
        temperature: Of the draw.
        split: Text after which the drafter goes on alone; empty means never.
        max_new_tokens: Of an answer.
        analysis: Tokens that the target may think before; 0 means none.
        batch: Rows at once.
        limit: Rows that are read.
    """
    import json

    import torch

    from icml_idft.demonstrations import answer_of, prompt_of, read_rows

    rows = read_rows(data, limit=limit)
    decoder = _decoder(run, model, target, beta, mode, top_p, temperature, split, analysis)
    generator = torch.Generator().manual_seed(run.seed)
    lines, phi = [], 0.0
    with run.progress("rewriting", total=len(rows)) as bar:
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            prompts = [prompt_of(row, start + i) for i, row in enumerate(part)]
            hints = [answer_of(row, start + i) for i, row in enumerate(part)]
            found = decoder.generate(prompts, hints, max_new_tokens, generator)
            for prompt, written in zip(prompts, found, strict=True):
                figures = {"phi": written.phi_mean, "lambda": written.lam_mean, "finish": written.finish}
                lines.append(json.dumps({"prompt": prompt, "response": written.text, **figures}))
                phi += written.phi_mean
            bar.advance(len(part), phi=phi / len(lines))
    with run.path("rewritten.jsonl") as temporary:
        temporary.write_text("\n".join(lines) + "\n")
    return {"rows": len(lines), "phi": phi / len(lines)}


@resumable
def realign(
    *,
    run: Run,
    data: Path,
    model: str = "smollm2",
    target: str | None = None,
    beta: float = 3.0,
    mode: Mode = "linear",
    top_p: float = 0.95,
    temperature: float = 0.3,
    split: str = "\\boxed{",
    answers: Literal["boxed", "contained", "any"] = "boxed",
    phi_min: float | None = None,
    retries: int = 3,
    max_new_tokens: int = 1024,
    analysis: int = 512,
    batch: int = 8,
    limit: int | None = None,
) -> dict[str, Any]:
    """Realign a data set: hinted decoding, a check of each answer, a filter by likelihood.

    Writes realigned.jsonl, ready for idft.finetune, and realigned.png. --resume goes on after the last row.

    Args:
        data: JSONL with prompt and response a line.
        model: The model that is to be trained.
        target: Another model for the target.
        beta: How fast the drafter's share grows with the target's entropy.
        mode: Of the share.
        top_p: Of the nucleus.
        temperature: Of the draw.
        split: Text after which the drafter goes on alone; empty means never.
        answers: What is right: the same boxed answer, the row's field "final" contained, or anything.
        phi_min: What the mean phi must reach; by default the 5 % quantile of the model's own samples.
        retries: With half of beta each, of wrong answers.
        max_new_tokens: Of an answer.
        analysis: Tokens that the target may think before; 0 means none.
        batch: Rows at once.
        limit: Rows that are read.
    """
    import json

    from icml_idft import plots
    from icml_idft.demonstrations import prompt_of, read_rows
    from icml_idft.realignment import own_phi_quantile
    from icml_idft.realignment import realign as realigned

    rows = read_rows(data, limit=limit)
    check = {"boxed": None, "contained": _contains, "any": lambda row, text: True}[answers]
    decoder = _decoder(run, model, target, beta, mode, top_p, temperature, split, analysis)
    path, state = run.file("realigned.jsonl"), run.file("phi_min.json")
    done: list[dict[str, Any]] = []
    if run.resumed and path.is_file():
        done = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    if run.resumed and state.is_file():
        phi_min = float(json.loads(state.read_text())["phi_min"])
    if phi_min is None:
        prompts = [prompt_of(row, i) for i, row in enumerate(rows[:64])]
        phi_min = own_phi_quantile(decoder, prompts, max_new_tokens=max_new_tokens, seed=run.seed)
    with run.path("phi_min.json") as temporary:
        temporary.write_text(json.dumps({"phi_min": phi_min}))
    with run.progress("realigning", total=len(rows)) as bar:
        bar.advance(len(done))
        for start in range(len(done), len(rows), batch):
            done += realigned(
                rows[start : start + batch],
                decoder,
                check,
                phi_min=phi_min,
                retries=retries,
                max_new_tokens=max_new_tokens,
                batch=batch,
                seed=run.seed,
                first=start,
                progress=bar,
            )
            with run.path("realigned.jsonl") as temporary:
                temporary.write_text("".join(json.dumps(row) + "\n" for row in done), encoding="utf-8")
    with run.path("realigned.png") as temporary:
        plots.realigned(done, phi_min, temporary)
    kept = [row for row in done if row["realigned"]]
    reasons = {
        name: sum(row["reason"] == name for row in done) for name in ("wrong", "length", "repeating", "phi")
    }
    return {"rows": len(done), "realigned": len(kept), **reasons, "phi_min": phi_min}


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer, so that ``icml_lm.load(folder)`` reads them."""
    if hasattr(model, "save_pretrained"):
        # What a converted GGUF file says of its quantisation is true no more.
        if getattr(model.config, "quantization_config", None) is not None:
            del model.config.quantization_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    else:
        model.save(folder)
        tokenizer.save(folder / "tokenizer.json")


def _decoder(
    run: Run,
    model: str,
    target: str | None,
    beta: float,
    mode: Mode,
    top_p: float,
    temperature: float,
    split: str,
    analysis: int,
) -> HintedDecoder:
    from icml_lm import load

    from icml_idft.hinted import HintedDecoder

    subject, tokenizer = load(model, device=run.device)
    other = None if target is None else load(target, device=run.device).model
    plain = not getattr(tokenizer, "chat_template", None)
    return HintedDecoder(
        subject,
        tokenizer,
        beta,
        mode,
        top_p,
        temperature,
        split or None,
        other,
        # Without a chat template there is no conversation to put an instruction into.
        hinted_prompt=(lambda prompt, hint: f"{hint} ; {prompt}") if plain else None,
        analysis=0 if plain else analysis,
    )


def _contains(row: Any, text: str) -> bool:
    final = row.get("final")
    if final is None:
        raise ValueError(
            f"--answers contained needs the field 'final' in each row, and one has {', '.join(row)}"
        )
    return str(final).strip() in text


def _scorable(labels: Any) -> bool:
    return any(label != -100 for label in labels[1:])


def _pad(tokenizer: Any) -> int:
    found = getattr(tokenizer, "pad_token_id", None)
    return int(found if found is not None else tokenizer.eos_token_id)
