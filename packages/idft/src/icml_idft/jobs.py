"""What `icml run` runs of scoring and fine-tuning; rewriting is in `jobs_of_rewriting`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from icml_core import Run, resumable

Kind = Literal["sft", "dft", "idft", "indomain", "eaft", "reverse", "dpo", "simpo"]


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
    preference_beta: float | None = None,
    margin: float | None = None,
    max_new_tokens: int = 256,
) -> dict[str, Any]:
    """Fine-tune a language model on demonstrations, and keep what it knows.

    Writes the folder model, metrics.jsonl, log.json and training.png. Ctrl-C leaves a checkpoint; --resume
    goes on from it bit for bit. The rivals dpo and simpo prefer the demonstrations to the model's own sampled
    answers, by TRL, write pairs.jsonl too, and go on from the last checkpoint.

    Args:
        data: JSONL with prompt and response, or messages, a line.
        model: smollm2, tiny:NAME, hf:PATH, or a path.
        loss: sft, dft, idft, indomain, eaft or reverse; dpo or simpo.
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
        preference_beta: Of dpo and simpo; 0.1 and 2 by default.
        margin: Of simpo; 0.5 by default.
        max_new_tokens: Of the model's own answers, for dpo and simpo.
    """
    from icml_core.run import write_json
    from icml_lm import load

    from icml_idft import finetuning, plots
    from icml_idft.demonstrations import read_rows
    from icml_idft.loss import IDFTLoss

    if loss in ("dpo", "simpo"):
        from icml_idft.preference_job import Settings, run_preferences

        others = {
            "optimizer": optimizer != "adamw",
            "beta": beta != 1.0,
            "gamma": tuple(gamma) != (0.1, 2.0),
            "warmup": warmup != 0,
            "transition": transition != 0,
            "warmup_kind": warmup_kind != "dft",
            "standardized": standardized,
            "precondition": precondition != "none",
            "packing": packing,
            "validation": validation is not None,
        }
        if wrong := [name for name, given in others.items() if given]:
            raise ValueError(f"loss={loss!r} is TRL's, which takes no {', '.join(wrong)}; leave them out")
        settings_of_pairs = Settings(
            lr=lr,
            epochs=epochs,
            batch=batch,
            micro_batch=micro_batch or None,
            schedule=schedule,
            lr_warmup=lr_warmup,
            clip=clip or None,
            weight_decay=weight_decay,
            lora=lora or None,
        )
        return run_preferences(
            run,
            read_rows(data, limit=limit),
            model,
            kind=loss,
            beta=preference_beta,
            margin=margin,
            settings=settings_of_pairs,
            merge_adapters=merge,
            max_length=max_length,
            max_new_tokens=max_new_tokens,
            checkpoint_every=checkpoint_every,
        )
    if preference_beta is not None or margin is not None:
        raise ValueError(f"preference_beta and margin belong to dpo and simpo, not to loss={loss!r}")
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


def _scorable(labels: Any) -> bool:
    return any(label != -100 for label in labels[1:])


def _pad(tokenizer: Any) -> int:
    found = getattr(tokenizer, "pad_token_id", None)
    return int(found if found is not None else tokenizer.eos_token_id)
