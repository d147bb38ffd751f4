"""DPO and SimPO: the losses by hand and as TRL has them, pairs, arms, trainings by TRL, and the job."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from icml_core import Run
from icml_idft import PreferenceLoss, jobs, prefer, preference_pairs, skills
from icml_idft.arms import Arm, fine_tuned
from icml_idft.loss import IDFTLoss
from icml_idft.preferences import Pair, answer_logp, own_pairs, reference_logp
from icml_idft.rejection import OwnAnswer, own_answers
from icml_lm import collate, load
from icml_lm.tasks.digit_ops import tokenizer
from small_models import ChatBytes, tiny

SYMBOLS = tokenizer()


def test_dpo_by_hand():
    """-log σ(0.1 ((-3 + 4) - (-6 + 5))) = log(1 + e^-0.2)."""
    logp = torch.tensor([-3.0, -6.0], dtype=torch.float64)
    reference = torch.tensor([-4.0, -5.0], dtype=torch.float64)
    found = PreferenceLoss("dpo")(logp, torch.tensor([2, 7]), reference)
    assert found.tolist() == pytest.approx([math.log1p(math.exp(-0.2))], rel=1e-14)


def test_simpo_by_hand():
    """-log σ(2 (-3 / 2 + 6 / 8) - 0.5) = log(1 + e^2): the length counts, and the margin."""
    logp = torch.tensor([-3.0, -6.0], dtype=torch.float64)
    found = PreferenceLoss("simpo")(logp, torch.tensor([2, 8]))
    assert found.tolist() == pytest.approx([math.log1p(math.exp(2.0))], rel=1e-14)


@pytest.mark.parametrize("kind", ["dpo", "simpo"])
def test_gradients_are_the_published_ones(kind):
    """DPO pushes by beta σ(-beta Δ), and SimPO by beta σ(margin - beta Δ) over each answer's length."""
    generator = torch.Generator().manual_seed(0)
    logp = -8 * torch.rand(12, generator=generator, dtype=torch.float64)
    reference = -8 * torch.rand(12, generator=generator, dtype=torch.float64)
    tokens = torch.randint(1, 9, (12,), generator=generator)
    loss = PreferenceLoss(kind)
    leaf = logp.clone().requires_grad_()
    loss(leaf, tokens, reference).sum().backward()
    reward = logp - reference if kind == "dpo" else logp / tokens
    push = loss.beta * torch.sigmoid(loss.margin - loss.beta * (reward[:6] - reward[6:]))
    expected = torch.cat((-push, push)) / (1 if kind == "dpo" else tokens)
    torch.testing.assert_close(leaf.grad, expected, rtol=1e-12, atol=0)


def sequences(n=6, length=9, vocabulary=11, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, length, vocabulary, generator=generator, dtype=torch.float64)
    labels = torch.randint(vocabulary, (n, length), generator=generator)
    for row in range(n):
        labels[row, : 2 + row % 3] = -100
        labels[row, length - row // 2 :] = -100
    return logits, labels


def test_simpo_is_trls():
    cpo = pytest.importorskip("trl.experimental.cpo")
    logits, labels = sequences()
    logp, tokens = answer_logp(logits, labels)
    means = cpo.CPOTrainer.get_batch_logps(logits, labels, average_log_prob=True)
    torch.testing.assert_close(logp / tokens, means, rtol=1e-12, atol=0)
    for beta, margin in ((2.0, 0.5), (10.0, 3.0), (0.7, 0.0)):
        options = {"loss_type": "simpo", "beta": beta, "simpo_gamma": margin, "alpha": 0.0}
        device = SimpleNamespace(device=torch.device("cpu"))
        trainer = SimpleNamespace(**options, label_smoothing=0.0, accelerator=device)
        expected, *_ = cpo.CPOTrainer.cpo_loss(trainer, means[:3], means[3:])
        found = PreferenceLoss("simpo", beta, margin)(logp, tokens)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@torch.no_grad()
def test_log_probabilities_are_those_of_the_answer_alone():
    model = tiny(spread=3.0)
    rows = skills.demonstrations("ASC", 5, seed=0)
    found = reference_logp(model, rows, batch=2)
    for row, value in zip(rows, found, strict=True):
        logp = model(torch.tensor([row.input_ids])).logits[0].log_softmax(-1)
        places = [i for i, label in enumerate(row.labels) if label != -100]
        assert float(value) == pytest.approx(sum(float(logp[i - 1, row.labels[i]]) for i in places), rel=1e-4)


def test_own_pairs_put_the_models_answer_behind_the_same_prompt():
    model = tiny(spread=3.0)
    rows = skills.demonstrations("ASC", 6, seed=0)

    def made(seed):
        generator = torch.Generator().manual_seed(seed)
        return own_pairs(model, SYMBOLS, rows, max_new_tokens=9, batch=4, generator=generator)

    pairs = made(0)
    assert [pair.chosen for pair in pairs] == rows
    for pair in pairs:
        place = next(i for i, label in enumerate(pair.chosen.labels) if label != -100)
        assert pair.rejected.input_ids[:place] == pair.chosen.input_ids[:place]
        assert pair.rejected.labels[:place] == [-100] * place
        assert pair.rejected.labels[place:] == pair.rejected.input_ids[place:]
        assert 1 <= len(pair.rejected.input_ids) - place <= 9
    assert made(0) == pairs
    assert made(1) != pairs
    prompts = [pair.chosen.input_ids[: pair.chosen.labels.count(-100)] for pair in pairs]
    alone = own_answers(
        model, SYMBOLS, prompts, max_new_tokens=9, batch=6, generator=torch.Generator().manual_seed(0)
    )
    for pair, (own,) in zip(pairs, alone, strict=True):
        assert [x for x in pair.rejected.labels if x != -100] == own.ids


def scripted(monkeypatch, answers):
    given = [[OwnAnswer([1], text, finish)] for text, finish in answers]
    monkeypatch.setattr("icml_idft.preferences.own_answers", lambda *a, **k: iter(given))


def test_pairs_of_texts_leave_out_what_teaches_nothing(monkeypatch):
    rows = [{"prompt": f"q{i}", "response": f"a{i}"} for i in range(4)]
    scripted(monkeypatch, [("other", "eos"), ("endless", "length"), (" ", "eos"), ("a3 ", "eos")])
    generator = torch.Generator().manual_seed(0)
    found = preference_pairs(tiny(), SYMBOLS, rows, generator=generator)
    assert found.rows == [{"prompt": "q0", "chosen": "a0", "rejected": "other"}]
    assert (found.cut, found.empty, found.same) == (1, 1, 1)
    scripted(monkeypatch, [("endless", "length")] * 4)
    with pytest.raises(ValueError, match="none of 4 rows made a pair: 4 sampled answers were cut"):
        preference_pairs(tiny(), SYMBOLS, rows, generator=generator)


def test_pairs_of_a_chat_model_are_conversations(monkeypatch):
    rows = [{"prompt": "why?", "response": "so"}]
    scripted(monkeypatch, [("because", "eos")])
    (found,) = preference_pairs(tiny(), ChatBytes(), rows, generator=torch.Generator()).rows
    assert found == {
        "prompt": [{"role": "user", "content": "why?"}],
        "chosen": [{"role": "assistant", "content": "so"}],
        "rejected": [{"role": "assistant", "content": "because"}],
    }


def test_arms_train_on_pairs_as_one_by_one_with_the_loss_itself():
    """Beside arms of demonstrations; the same pairs in the same order through torch's Adam."""
    base = tiny(d=16, layers=1, spread=3.0)
    rows = skills.demonstrations("ASC", 8, seed=0)
    pairs = own_pairs(base, SYMBOLS, rows, max_new_tokens=9, generator=torch.Generator().manual_seed(0))
    losses = [PreferenceLoss("dpo"), IDFTLoss("sft"), PreferenceLoss("simpo")]
    losses.append(PreferenceLoss("simpo", 5.0, 0.0))
    arms = [Arm("rows" if isinstance(loss, IDFTLoss) else "pairs", loss, 1e-3) for loss in losses]
    found = fine_tuned(base, arms, {"rows": rows, "pairs": pairs}, epochs=3, batch=4, seed=5)
    answers = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    batch = collate(answers, 0)
    reference = answer_logp(base(batch["input_ids"]).logits, batch["labels"])[0].detach()
    for loss, model in zip(losses, found, strict=True):
        if isinstance(loss, IDFTLoss):
            continue
        twin = tiny(d=16, layers=1, spread=3.0)
        optimizer = torch.optim.Adam(twin.parameters(), lr=1e-3)
        for step in range(6):
            order = torch.randperm(8, generator=torch.Generator().manual_seed((5 << 10) + step // 2))
            chosen = order[4 * (step % 2) : 4 * (step % 2) + 4]
            both = torch.cat((chosen, chosen + 8))
            optimizer.zero_grad()
            logp, tokens = answer_logp(twin(batch["input_ids"][both]).logits, batch["labels"][both])
            loss(logp, tokens, reference[both]).mean().backward()
            optimizer.step()
        for a, e in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a, e, rtol=0, atol=5e-7)


def test_bad_constants_and_data_are_named():
    with pytest.raises(ValueError, match="kind='ppo' is not one of dpo, simpo"):
        PreferenceLoss("ppo")
    with pytest.raises(ValueError, match="beta=0 must be a positive number"):
        PreferenceLoss("dpo", 0)
    with pytest.raises(ValueError, match="margin=-1 must be"):
        PreferenceLoss("simpo", margin=-1)
    with pytest.raises(ValueError, match="belongs to SimPO"):
        PreferenceLoss("dpo", margin=0.5)
    logp, tokens = torch.zeros(2), torch.tensor([1, 0])
    with pytest.raises(ValueError, match="DPO needs reference="):
        PreferenceLoss("dpo")(logp, tokens)
    with pytest.raises(ValueError, match="an answer has no token"):
        PreferenceLoss("simpo")(logp, tokens)
    with pytest.raises(ValueError, match="chosen answers first"):
        PreferenceLoss("simpo")(logp[:1], tokens[:1])
    rows = skills.demonstrations("ASC", 2, seed=0)
    pairs = [Pair(row, row) for row in rows]
    for loss, given, wanted in ((PreferenceLoss(), rows, "pairs"), (IDFTLoss(), pairs, "demonstrations")):
        with pytest.raises(ValueError, match=f"takes {wanted}"):
            fine_tuned(tiny(), [Arm("a", loss, 1e-3)], {"a": given}, epochs=1, batch=2, seed=0)
    bare = rows[0]._replace(labels=rows[0].input_ids)
    with pytest.raises(ValueError, match="needs a prompt"):
        own_pairs(tiny(), SYMBOLS, [bare], max_new_tokens=2, generator=torch.Generator())


def byte_level():
    """Every byte is a token, in a tokenizer of transformers'."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocabulary = {c: i for i, c in enumerate(["<pad>", "<eos>", *sorted(level.alphabet())])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer, made.decoder = level, tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<pad>")


def llama():
    return tiny(258, d=16, layers=1, spread=2.0).to_llama()


TEXTS = [{"prompt": f"{i}+1=", "chosen": f"{i + 1}", "rejected": f"say {i}{i}"} for i in range(4)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["dpo", "simpo"])
def test_trl_trains_as_the_loss_itself(kind, tmp_path):
    """All pairs in each step, so that their order does not matter: the same losses and the same weights."""
    pytest.importorskip("trl")
    symbols, model, twin = byte_level(), llama(), llama()
    options = {"lr": 1e-2, "batch": 4, "epochs": 4, "schedule": "constant", "clip": None}
    found, log = prefer(model, TEXTS, symbols, loss=kind, folder=tmp_path, **options)
    rows = []
    for side in ("chosen", "rejected"):
        for text in TEXTS:
            before = symbols(text["prompt"])["input_ids"]
            after = [*symbols(text[side])["input_ids"], symbols.eos_token_id]
            rows.append(([*before, *after], [*[-100] * len(before), *after]))
    batch = collate(rows, symbols.pad_token_id)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    reference = answer_logp(twin(**inputs).logits, batch["labels"])[0].detach()
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2, weight_decay=0.0)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        value = PreferenceLoss(kind)(*answer_logp(twin(**inputs).logits, batch["labels"]), reference).mean()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < losses[0] - 0.01
    assert [line["loss"] for line in log] == pytest.approx(losses, abs=2e-6)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=0, atol=5e-6)


def test_models_and_settings_that_trl_cannot_train_are_refused(tmp_path):
    pytest.importorskip("trl")
    with pytest.raises(TypeError, match=r"not TinyLM; pass model.to_llama\(\)"):
        prefer(tiny(), TEXTS, SYMBOLS, lr=1e-3, folder=tmp_path)
    for wrong, message in (
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": 1.0, "batch": 4, "micro_batch": 3}, "multiple of micro_batch=3"),
        ({"lr": 1.0, "pairs": []}, "there are no pairs"),
    ):
        options = {"pairs": TEXTS, **wrong}
        with pytest.raises(ValueError, match=message):
            prefer(llama(), options.pop("pairs"), byte_level(), folder=tmp_path, **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["dpo", "simpo"])
def test_the_job_trains_a_users_model_and_goes_on(kind, tmp_path, monkeypatch):
    pytest.importorskip("trl")
    llama().save_pretrained(tmp_path / "base")
    byte_level().save_pretrained(tmp_path / "base")
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{i}+1=", "response": f"{i + 1}"} for i in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # An untrained model ends its answers by chance.
    given = [[OwnAnswer([1], f"say {i}", "eos")] for i in range(8)]
    monkeypatch.setattr("icml_idft.preferences.own_answers", lambda *a, **k: iter(given))
    options = {"data": data, "model": f"hf:{tmp_path / 'base'}", "loss": kind, "lr": 1e-3, "batch": 4}
    options |= {"epochs": 2, "micro_batch": 2, "checkpoint_every": 1}

    def run(name, **more):
        return Run(tmp_path / name, seed=1, device="cpu", quiet=True, **more)

    whole = jobs.finetune(run=run("whole"), **options)
    assert whole["steps"] == 4
    assert whole["pairs"] == 8
    pairs = [json.loads(line) for line in (tmp_path / "whole" / "pairs.jsonl").read_text().splitlines()]
    assert pairs[3] == {"prompt": "3+1=", "chosen": "4", "rejected": "say 3"}
    assert (tmp_path / "whole" / "training.png").stat().st_size > 1000
    assert len((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()) == 4
    original = Run.log

    def stopping(self, step, **figures):
        original(self, step, **figures)
        if step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "log", stopping)
    with pytest.raises(KeyboardInterrupt):
        jobs.finetune(run=run("part"), **options)
    monkeypatch.setattr(Run, "log", original)
    again = jobs.finetune(run=run("part", resumed=True), **options)
    assert again == whole
    first, second = (load(tmp_path / name / "model").model for name in ("whole", "part"))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_options_of_other_losses_are_refused(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a", "response": "b"}\n')
    run = Run(tmp_path / "out", seed=1, device="cpu", quiet=True)
    with pytest.raises(ValueError, match=r"takes no beta, packing; leave"):
        jobs.finetune(run=run, data=data, loss="dpo", beta=0.5, packing=True)
    with pytest.raises(ValueError, match="belong to dpo and simpo"):
        jobs.finetune(run=run, data=data, loss="idft", margin=0.5)
