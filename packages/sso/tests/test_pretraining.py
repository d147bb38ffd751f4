"""The training loop: resumed bit for bit, stopped cleanly, against Muon written out; and its files."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from icml_core import Component, Run
from icml_core.errors import UserError
from icml_core.registry import Entry
from icml_sso.configurations import MoEConfig, TransformerConfig
from icml_sso.corpus import TokenCorpus
from icml_sso.named_optimizers import PAPER_OPTIMIZERS, named_optimizer
from icml_sso.pretraining import Pretraining, PretrainingOptions, learning_rate_factor
from icml_sso.pretraining_run import open_corpus, pretrain
from icml_sso.training_record import ActivationProbe, TrainingRecord
from icml_sso.transformer import Transformer
from icml_sso.weight_spectra import atomic_matrices, sphere_ratios

SMALL = TransformerConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=24,
    context=12,
)
MIXTURE = TransformerConfig(**{**SMALL.__dict__, "moe": MoEConfig(4, 2, 8, 8, balance="bias")})


def text():
    """A walk over 32 tokens: the next one is one or two further."""
    steps = np.random.default_rng(0).integers(1, 3, size=4000)
    return TokenCorpus([np.cumsum(steps) % 32], vocab_size=32)


def training(optimizer="sso", config=SMALL, seed=3, **options):
    options = {"lr": 1e-2, "steps": 12, "batch": 4, "spectra_every": 4, "checkpoint_every": 5, **options}
    return Pretraining(config, text(), PretrainingOptions(optimizer=optimizer, **options), seed=seed)


def same(a, b):
    weights = all(torch.equal(a.model.state_dict()[k], v) for k, v in b.model.state_dict().items())
    return weights and a.record.rows == b.record.rows


@pytest.mark.parametrize("optimizer", PAPER_OPTIMIZERS)
@pytest.mark.parametrize("config", [SMALL, MIXTURE], ids=["dense", "mixture"])
def test_a_resumed_training_equals_the_whole_bit_for_bit(tmp_path, optimizer, config):
    whole = training(optimizer, config)
    whole.fit()
    first = training(optimizer, config)
    first.fit(until=7, checkpoint=tmp_path / "c.safetensors")  # wrote itself down after 5 steps and after 7
    assert first.step == 7
    second = training(optimizer, config, checkpoint_every=2)  # may differ: it changes no weight
    second.fit(checkpoint=tmp_path / "c.safetensors", resume=True)
    assert same(second, whole)
    assert len(whole.record.rows) == 12


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_training_after_its_step_with_a_checkpoint(tmp_path, name):
    path = tmp_path / "c.safetensors"
    before = signal.getsignal(getattr(signal, name))
    stopped = training(checkpoint_every=0)

    def stop(row):
        if row["step"] == 4:
            os.kill(os.getpid(), getattr(signal, name))

    with pytest.raises(KeyboardInterrupt):
        stopped.fit(checkpoint=path, callback=stop)
    assert stopped.step == 4
    assert signal.getsignal(getattr(signal, name)) is before
    resumed, whole = training(checkpoint_every=0), training(checkpoint_every=0)
    resumed.fit(checkpoint=path, resume=True)
    whole.fit()
    assert same(resumed, whole)


@pytest.mark.parametrize("optimizer", PAPER_OPTIMIZERS)
def test_every_optimizer_learns(optimizer):
    record = training(optimizer, steps=40, lr=2e-2, batch=8).fit()
    losses = record.measured("cross_entropy")
    assert losses[0] > 3.0  # a guess among 32 is ln 32 = 3.47
    assert losses[-5:].mean() < losses[0] - 0.5
    assert abs(record.last("validation") - losses[-5:].mean()) < 0.5


# The published triples of the quintic iteration; all but the last are divided by (1.01, 1.01³, 1.01⁵).
TRIPLES = [
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
    (2.2779, -1.6198, 0.3985),
    (1.8726, -1.2307, 0.3585),
    (1.8564, -1.2132, 0.3568),
    (1.8750, -1.2500, 0.3750),
]


def polar(matrices):
    """U p(Σ/‖·‖_F) Vᵀ by SVD in double precision, the scalar iteration p applied to each singular value."""
    u, s, v = torch.linalg.svd(matrices.double(), full_matrices=False)
    s = s / s.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
    for index, (a, b, c) in enumerate(TRIPLES):
        f = 1.01 if index < 7 else 1.0
        s = a / f * s + b / f**3 * s**3 + c / f**5 * s**5
    return u * s[..., None, :] @ v


@pytest.mark.parametrize("config", [SMALL, MIXTURE], ids=["dense", "mixture"])
def test_muon_is_muon_written_out(config):
    """W ← (1 - 0.1 lr) W - lr sqrt(m/n) msign(Nesterov momentum), split by heads and by gate and up."""
    model = training("muon", config).model
    optimizer = named_optimizer("muon", model, lr=1e-2, msign_dtype=torch.float32)
    spectral = {name for name, _ in atomic_matrices(model)}
    momenta: dict[str, torch.Tensor] = {}
    checked = set()
    for step in range(3):
        batch = text().batch(step, 4, 12, seed=1)
        model.zero_grad()
        model(batch[:, :-1], batch[:, 1:]).loss.backward()
        before = {name: stack.clone() for name, stack in atomic_matrices(model)}
        gradients = {name.removesuffix(".weight"): p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        after = dict(atomic_matrices(model))
        for name in spectral:
            gradient = gradients[name]
            momenta[name] = 0.9 * momenta.get(name, 0 * gradient) + 0.1 * gradient
            nesterov = 0.1 * gradient + 0.9 * momenta[name]
            halves = (nesterov.unflatten(1, (2, -1)),) if name.endswith("gate_up_proj") else (nesterov,)
            stack = halves[0].reshape(before[name].shape)
            m, n = stack.shape[-2:]
            step_size = 1e-2 * math.sqrt(m / n)
            expected = (1 - 1e-3) * before[name].double() - step_size * polar(stack)
            assert (after[name] - expected).abs().max() < 2e-3 * step_size, name
            checked.add(name)
    assert checked == spectral


def test_the_learning_rate_by_hand():
    assert [learning_rate_factor(t, 6, 2, 0.1) for t in (0, 1)] == [0.5, 1.0]
    assert learning_rate_factor(2, 6, 2, 0.1) == 1.0
    assert abs(learning_rate_factor(4, 6, 2, 0.1) - 0.55) < 1e-12  # half way down
    assert abs(learning_rate_factor(6, 6, 2, 0.1) - 0.1) < 1e-12
    rows = training("adamw", steps=6, warmup=2).fit().rows
    assert [row["lr"] for row in rows] == [1e-2 * learning_rate_factor(t, 6, 2, 0.1) for t in range(6)]


def test_pieces_of_a_batch_give_the_gradient_of_the_whole():
    whole, pieces = training("adamw"), training("adamw", micro_batch=1)
    for one in (whole, pieces):
        one._gradient()
    for a, b in zip(whole.model.parameters(), pieces.model.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


def test_validation_is_the_mean_over_the_held_out_windows():
    whole, pieces = training("adamw"), training("adamw", micro_batch=2)
    assert abs(whole.evaluate() - pieces.evaluate()) < 1e-6
    batches = [text().batch(i, 4, 12, seed=3, split="validation") for i in range(8)]
    windows = torch.cat(batches)
    with torch.no_grad():
        logits = whole.model(windows[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    assert abs(whole.evaluate() - expected.item()) < 1e-6


def test_first_weights_lie_on_their_spheres_whatever_the_optimizer():
    """σ₁ by singular values of NumPy, R = c sqrt(m/n) of the atomic shape."""
    for optimizer in ("adamw", "sso"):
        model = training(optimizer, MIXTURE, radius_scale=2.0).model
        head = model.model.layers[1].self_attn.q_proj.weight.detach().numpy()[8:16]
        assert abs(np.linalg.svd(head)[1][0] - 2 * math.sqrt(8 / 16)) < 1e-5
        ratios = sphere_ratios(model, 2.0)
        assert all((values - 1).abs().max() < 1e-5 for values in ratios.values())
        # Every matrix of the layers is counted: 4 of attention, dense 3, and router, two of experts, three
        # shared.
        assert len(ratios) == (4 + 3) + (4 + 1 + 2 + 3 + 1)
    free = training("adamw", spectral_init=False).model
    assert all((values - 1).abs().max() > 0.05 for values in sphere_ratios(free).values())


def test_the_probe_measures_what_modules_give():
    model = Transformer(SMALL, seed=1)
    tokens = torch.arange(24).view(2, 12)
    seen = []
    handle = model.model.layers[1].mlp.register_forward_hook(lambda m, i, o: seen.append(o.detach()))
    first = model.model.layers[0].mlp.register_forward_hook(lambda m, i, o: seen.append(o.detach()))
    with ActivationProbe(model) as probe:
        model(tokens)
    figures = probe.figures()
    handle.remove(), first.remove()
    joined = torch.stack(seen)
    assert abs(figures["ffn_rms"] - float(joined.square().mean().sqrt())) < 1e-7
    assert figures["ffn_absmax"] == float(joined.abs().max())
    assert set(figures) == {"attention_rms", "attention_absmax", "ffn_rms", "ffn_absmax"}
    model(tokens)
    assert probe.figures() == {}  # hooks are gone


@pytest.mark.parametrize("config", [SMALL, MIXTURE], ids=["dense", "mixture"])
def test_bfloat16_products_train_like_float32(config):
    half, single = (
        training("adamw", config, precision=p, steps=30, lr=2e-2) for p in ("bfloat16", "float32")
    )
    losses = [one.fit().measured("cross_entropy") for one in (half, single)]
    assert all(p.dtype == torch.float32 for p in half.model.parameters())
    assert 0 < abs(losses[0][0] - losses[1][0]) < 1e-2
    assert abs(losses[0][-5:].mean() - losses[1][-5:].mean()) < 0.15
    assert losses[0][-5:].mean() < losses[0][0] - 0.5


def test_a_training_that_diverges_says_where():
    with pytest.raises(
        FloatingPointError, match=r"step \d+: loss .*lower the learning rate \(1e\+30 with adamw\)"
    ):
        training("adamw", lr=1e30).fit()


def test_loss_free_balancing_moves_the_bias_against_the_load():
    one = training("adamw", MIXTURE, steps=1)
    one.fit()
    load = torch.zeros(4)
    fresh = training("adamw", MIXTURE, steps=1)
    batch = fresh.corpus.batch(0, 4, 12, seed=3)
    load = fresh.model(batch[:, :-1], batch[:, 1:]).load[0].float()
    expected = 1e-3 * torch.sign(load.mean() - load)
    assert torch.equal(one.model.routers[0].selection_bias, expected)
    assert abs(one.record.last("max_violation") - float(load.max() / load.mean() - 1)) < 1e-6


def test_a_pickle_is_no_checkpoint(tmp_path):
    torch.save({"kind": "icml-sso-training"}, tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match="is no safetensors file"):
        training().fit(checkpoint=tmp_path / "c.safetensors", resume=True)
    with pytest.raises(ValueError, match="needs the checkpoint"):
        training().fit(resume=True)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    training("adamw").fit(until=2, checkpoint=path)
    training("adamw").save(path)
    with pytest.raises(ValueError, match=r"options.lr was 0.01, now 0.02"):
        training("adamw", lr=2e-2).load(path)
    with pytest.raises(ValueError, match=r"model.head_dim was 8, now 4"):
        training("adamw", TransformerConfig(**{**SMALL.__dict__, "head_dim": 4})).load(path)
    with pytest.raises(ValueError, match="seed was 3, now 4"):
        training("adamw", seed=4).load(path)
    changed = training("adamw")
    changed.step = 400
    changed.save(path)
    with pytest.raises(
        ValueError, match="does not hold the state of this training: step 400 of 12 with 0 rows"
    ):
        training("adamw").load(path)
    changed.step = 0
    del changed.model.lm_head
    changed.save(path)
    with pytest.raises(ValueError, match=r"(?s)does not hold the state of this training: .*lm_head"):
        training("adamw").load(path)


def test_a_plugged_in_optimizer_trains(monkeypatch):
    entry = Entry(
        Component(
            "other.nadam", "torch.optim:NAdam", summary="Adam with Nesterov", implements=("TorchOptimizer",)
        ),
        "optimizer",
        "other",
        "icml-other",
    )
    monkeypatch.setattr("icml_core.registry.Registry.entry", lambda self, name: entry)
    one = training("other.nadam", steps=30)
    assert isinstance(one.optimizer, torch.optim.NAdam)
    losses = one.fit().measured("cross_entropy")
    assert losses[-1] < losses[0] - 0.1
    solver = Entry(Component("other.s", "torch:nn", summary="a solver"), "solver", "other", "icml-other")
    monkeypatch.setattr("icml_core.registry.Registry.entry", lambda self, name: solver)
    with pytest.raises(UserError, match="other.s does not honour the contract TorchOptimizer"):
        training("other.s")


def test_optimizers_that_do_not_exist_are_refused():
    model = Transformer(SMALL)
    with pytest.raises(
        ValueError, match="no optimizer is called 'sgd'; there are adamw, muon, muonsphere, sso"
    ):
        named_optimizer("sgd", model, lr=0.1)
    with pytest.raises(ValueError, match="lr=0 must be positive"):
        named_optimizer("adamw", model, lr=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": float("nan")}, "lr=nan must be above 0"),
        ({"steps": 0}, "steps=0 must be above 0"),
        ({"clip": -1.0}, "clip=-1.0 must not be negative"),
        ({"micro_batch": 3}, "micro_batch=3 does not divide batch=4"),
        ({"warmup": 13}, "warmup=13 is longer than steps=12"),
        ({"precision": "half"}, "precision='half' is neither"),
    ],
)
def test_impossible_options_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        training(**change)


def test_a_corpus_beyond_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="the corpus has 64 tokens, the model 32"):
        Pretraining(SMALL, TokenCorpus([np.arange(64)], vocab_size=64))


def _train_in_a_process(rank, folder, count):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count
    )
    one = training("adamw", TWO_EXPERT_LAYERS, steps=5, checkpoint_every=0)
    one.fit(until=3, checkpoint=folder / "half.safetensors")
    torch.distributed.barrier()
    resumed = training("adamw", TWO_EXPERT_LAYERS, steps=5, checkpoint_every=0)
    resumed.fit(checkpoint=folder / "half.safetensors", resume=True)
    torch.save((resumed.model.state_dict(), resumed.record.rows), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


TWO_EXPERT_LAYERS = TransformerConfig(
    **{**SMALL.__dict__, "moe": MoEConfig(4, 2, 8, first_dense_layers=0, aux_loss_coefficient=1.0)}
)


def test_two_processes_train_as_one(tmp_path):
    started = [subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path), "2"]) for rank in (0, 1)]
    assert [one.wait(timeout=120) for one in started] == [0, 0]
    alone = training("adamw", TWO_EXPERT_LAYERS, steps=5, checkpoint_every=0)
    alone.fit()
    (first, rows), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(first[name], second[name])
        assert torch.allclose(first[name], weight, atol=2e-5), name
    for row, expected in zip(rows, alone.record.rows, strict=True):
        assert row["max_violation"] == expected["max_violation"]
        assert abs(row["loss"] - expected["loss"]) < 1e-5


def test_a_batch_that_cannot_be_shared_is_refused(monkeypatch):
    monkeypatch.setattr("icml_sso.data_parallel.processes", lambda: 3)
    with pytest.raises(ValueError, match="a batch of 4 windows cannot be shared by 3 processes"):
        training("adamw").fit()


def test_the_record_as_csv_and_picture(tmp_path):
    record = training(steps=5).fit()
    record.write_csv(tmp_path / "r.csv")
    rows = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert [float(row["loss"]) for row in rows] == record.column("loss").tolist()
    assert rows[0]["validation"] == ""
    record.draw(tmp_path / "r.png", title="five steps")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert math.isnan(TrainingRecord().last("loss"))
    with pytest.raises(KeyError, match="'los' is none of step"):
        record.column("los")


OPTIONS = {"steps": 6, "batch": 2, "context": 16, "spectra_every": 2}


def test_the_job_leaves_its_files_and_resumes(tmp_path):
    result = pretrain(Run(tmp_path / "whole", quiet=True, device="cpu"), **OPTIONS)
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert names == {"checkpoint.safetensors", "health.json", "metrics.jsonl", "record.csv", "training.png"}
    assert result["training_tokens"] == 6 * 2 * 16
    assert abs(result["sigma_ratio_high"] - 1) < 0.05
    health = json.loads((tmp_path / "whole/health.json").read_text())
    assert health["model.layers.0.mlp"]["activation rms"] > 0
    assert health["model.layers.0.self_attn.o_proj.weight"]["sigma/R"] > 0.9
    lines = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]

    half = Run(tmp_path / "half", quiet=True, device="cpu")
    log = half.log

    def log_and_stop(step, **figures):
        log(step, **figures)
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    half.log = log_and_stop
    with pytest.raises(KeyboardInterrupt):
        pretrain(half, **OPTIONS)
    assert len((tmp_path / "half/record.csv").read_text().splitlines()) == 4
    again = pretrain(Run(tmp_path / "half", quiet=True, device="cpu", resumed=True), **OPTIONS)
    assert again == result
    assert (tmp_path / "half/record.csv").read_text() == (tmp_path / "whole/record.csv").read_text()


def test_the_job_reads_packed_tokens_and_text(tmp_path):
    np.random.default_rng(0).integers(300, size=5000).astype("<u2").tofile(tmp_path / "train.bin")
    result = pretrain(
        Run(tmp_path / "run", quiet=True, device="cpu"),
        corpus=tmp_path,
        vocab_size=300,
        optimizer="adamw",
        **OPTIONS,
    )
    assert abs(result["validation"] - math.log(300)) < 1.0
    (tmp_path / "a.txt").write_text("some text " * 99)
    assert open_corpus(tmp_path / "a.txt", vocab_size=256).vocab_size == 256
    with pytest.raises(ValueError, match="goes with packed tokens"):
        open_corpus(tmp_path / "a.txt", tmp_path / "train.bin", vocab_size=256)
    with pytest.raises(ValueError, match="did you mean 'tiny'"):
        pretrain(Run(tmp_path / "no", quiet=True), recipe="tinny")


if __name__ == "__main__":  # one of the processes of test_two_processes_train_as_one
    _train_in_a_process(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    sys.stderr.flush()
    os._exit(0)  # gloo's threads now and then abort an interpreter that ends; the results are written
