"""Langevin steps against published random numbers, hand-written updates and exactly solvable systems."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_kernels import baoab_drift, blown_replicas, brownian_step, half_kick, philox_normal
from icml_kernels.molecules.langevin_baoab import ACCELERATION, BOLTZMANN, cpu, reference
from icml_kernels.molecules.langevin_baoab.cases import CASES, state, steps
from icml_kernels.testing import use_route

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.fixture(params=["auto", "reference"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ICML_KERNELS", request.param)
    return request.param


def kelvin(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert tuple(reference.philox_4x32(torch.tensor(counter), key).tolist()) == words
    compiled = cpu.philox_words(*(np.uint64(word) for word in (*counter, *key)))
    assert tuple(int(word) for word in compiled) == words


def test_normals_are_box_and_mullers_of_the_published_words(route: str) -> None:
    (_, key, words) = KNOWN_ANSWERS[0]
    u = [(word + 0.5) / 2**32 for word in words]
    first, second = (math.sqrt(-2.0 * math.log(u[k])) for k in (0, 2))
    expected = (
        first * math.cos(2 * math.pi * u[1]),
        first * math.sin(2 * math.pi * u[1]),
        second * math.cos(2 * math.pi * u[3]),
    )
    assert key == (0, 0)
    normals = philox_normal(0, torch.tensor([0]), 0, 1)
    assert normals[0, 0].tolist() == pytest.approx(expected, abs=1e-14)


def test_normals_are_standard_and_independent(route: str) -> None:
    n = 2**16
    a = philox_normal(3, torch.arange(2), 5, n // 2)
    flat = a.reshape(-1, 3)
    bound = 5.0 / math.sqrt(n)
    for power, moment, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        error = (flat**power).mean(0) - moment
        assert error.abs().max() < bound * math.sqrt(spread)
    # 6.66 is the farthest that 32-bit uniforms reach; 4.4 is exceeded once in 2**16 on the average.
    assert 3.5 < flat.abs().max() < 6.66
    others = [
        philox_normal(3, torch.arange(2), 6, n // 2),
        philox_normal(4, torch.arange(2), 5, n // 2),
        philox_normal(3, torch.arange(2, 4), 5, n // 2),
        philox_normal(3, torch.arange(2), 5, n // 2, stream=1),
        philox_normal(3, torch.arange(2), 5 + 2**32, n // 2),
        philox_normal(3 + 2**32, torch.arange(2), 5, n // 2),
        a.roll(1, 1),
    ]
    assert (flat.T @ flat / n - torch.eye(3)).abs().max() < bound * math.sqrt(2.0)
    for other in others:
        assert (flat.T @ other.reshape(-1, 3) / n).abs().max() < bound


def test_noise_depends_on_nothing_but_its_key(route: str) -> None:
    all_of_it = philox_normal(9, torch.tensor([4, 0, 2**31 + 5]), 12, 20)
    for row, number in enumerate((4, 0, 2**31 + 5)):
        assert torch.equal(
            philox_normal(9, torch.tensor([number]), torch.tensor(12), 13), all_of_it[[row], :13]
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_drift_is_the_written_update(dtype: torch.dtype, route: str) -> None:
    s = state(dtype=dtype)
    temperature, friction, dt = kelvin(300.0, 350.0, 400.0, dtype=dtype), 2.0, 0.004
    pos, vel = baoab_drift(**s, temperature=temperature, friction=friction, dt=dt, seed=5, step=2**33)
    x, v, f, m = (s[name].double().numpy() for name in ("pos", "vel", "force", "mass"))
    noise = philox_normal(5, torch.arange(3), 2**33, 7).numpy()
    c = np.exp(-friction * dt)
    kt = 0.0019872041 * np.array([300.0, 350.0, 400.0])[:, None, None]
    v = v + dt / 2 * 418.4 * f / m[:, None]
    x = x + dt / 2 * v
    v = c * v + np.sqrt(1 - c**2) * np.sqrt(kt * 418.4 / m[:, None]) * noise
    x = x + dt / 2 * v
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-13, "atol": 1e-13}
    np.testing.assert_allclose(pos.numpy(), x, **tolerance)
    np.testing.assert_allclose(vel.numpy(), v, **tolerance)
    kicked = half_kick(vel, s["force"], s["mass"], dt=dt)
    np.testing.assert_allclose(kicked.numpy(), v + dt / 2 * 418.4 * f / m[:, None], **tolerance)
    assert pos.dtype == vel.dtype == kicked.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype: torch.dtype) -> None:
    with use_route("reference"):
        expected = steps(dtype, *case.arguments())
    with use_route("auto"):
        actual = steps(dtype, *case.arguments())
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-6}[dtype]
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)


def test_replicas_do_not_know_of_each_other_nor_of_chunks(route: str) -> None:
    s = state(n_replicas=4)
    temperature = kelvin(290.0, 300.0, 310.0, 320.0)

    def run(chosen: list[int], pieces: list[range]) -> torch.Tensor:
        numbers = torch.tensor(chosen)
        x, v, f = (s[name][numbers] for name in ("pos", "vel", "force"))
        for piece in pieces:
            for step in piece:
                x, v = baoab_drift(
                    x,
                    v,
                    f,
                    s["mass"],
                    temperature=temperature[numbers],
                    friction=1.0,
                    dt=0.004,
                    seed=7,
                    step=step,
                    replica=numbers,
                )
                f = -x
                v = half_kick(v, f, s["mass"], dt=0.004)
        return x

    together = run([0, 1, 2, 3], [range(10)])
    assert torch.equal(run([2], [range(4), range(4, 10)])[0], together[2])
    assert torch.equal(run([3, 1], [range(10)]), together[[3, 1]])


def test_velocity_verlet_conserves_its_shadow_energy(route: str) -> None:
    # Of a harmonic oscillator, v²/2 + ω² (1 - ω² dt²/4) x²/2 is conserved to rounding at any step size.
    dt, omega2 = 0.03, torch.tensor([50.0, 400.0, 1000.0], dtype=torch.float64)
    mass = torch.full((3,), 12.0, dtype=torch.float64)
    k = omega2 * mass / ACCELERATION
    x = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v, f = x.flip(1) * 3, -k[:, None] * x

    def shadow() -> torch.Tensor:
        return (v**2 + (omega2 * (1 - omega2 * dt**2 / 4))[:, None] * x**2) / 2

    start = shadow()
    for step in range(300):
        x, v = baoab_drift(
            x, v, f, mass, temperature=kelvin(300, 300), friction=0.0, dt=dt, seed=0, step=step
        )
        f = -k[:, None] * x
        v = half_kick(v, f, mass, dt=dt)
    torch.testing.assert_close(shadow(), start, rtol=1e-10, atol=1e-10)


def test_baoab_samples_a_harmonic_well_exactly_at_a_large_step() -> None:
    # <x²> = kT/k for any stable step; at ω dt = 1 velocity Verlet's own shadow would give 4/3 of it.
    n_replicas, n_beads, mass = 64, 64, 12.0
    temperature = torch.linspace(250.0, 350.0, n_replicas, dtype=torch.float64)
    k = 2.0
    omega = math.sqrt(k * ACCELERATION / mass)
    masses = torch.full((n_beads,), mass, dtype=torch.float64)
    kt = (BOLTZMANN * temperature)[:, None, None]
    numbers = torch.arange(n_replicas)
    x = philox_normal(1, numbers, 0, n_beads, stream=1) * torch.sqrt(kt / k)
    v = philox_normal(1, numbers, 0, n_beads, stream=2) * torch.sqrt(kt * ACCELERATION / mass)
    f, squares, n_steps = -k * x, 0.0, 60
    for step in range(n_steps):
        x, v = baoab_drift(
            x, v, f, masses, temperature=temperature, friction=omega, dt=1.0 / omega, seed=2, step=step
        )
        f = -k * x
        v = half_kick(v, f, masses, dt=1.0 / omega)
        squares += float((x**2 / (kt / k)).mean()) / n_steps
    # At least 5 independent times of 12288 coordinates: sqrt(2 / 61440) = 0.006.
    assert squares == pytest.approx(1.0, abs=0.025)


def test_free_particles_keep_their_temperature(route: str) -> None:
    temperature = kelvin(200.0, 300.0, 600.0)
    n_beads = 4000
    mass = torch.linspace(1.0, 50.0, n_beads, dtype=torch.float64)
    x, v = torch.zeros(2, 3, n_beads, 3, dtype=torch.float64)
    for step in range(8):
        # exp(-2) of the old velocity is left at each step.
        x, v = baoab_drift(
            x, v, v * 0, mass, temperature=temperature, friction=2.0, dt=1.0, seed=3, step=step
        )
    kinetic = 0.5 * (mass[:, None] * v**2).sum((1, 2)) / ACCELERATION
    expected = 1.5 * n_beads * BOLTZMANN * temperature
    # The relative spread of a chi-squared variable with 12000 degrees is sqrt(2 / 12000) = 0.013.
    torch.testing.assert_close(kinetic, expected, rtol=0.055, atol=0.0)


def test_overdamped_steps_sample_a_harmonic_well_exactly_at_a_large_step() -> None:
    # With a = dt D k / kT = 1/2 Euler's scheme would give 1 / (1 - a/2) = 4/3 of kT/k.
    n_replicas, n_beads, k, friction = 64, 64, 3.0, 50.0
    temperature = torch.linspace(250.0, 350.0, n_replicas, dtype=torch.float64)
    mass = torch.full((n_beads,), 12.0, dtype=torch.float64)
    dt = 0.5 * friction * 12.0 / (ACCELERATION * k)
    kt = (BOLTZMANN * temperature)[:, None, None]
    x = torch.zeros(n_replicas, n_beads, 3, dtype=torch.float64)
    squares, n_steps, burn = 0.0, 60, 20
    for step in range(n_steps + burn):
        x = brownian_step(
            x, -k * x, mass, temperature=temperature, friction=friction, dt=dt, seed=4, step=step
        )
        squares += float((x**2 / (kt / k)).mean()) / n_steps if step >= burn else 0.0
    assert squares == pytest.approx(1.0, abs=0.02)


def test_overdamped_step_is_the_written_update(route: str) -> None:
    s = state()
    temperature = kelvin(300.0, 350.0, 400.0)
    new = brownian_step(
        s["pos"], s["force"], s["mass"], temperature=temperature, friction=5.0, dt=0.01, seed=1, step=9
    )
    kt = BOLTZMANN * temperature[:, None, None]
    diffusion = kt * 418.4 / (s["mass"][:, None] * 5.0)
    numbers = torch.arange(3)
    noise = (philox_normal(1, numbers, 9, 7) + philox_normal(1, numbers, 10, 7)) / 2
    expected = s["pos"] + 0.01 * diffusion * s["force"] / kt + torch.sqrt(2 * diffusion * 0.01) * noise
    torch.testing.assert_close(new, expected, rtol=1e-13, atol=1e-13)


def test_frozen_replicas_stay_and_the_others_go_on(route: str) -> None:
    s = state()
    options = {"temperature": kelvin(300, 300, 300), "friction": 1.0, "dt": 0.004, "seed": 1, "step": 0}
    pos, vel = baoab_drift(**s, **options)
    kicked = half_kick(s["vel"], s["force"], s["mass"], dt=0.004)
    overdamped = brownian_step(s["pos"], s["force"], s["mass"], **options)
    s["force"][1] = float("nan")
    frozen = torch.tensor([False, True, False])
    new_pos, new_vel = baoab_drift(**s, **options, frozen=frozen)
    new_kicked = half_kick(s["vel"], s["force"], s["mass"], dt=0.004, frozen=frozen)
    new_overdamped = brownian_step(s["pos"], s["force"], s["mass"], **options, frozen=frozen)
    for new, free, still in (
        (new_pos, pos, s["pos"]),
        (new_vel, vel, s["vel"]),
        (new_kicked, kicked, s["vel"]),
        (new_overdamped, overdamped, s["pos"]),
    ):
        assert torch.equal(new[1], still[1])
        assert torch.equal(new[[0, 2]], free[[0, 2]])


def test_blown_replicas_are_told_apart() -> None:
    s = state(n_replicas=5)
    dt = 0.004
    s["force"][:] = 0.0
    s["force"][0, 2, 1] = 1.001 * s["mass"][2] / (418.4 * dt**2)
    s["force"][1, 2, 1] = 0.999 * s["mass"][2] / (418.4 * dt**2)
    s["force"][2, 6, 0] = float("nan")
    s["pos"][3, 0, 2] = float("inf")
    blown = blown_replicas(s["pos"], s["force"], s["mass"], dt=dt)
    assert blown.tolist() == [True, False, True, True, False]


def test_nothing_given_is_changed(route: str) -> None:
    s = state()
    before = {name: tensor.clone() for name, tensor in s.items()}
    baoab_drift(**s, temperature=kelvin(300, 300, 300), friction=1.0, dt=0.004, seed=1, step=0)
    half_kick(s["vel"], s["force"], s["mass"], dt=0.004)
    assert all(torch.equal(before[name], s[name]) for name in s)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1)])
def test_empty_and_single_systems(shape: tuple[int, int], route: str) -> None:
    x = torch.zeros(*shape, 3)
    temperature = torch.full((shape[0],), 300.0)
    pos, vel = baoab_drift(
        x, x, x, torch.ones(shape[1]), temperature=temperature, friction=1.0, dt=0.01, seed=0, step=0
    )
    assert pos.shape == vel.shape == x.shape
    assert philox_normal(0, torch.arange(shape[0]), 0, shape[1]).shape == x.shape


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"vel": torch.zeros(3, 6, 3, dtype=torch.float64)}, ValueError, "vel has shape"),
        ({"pos": torch.zeros(3, 7, 3)}, TypeError, "dtype"),
        ({"mass": torch.ones(6, dtype=torch.float64)}, ValueError, "mass has shape"),
        ({"temperature": kelvin(300.0)}, ValueError, "temperature has shape"),
        ({"friction": -1.0}, ValueError, "friction=-1.0"),
        ({"friction": float("nan")}, ValueError, "friction=nan"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": 2**63}, ValueError, "seed="),
        ({"replica": torch.arange(2)}, ValueError, "replica has shape"),
        ({"replica": torch.zeros(3)}, ValueError, "replica is torch.float32"),
        ({"frozen": torch.zeros(3, dtype=torch.int64)}, ValueError, "frozen is torch.int64"),
        ({"step": torch.zeros(2, dtype=torch.int64)}, ValueError, "step has shape"),
    ],
)
def test_bad_input_is_named(change: dict, error: type[Exception], message: str) -> None:
    arguments = {
        **state(),
        "temperature": kelvin(300, 300, 300),
        "friction": 1.0,
        "dt": 0.004,
        "seed": 1,
        "step": 0,
        **change,
    }
    with pytest.raises(error, match=message):
        baoab_drift(**arguments)


def test_overdamped_motion_needs_friction() -> None:
    s = state()
    with pytest.raises(ValueError, match="overdamped motion needs"):
        brownian_step(
            s["pos"], s["force"], s["mass"], temperature=kelvin(1, 1, 1), friction=0.0, dt=0.1, seed=0, step=0
        )


def test_random_streams_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="stream=65536"):
        philox_normal(0, torch.arange(2), 0, 3, stream=2**16)
    with pytest.raises(ValueError, match="n_beads=-1"):
        philox_normal(0, torch.arange(2), 0, -1)


def test_the_operators_keep_the_rules_of_pytorch() -> None:
    s = state()
    where = (torch.arange(3), torch.tensor([False, True, False]), torch.tensor(4))
    per_step = (kelvin(300, 310, 320), *where, 1, 1.0, 0.004)
    ops = torch.ops.icml
    for op, arguments in (
        (ops.baoab_drift, (s["pos"], s["vel"], s["force"], s["mass"], *per_step)),
        (ops.brownian_step, (s["pos"], s["force"], s["mass"], *per_step)),
        (ops.half_kick, (s["vel"], s["force"], s["mass"], where[1], 0.004)),
        (ops.philox_normal, (where[0], where[2], 5, 1, 2)),
    ):
        assert set(torch.library.opcheck(op.default, arguments).values()) == {"SUCCESS"}
