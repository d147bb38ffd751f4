"""Training against forces whose potential is known."""

import json

import numpy as np
import pytest
import torch
from icml_core.checkpoint import load_state, save_state
from icml_flashschnet.force_data import batches, force_data
from icml_flashschnet.force_matching import ForceMatcher, TrainingOptions
from icml_flashschnet.potential import SumPotential
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig
from icml_flashschnet.training_state import KIND
from safetensors import safe_open
from safetensors.torch import save_file

CONFIG = SchNetConfig(n_types=3, hidden=12, filters=12, n_rbf=12, layers=1, r_cut=6.0, out=(12,))
QUICK = TrainingOptions(epochs=6, batch_size=32, learning_rate=1e-2, ema=0.8, patience=None, weight_decay=0.0)
SQUARE = np.array([[0.0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 1]])
REST = 2.5


def springs(x):
    """Forces of springs between all beads: minus the gradient of sum (r - 2.5)^2 / 2."""
    d = x[:, :, None] - x[:, None]
    n = x.shape[1]
    r = np.sqrt((d**2).sum(-1)) + np.eye(n)
    return -((((r - REST) / r) * (1 - np.eye(n)))[..., None] * d).sum(2)


class SpringPrior(torch.nn.Module):
    """The same springs as a potential, scaled."""

    r_cut = 0.0

    def __init__(self, k=1.0):
        super().__init__()
        self.k = k

    def neighbours(self, pos, batch=None, *, n_replicas=None, skin=0.0):
        return None

    def forward(self, pos, types, batch=None, *, n_replicas=None, nlist=None):
        x = pos.view(n_replicas or 1, -1, 3)
        i, j = torch.triu_indices(x.shape[1], x.shape[1], 1)
        r = (x[:, i] - x[:, j]).norm(dim=2)
        return (0.5 * self.k * (r - REST) ** 2).double().sum(1)

    def energy_forces(self, pos, types, batch=None, *, n_replicas=None, nlist=None, check=True):
        with torch.enable_grad():
            pos = pos.detach().requires_grad_()
            energy = self(pos, types, n_replicas=n_replicas)
            return energy.detach(), -torch.autograd.grad(energy.sum(), pos)[0]


def frames(n=150, seed=0, beads=4):
    rng = np.random.default_rng(seed)
    x = SQUARE[:beads] + 0.3 * rng.standard_normal((n, beads, 3))
    return x, springs(x)


@pytest.fixture(scope="module")
def trained():
    x, f = frames(300)
    options = TrainingOptions(
        epochs=18, batch_size=32, learning_rate=2e-2, schedule="cosine", ema=0.9, weight_decay=0.0
    )
    return ForceMatcher(CONFIG, options=options).fit(x, f, [0, 1, 2, 0])


def test_the_network_learns_the_forces_of_a_known_potential(trained):
    x, f = frames(60, seed=9)
    assert trained.score(x, f) > 0.97
    residual = np.sqrt(((trained.predict(x) - f) ** 2).mean())
    assert residual < 0.2 * np.sqrt((f**2).mean())
    held_out = [a[-30:] for a in frames(300)]
    error = np.sqrt(((trained.predict(held_out[0]) - held_out[1]) ** 2).mean())
    assert trained.errors_.model == pytest.approx(error, rel=1e-4)
    assert trained.errors_.prior == trained.errors_.forces


def test_the_learnt_energy_differs_as_the_known_one(trained):
    """Forces fix the energy up to a constant: differences along the data must agree."""
    x, _ = frames(80, seed=4)
    pos = torch.as_tensor(x.reshape(-1, 3), dtype=torch.float32)
    types = torch.tensor([0, 1, 2, 0])
    learnt = trained.network_(pos, types, n_replicas=80).detach().numpy()
    known = SpringPrior()(torch.as_tensor(x.reshape(-1, 3)), types, n_replicas=80).numpy()
    assert np.corrcoef(learnt, known)[0, 1] > 0.98
    assert np.polyfit(known, learnt, 1)[0] == pytest.approx(1.0, abs=0.1)


def test_history_tells_every_epoch(trained):
    errors = [line["validation_rmse"] for line in trained.history_]
    assert [line["epoch"] for line in trained.history_] == list(range(1, 19))
    assert errors[-1] < 0.5 * errors[0]
    assert trained.errors_.model == pytest.approx(min(errors), rel=1e-6)
    rates = [line["learning_rate"] for line in trained.history_]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 1e-3


def test_a_prior_that_explains_everything_leaves_nothing_to_learn():
    x, f = frames()
    matcher = ForceMatcher(CONFIG, SpringPrior(), options=QUICK).fit(x, f, [0, 1, 2, 0])
    assert matcher.errors_.prior < 1e-5
    half = ForceMatcher(CONFIG, SpringPrior(0.5), options=QUICK).fit(x, f, [0, 1, 2, 0])
    assert half.errors_.prior == pytest.approx(0.5 * half.errors_.forces, rel=1e-5)
    assert half.errors_.model < half.errors_.prior
    potential = half.potential()
    assert isinstance(potential, SumPotential)
    pos = torch.as_tensor(x[:3].reshape(-1, 3), dtype=torch.float32)
    _, forces = potential.energy_forces(pos, torch.tensor([0, 1, 2, 0]), n_replicas=3)
    np.testing.assert_allclose(half.predict(x[:3]), forces.view(3, 4, 3).numpy(), rtol=1e-5, atol=1e-5)


def test_systems_of_different_size_train_together():
    (x4, f4), (x3, f3) = frames(90), frames(90, seed=1, beads=3)
    matcher = ForceMatcher(CONFIG, [None, SpringPrior(0.5)], options=QUICK).fit(
        [x4, x3], [f4, f3], [[0, 1, 2, 0], [0, 1, 2]]
    )
    assert matcher.errors_.model < matcher.errors_.prior
    assert matcher.predict(x3, system=1).shape == x3.shape
    assert matcher.score(x4, f4) > 0


def test_training_through_tables_takes_the_gradients_of_the_networks():
    """The interpolated filters are so near to the networks that the steps agree to four digits."""
    x, f = frames(24)
    data = force_data(x, f, [0, 1, 2, 0], prior=None, dtype=torch.float64, device=torch.device("cpu"))
    gradients = []
    for table in (0, 8):
        options = TrainingOptions(table=table, clip=1e9, chunk=10)
        matcher = ForceMatcher(CONFIG, options=options)
        network = FlashSchNet(CONFIG, seed=1, kernel="torch").double()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
        system, frame = torch.zeros(24, dtype=torch.int64), torch.arange(24)
        squares, count = matcher._step(network, optimizer, [data], system, frame)
        assert count == 24 * 4 * 3
        gradients.append({name: p.grad.clone() for name, p in network.named_parameters()})
        residual = network.energy_forces(data.coords.view(-1, 3), data.types, n_replicas=24)[1]
        assert squares == pytest.approx(float((residual - data.delta.view(-1, 3)).square().sum()), rel=1e-3)
    for name, exact in gradients[0].items():
        assert (gradients[1][name] - exact).abs().max() <= 1e-3 * exact.abs().max(), name


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_resumed_training_is_the_uninterrupted_one(tmp_path, schedule):
    x, f = frames()
    options = TrainingOptions(**{**QUICK.__dict__, "schedule": schedule, "loss": "rmse"})
    whole = ForceMatcher(CONFIG, options=options, seed=3).fit(x, f, [0, 1, 2, 0])

    def stop(line):
        if line["epoch"] == 3:
            raise KeyboardInterrupt

    file = tmp_path / "state.safetensors"
    first = ForceMatcher(CONFIG, options=options, seed=3)
    with pytest.raises(KeyboardInterrupt):
        first.fit(x, f, [0, 1, 2, 0], checkpoint=file, callback=stop)
    assert len(first.history_) == 3
    assert first.predict(x[:2]).shape == (2, 4, 3)
    second = ForceMatcher(CONFIG, options=options, seed=3)
    second.fit(x, f, [0, 1, 2, 0], checkpoint=file, resume=True)
    assert second.history_ == whole.history_
    for a, b in zip(second.network_.parameters(), whole.network_.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_optimizer_by_name_trains_and_resumes(tmp_path):
    """RMSprop from torch, whose state is not AdamW's, and which has weight decay too."""
    x, f = frames(40)
    options = TrainingOptions(
        **{**QUICK.__dict__, "epochs": 4, "optimizer": "rmsprop", "learning_rate": 1e-3}
    )
    whole = ForceMatcher(CONFIG, options=options, seed=3).fit(x, f, [0, 1, 2, 0])
    plain = TrainingOptions(**{**options.__dict__, "optimizer": "adamw"})
    assert ForceMatcher(CONFIG, options=plain, seed=3).fit(x, f, [0, 1, 2, 0]).history_ != whole.history_
    file = tmp_path / "state.safetensors"
    half = TrainingOptions(**{**options.__dict__, "epochs": 2})
    ForceMatcher(CONFIG, options=half, seed=3).fit(x, f, [0, 1, 2, 0], checkpoint=file)
    again = ForceMatcher(CONFIG, options=options, seed=3)
    again.fit(x, f, [0, 1, 2, 0], checkpoint=file, resume=True)
    assert again.history_ == whole.history_
    assert whole.history_[-1]["train_rmse"] < whole.history_[0]["train_rmse"]


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    x, f = frames(40)
    file = tmp_path / "state.safetensors"
    options = TrainingOptions(**{**QUICK.__dict__, "epochs": 1})
    ForceMatcher(CONFIG, options=options).fit(x, f, [0, 1, 2, 0], checkpoint=file)
    changed = TrainingOptions(**{**options.__dict__, "learning_rate": 1e-3})
    with pytest.raises(ValueError, match=r"another training: options.learning_rate was 0.01, now 0.001"):
        ForceMatcher(CONFIG, options=changed).fit(x, f, [0, 1, 2, 0], checkpoint=file, resume=True)
    with pytest.raises(ValueError, match="another training: data was"):
        ForceMatcher(CONFIG, options=options).fit(x, 2 * f, [0, 1, 2, 0], checkpoint=file, resume=True)
    longer = TrainingOptions(**{**options.__dict__, "epochs": 2})
    resumed = ForceMatcher(CONFIG, options=longer).fit(x, f, [0, 1, 2, 0], checkpoint=file, resume=True)
    assert [line["epoch"] for line in resumed.history_] == [1, 2]


def test_hostile_checkpoints_are_refused(tmp_path):
    x, f = frames(40)
    file = tmp_path / "state.safetensors"
    options = TrainingOptions(**{**QUICK.__dict__, "epochs": 1})

    def resume():
        ForceMatcher(CONFIG, options=options).fit(x, f, [0, 1, 2, 0], checkpoint=file, resume=True)

    file.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ValueError, match="is no safetensors file"):
        resume()
    save_file({"weights/a": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match="not the state of a icml-flashschnet-training"):
        resume()
    file.unlink()
    resume()
    identity = _identity(file)
    state = load_state(file, kind=KIND, identity=identity)
    lacking = {name: weight for name, weight in state["best"].items() if name != "embedding.weight"}
    save_state(file, {**state, "best": lacking}, kind=KIND, identity=identity)
    with pytest.raises(ValueError, match="lacks best of embedding.weight"):
        resume()
    other = {**state["weights"], "embedding.weight": torch.zeros(1, 1)}
    save_state(file, {**state, "weights": other}, kind=KIND, identity=identity)
    with pytest.raises(ValueError, match=r"weights embedding.weight of shape \[1, 1\] is no weight"):
        resume()
    save_state(file, state, kind=KIND, identity=identity)
    resume()
    assert state["epoch"] == 1


def _identity(file):
    with safe_open(file, framework="pt") as opened:
        return json.loads(opened.metadata()["identity"])


def test_training_stops_when_the_held_out_error_no_longer_falls():
    rng = np.random.default_rng(0)
    x = SQUARE + 0.3 * rng.standard_normal((60, 4, 3))
    noise = rng.standard_normal((60, 4, 3))
    options = TrainingOptions(**{**QUICK.__dict__, "epochs": 200, "patience": 3, "learning_rate": 0.05})
    matcher = ForceMatcher(CONFIG, options=options).fit(x, noise, [0, 1, 2, 0])
    best = min(range(len(matcher.history_)), key=lambda k: matcher.history_[k]["validation_rmse"])
    assert len(matcher.history_) == best + 1 + 3
    assert matcher.errors_.model == pytest.approx(matcher.history_[best]["validation_rmse"], rel=1e-6)


def test_held_out_frames_are_the_last_block_and_never_trained_on():
    x, f = frames(40)
    data = force_data(x, f, [0, 1, 2, 0], prior=None, dtype=torch.float64, device=torch.device("cpu"))
    training, held_out = data.split(0.1)
    np.testing.assert_array_equal(training.coords.numpy(), x[:36])
    np.testing.assert_array_equal(held_out.coords.numpy(), x[36:])
    seen = []
    for system, frame in batches([training, held_out], 7, generator=torch.Generator().manual_seed(1)):
        seen += list(zip(system.tolist(), frame.tolist(), strict=True))
    assert sorted(seen) == [(0, t) for t in range(36)] + [(1, t) for t in range(4)]
    assert seen != sorted(seen)


def test_units_are_converted():
    x, f = frames(60)
    options = TrainingOptions(**{**QUICK.__dict__, "epochs": 1})
    plain = ForceMatcher(CONFIG, options=options).fit(x, f, [0, 1, 2, 0])
    nm = ForceMatcher(CONFIG, options=options, units=("nm", "kJ/mol/nm")).fit(x / 10, f * 41.84, [0, 1, 2, 0])
    assert nm.history_[0]["train_rmse"] == pytest.approx(plain.history_[0]["train_rmse"], rel=1e-5)
    np.testing.assert_allclose(nm.predict(x[:3] / 10) / 41.84, plain.predict(x[:3]), rtol=1e-3, atol=1e-4)
    with pytest.warns(UserWarning, match="likely unit: nm"):
        ForceMatcher(CONFIG, options=options).fit(x / 10, f, [0, 1, 2, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x, f: (x, np.zeros((40, 97, 3)), [0, 1, 2, 0]),
            "97 atoms, not of 4 beads; map them with a force_map",
        ),
        (lambda x, f: (x, f[:30], [0, 1, 2, 0]), r"coords \[40, 4, 3\] and forces \[30, 4, 3\] differ"),
        (lambda x, f: (x[0], f[0], [0, 1, 2, 0]), r"coords must be \[frames, beads, 3\], got \[4, 3\]"),
        (lambda x, f: (x, f, [0, 1]), r"types must be \[4\], one a bead, got \[2\]"),
        (lambda x, f: (x, np.where(f > 0, np.nan, f), [0, 1, 2, 0]), "forces of frame 0 are not finite"),
        (lambda x, f: (x[:1], f[:1], [0, 1, 2, 0]), "1 frames are too few"),
        (lambda x, f: ([x, x], [f], [[0, 1, 2, 0]]), "of 2, 1 and 1 systems"),
        (lambda x, f: (x, f, [0, 1, 2, 7]), "type 7 >= n_types 3"),
    ],
)
def test_bad_data_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        ForceMatcher(CONFIG, options=QUICK).fit(*change(*frames(40)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
        ({"validation": 1.0}, "validation must lie between 0 and 1"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1"),
        ({"patience": 0}, "patience must be at least 1 or None"),
        ({"schedule": "step"}, "schedule must be constant or cosine"),
        ({"loss": "mae"}, "loss must be mse or rmse"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"),
        ({"table": -1}, "table must not be negative"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingOptions(**options)


def test_an_untrained_matcher_says_so():
    with pytest.raises(RuntimeError, match="call fit first"):
        ForceMatcher(CONFIG).predict(frames(2)[0])
