"""What `icml run` runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run, UserError, resumable

if TYPE_CHECKING:
    from icml_discrete_samplers.targets import Target

CHECKPOINT = "checkpoint.safetensors"


@resumable(may_change=("samples",))
def masked(
    *,
    run: Run,
    target: str = "ising_L4_b0.6",
    problem: Path | None = None,
    beta: float = 1.0,
    model: Literal["masked_mlp", "masked_vit"] = "masked_mlp",
    hidden: int = 256,
    layers: int = 4,
    loss: Literal["tb", "lv", "ce", "re_rf", "wdce"] = "tb",
    buffer: Literal["iw", "uniform", "density", "none"] | None = None,
    mcmc: str | None = None,
    steps: int = 20_000,
    batch: int = 128,
    k_min: int = 1,
    k_max: int = 1,
    lr: float = 1e-3,
    ema: float = 0.0,
    optimizer: str = "adamw",
    mcmc_every: int = 500,
    samples: int = 1000,
    checkpoint_every: int = 500,
    picture: bool = True,
) -> dict[str, Any]:
    """Train a sampler of a discrete energy, and draw weighted samples.

    Writes sampler.safetensors, samples.npz (x, log_w), figures.json, training.png, samples.png,
    metrics.jsonl, and of a labelled problem best.json: the lowest states found.

    Args:
        target: a named target: 9gmm, 40gmm_2d, manywell_4d, ising_L16_b0.6, potts_L16_q3_b1.2.
        problem: a QUBO or polynomial instead: .json, .npy, .npz.
        beta: inverse temperature of the problem.
        model: the network.
        hidden: width of the MLP.
        layers: hidden layers of the MLP.
        loss: trajectory balance, log variance, or a comparator (on-policy).
        buffer: how the replay buffer is drawn from; none trains on-policy. By default iw, and none for a
            comparator, which knows nothing else.
        mcmc: kernel of exploration, or none; by default hamming_ball where there is a buffer.
        steps: updates.
        batch: paths an update.
        k_min: fewest sites revealed a step in training.
        k_max: most sites revealed a step in training.
        lr: learning rate.
        ema: decay of averaged weights.
        optimizer: a name, such as adamw or sso.sso.
        mcmc_every: updates between two explorations.
        samples: weighted samples to draw.
        checkpoint_every: updates between two checkpoints.
        picture: draw the figures.
    """
    import numpy as np

    from icml_discrete_samplers.metrics import SamplerMetrics
    from icml_discrete_samplers.off_policy import OffPolicyTrainer

    given = _target(target, problem, beta, run.seed)
    if buffer is None:
        buffer = "none" if loss in ("ce", "re_rf", "wdce") else "iw"
    if mcmc is None:
        mcmc = "none" if buffer == "none" else "hamming_ball"
    trainer = _asked(
        OffPolicyTrainer,
        given.energy,
        model,
        seed=run.seed,
        device=run.device,
        network={"hidden": hidden, "layers": layers} if model == "masked_mlp" else {},
        loss=loss,
        buffer=None if buffer == "none" else buffer,
        mcmc=None if mcmc == "none" else mcmc,
        steps=steps,
        batch=batch,
        k=(k_min, k_max),
        lr=lr,
        ema=ema,
        optimizer=optimizer,
        mcmc_every=mcmc_every,
    )
    if run.resumed and run.file(CHECKPOINT).is_file():
        trainer.restore(run.file(CHECKPOINT))
    _train(run, trainer, steps, checkpoint_every)
    sampler = trainer.sampler()
    with run.path("sampler.safetensors") as temporary:
        sampler.save(temporary)
    x, log_w = sampler.sample_weighted(samples, seed=run.seed + 1)
    with run.path("samples.npz") as temporary, temporary.open("wb") as stream:
        np.savez(stream, x=x.cpu().numpy(), log_w=log_w.cpu().numpy())
    truth = _truth(given, run.seed + 2)
    figures = SamplerMetrics(given.energy, truth, seed=run.seed + 3).evaluate(sampler)
    if given.log_z is not None:
        figures["exact_log_z"] = given.log_z
    if problem is not None:
        states, energies = sampler.best(10, seed=run.seed + 4)
        rows = given.energy.labelled(states.cpu())
        best = [
            {"energy": e, "state": {str(k): v for k, v in row.items()}}
            for row, e in zip(rows, energies.tolist(), strict=True)
        ]
        _write_json(run, "best.json", {"fingerprint": given.energy.fingerprint, "states": best})
    _write_json(run, "figures.json", figures)
    if picture:
        _draw(run, trainer.history, given.energy, x.cpu(), truth)
    return {"target": given.name, "updates": trainer.step_, **figures}


def mcmc(
    *,
    run: Run,
    target: str = "ising_L16_b0.6",
    problem: Path | None = None,
    beta: float = 1.0,
    kernel: Literal[
        "hamming_ball", "categorical", "swendsen_wang", "single_site_mh", "gibbs", "swap"
    ] = "hamming_ball",
    chains: int = 64,
    steps: int = 2000,
    burn_in: int = 500,
    thin: int = 10,
    temperatures: list[float] | None = None,
    start: Path | None = None,
    picture: bool = True,
) -> dict[str, Any]:
    """Run Markov chains on a discrete energy, and say whether they agree.

    Writes samples.npz (x, log_density), figures.json, samples.png.

    Args:
        target: a named target, as for discrete-samplers.masked.
        problem: a QUBO or polynomial instead: .json, .npy, .npz.
        beta: inverse temperature of the problem.
        kernel: the transition.
        chains: how many.
        steps: recorded steps.
        burn_in: steps before.
        thin: steps between recorded draws.
        temperatures: rungs of parallel tempering: 1 and rising; inf gives log Z.
        start: states to begin with: .npy, .npz or .csv.
        picture: draw the figure.
    """
    import numpy as np

    from icml_discrete_samplers import mcmc as chains_of
    from icml_discrete_samplers.data_files import read_states
    from icml_discrete_samplers.diagnostics import AGREE

    given = _target(target, problem, beta, run.seed)
    x: Any = chains if start is None else read_states(start)
    with run.progress("chains", total=steps + burn_in) as bar:
        found = chains_of.run(
            given.energy,
            x,
            kernel,
            steps,
            thin,
            run.seed,
            burn_in=burn_in,
            temperatures=temperatures,
            device=run.device,
            callback=bar.advance,
        )
    with run.path("samples.npz") as temporary, temporary.open("wb") as stream:
        np.savez(stream, x=found.x.cpu().numpy(), log_density=found.log_density.cpu().numpy())
    figures: dict[str, Any] = {"accept_rate": found.accept_rate}
    if found.diagnoses:
        figures["mixed"] = bool(found.rhat <= AGREE)
    for name, value in (("rhat", found.rhat), ("ess", found.ess), ("time", found.autocorrelation_time)):
        if not np.isnan(value):  # JSON has no infinity, which is that of chains that never moved
            figures[name] = value if np.isfinite(value) else "inf"
    if temperatures is not None:
        figures["swap_rates"] = list(found.swap_rates)
    if found.log_z is not None:
        figures |= {"log_z": found.log_z, "log_z_se": found.log_z_se}
    _write_json(run, "figures.json", figures)
    if picture:
        from icml_discrete_samplers.figures import states

        with run.path("samples.png") as temporary:
            states(given.energy, found.x.cpu(), temporary)
    return {"target": given.name, **figures}


@resumable
def bridge(
    *,
    run: Run,
    data: Path | None = None,
    source: str = "9gmm",
    target: str = "9gmm",
    problem: Path | None = None,
    beta: float = 1.0,
    steps: int = 20,
    rounds: int = 50,
    updates: int = 2500,
    batch: int = 256,
    off_policy: bool = True,
    kernel: str = "hamming_ball",
    mcmc_steps: int = 200,
    hidden: int = 256,
    layers: int = 4,
    samples: int = 1000,
    picture: bool = True,
) -> dict[str, Any]:
    """Train a stochastic transport from data to an energy, and transport the data.

    Writes bridge.safetensors, transported.npz (x0, x1), training.png, samples.png, metrics.jsonl.

    Args:
        data: states to transport: .npy, .npz or .csv; by default samples of ``source``.
        source: a named target whose samples are the data.
        target: a named target: where the data go; its centres have another seed than the source's.
        problem: a QUBO or polynomial instead: .json, .npy, .npz.
        beta: inverse temperature of the problem.
        steps: N, of the chains.
        rounds: of iterative proportional fitting.
        updates: of each half of a round.
        batch: paths an update.
        off_policy: explore the energy by Markov chains.
        kernel: of these chains.
        mcmc_steps: their steps before each update.
        hidden: width of the networks.
        layers: residual layers.
        samples: states to transport.
        picture: draw the figures.
    """
    import numpy as np

    from icml_discrete_samplers.bridge import BridgeTrainer
    from icml_discrete_samplers.data_files import read_states
    from icml_discrete_samplers.figures import states, training_curves

    aim = _target(target, problem, beta, run.seed + 1)
    p0 = _target(source, None, 1.0, run.seed).sample(20_000, run.seed) if data is None else read_states(data)
    trainer = BridgeTrainer(
        p0,
        aim.energy,
        seed=run.seed,
        device=run.device,
        steps=steps,
        rounds=rounds,
        updates=updates,
        batch=batch,
        off_policy=off_policy,
        mcmc=kernel,
        mcmc_steps=mcmc_steps,
        hidden=hidden,
        layers=layers,
    )
    if run.resumed and run.file(CHECKPOINT).is_file():
        trainer.restore(run.file(CHECKPOINT))
    with run.progress("updates", total=2 * updates * (rounds - trainer.round_)) as bar:

        def report(round_: int, figures: dict[str, float]) -> None:
            run.log(round_, **figures)
            with run.path(CHECKPOINT) as temporary:
                trainer.save(temporary)

        found = trainer.fit(callback=report, progress=lambda loss: bar.advance(1, loss=loss))
    with run.path("bridge.safetensors") as temporary:
        found.save(temporary)
    x0 = trainer.x0(samples)
    x1 = found.transport(x0, run.seed)
    with run.path("transported.npz") as temporary, temporary.open("wb") as stream:
        np.savez(stream, x0=x0.cpu().numpy(), x1=x1.cpu().numpy())
    if picture:
        with run.path("training.png") as temporary:
            training_curves(found.history, temporary)
        with run.path("samples.png") as temporary:
            states(aim.energy, x1.cpu(), temporary, _truth(aim, run.seed, samples))
    return {"target": aim.name, "rounds": trainer.round_, "hamming": float((x0 != x1).double().sum(1).mean())}


def posterior(
    *,
    run: Run,
    data: Path | None = None,
    classes: list[int] | None = None,
    temperature: float = 1.0,
    codes: int = 6,
    codebook: int = 8,
    autoencoder_steps: int = 600,
    steps: int = 2000,
    batch: int = 128,
    samples: int = 1000,
    coverage: bool = True,
    picture: bool = True,
) -> dict[str, Any]:
    """Sample latents of images of some classes from a frozen generative model, without data.

    An autoencoder with discrete latents, a prior and a classifier are trained on the images and frozen; the
    posterior sampler sees only their functions. Writes sampler.safetensors, samples.npz (z, images),
    samples.png, figures.json.

    Args:
        data: MNIST-like images, a folder with IDX files or a .npz; by default scikit-learn's digits.
        classes: the classes wanted; by default 1 and 4.
        temperature: of the classifier.
        codes: latent sites.
        codebook: symbols of each.
        autoencoder_steps: updates of the generative model.
        steps: updates of the sampler.
        batch: paths an update.
        samples: latents to draw.
        coverage: afterwards score latents that independent Markov chains find.
        picture: draw the figure.
    """
    import numpy as np

    from icml_discrete_samplers.data_files import read_images
    from icml_discrete_samplers.figures import images as draw
    from icml_discrete_samplers.latent_images import digits, side, train_latent_images
    from icml_discrete_samplers.posterior import class_likelihood, fit_posterior

    wanted = [1, 4] if classes is None else classes
    images, labels = digits() if data is None else read_images(data)
    missing = sorted(set(wanted) - set(labels.tolist()))
    if missing:
        raise UserError(f"classes {missing} are not among the labels {sorted(set(labels.tolist()))[:20]}")
    with run.progress("autoencoder and prior", total=autoencoder_steps + max(1, autoencoder_steps)) as bar:
        latent = train_latent_images(
            images,
            labels,
            codes=codes,
            codebook=codebook,
            steps=autoencoder_steps,
            seed=run.seed,
            callback=lambda step, loss: bar.advance(1, loss=loss),
        ).to(run.device)
    loglik = class_likelihood(latent.classify, wanted, temperature)
    with run.progress("training", total=steps) as bar:

        def report(step: int, figures: dict[str, float]) -> None:
            if step % 10 == 0 or step == steps:
                run.log(step, **figures)
            bar.advance(1, loss=figures["loss"])

        _, sampler = fit_posterior(
            latent.prior_logprob,
            latent.decode,
            loglik,
            codes,
            codebook,
            steps=steps,
            batch=batch,
            seed=run.seed,
            device=run.device,
            callback=report,
            coverage=coverage,
            network={"hidden": 128, "layers": 2},
        )
    with run.path("sampler.safetensors") as temporary:
        sampler.save(temporary)
    z = sampler.sample(samples, seed=run.seed)
    decoded = latent.decode(z)
    found = latent.classify(decoded).argmax(1)
    z, decoded = z.cpu(), decoded.cpu()
    with run.path("samples.npz") as temporary, temporary.open("wb") as stream:
        np.savez(stream, z=z.numpy(), images=decoded.numpy())
    figures: dict[str, Any] = {
        "accuracy": float(sum((found == c).double().mean() for c in wanted)),
        "reconstruction_error": latent.error,
        "coverage": sampler.coverage_.share if sampler.coverage_ else None,
    }
    _write_json(run, "figures.json", figures)
    if picture:
        with run.path("samples.png") as temporary:
            draw([("posterior", decoded.numpy()), ("data", images.numpy())], side(images.shape[1]), temporary)
    return figures


def _target(name: str, problem: Path | None, beta: float, seed: int) -> Target:
    from icml_discrete_samplers.data_files import read_problem
    from icml_discrete_samplers.targets import Target, target

    try:
        if problem is not None:
            return Target(problem.name, read_problem(problem, beta))
        return target(name, seed)
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error


def _asked(make: Any, *args: Any, **options: Any) -> Any:
    """A trainer, or one line about options that do not fit."""
    try:
        return make(*args, **options)
    except ValueError as error:
        raise UserError(str(error)) from error


def _truth(given: Target, seed: int, n: int = 2000) -> Any:
    try:
        return given.sample(n, seed)
    except ValueError:
        return None


def _train(run: Run, trainer: Any, steps: int, every: int) -> None:
    """Train with progress, figures, and checkpoints between updates.

    Ctrl-C comes in the midst of an update, of which nothing is kept: --resume continues from the last
    checkpoint.
    """
    with run.progress("training", total=max(0, steps - trainer.step_)) as bar:

        def report(step: int, figures: dict[str, float]) -> None:
            if step % 10 == 0 or step == steps:
                run.log(step, **figures)
            bar.advance(1, loss=figures["loss"])
            if every and (step % every == 0 or step == steps):
                with run.path(CHECKPOINT) as temporary:
                    trainer.save(temporary)

        trainer.fit(callback=report)


def _draw(run: Run, history: list[dict[str, float]], energy: Any, x: Any, truth: Any) -> None:
    from icml_discrete_samplers.figures import states, training_curves

    with run.path("training.png") as temporary:
        training_curves(history, temporary)
    with run.path("samples.png") as temporary:
        states(energy, x, temporary, truth)


def _write_json(run: Run, name: str, value: Any) -> None:
    with run.path(name) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
