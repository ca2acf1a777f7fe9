"""Claims about the two-arm softmax bandit, where the reduction is exact."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxgrpo.lab.algorithm import Algorithm
from jaxgrpo.lab.claims import Claim, Prediction, largest_absolute, largest_relative
from jaxgrpo.lab.dynamics import at_rest, cycle_of, dynamics_of
from jaxgrpo.lab.policies import SoftmaxBandit
from jaxgrpo.lab.tasks import first_arm
from jaxgrpo.lab.train import train_grpo
from jaxgrpo.theory import cycle as theory
from jaxgrpo.theory import groups
from jaxgrpo.theory.hyperparameters import Hyperparameters
from jaxgrpo.theory.reduction import reduce
from jaxgrpo.theory.task import Task

BETA = 0.5
MOMENTA = (0.0, 0.5, 0.9)
INTERVALS = (1, 2, 4, 8, 16)
GROUPS = (2, 4, 8, 16, 32)


def _anchored():
    """The paper's setting: mean-only advantage, penalty in the reward, so that only the stale policy acts."""
    reference = SoftmaxBandit.with_success(0.5)
    at_plateau = SoftmaxBandit(jnp.asarray([[1.0 / BETA]]))
    algorithm = Algorithm("mean", penalty="reward", beta=BETA)
    return dynamics_of(at_plateau, first_arm(), algorithm, reference=reference), at_plateau


def _stiffness() -> float:
    """Slope of the force at the plateau, from the force alone: central differences, not its formula."""
    dynamics, plateau = _anchored()

    def force(x):
        policy = SoftmaxBandit(plateau.logits + x)
        return float(dynamics.force(policy, policy).logits[0, 0])

    step = 1e-4
    return -(force(step) - force(-step)) / (2.0 * step)


def _bisect(grows, low: float, high: float, iterations: int = 48) -> float:
    for _ in range(iterations):
        middle = np.sqrt(low * high)
        low, high = (low, middle) if grows(middle) else (middle, high)
    return float(np.sqrt(low * high))


def _radius(interval: int, lag: int):
    """Spectral radius of the bandit's own cycle, from its derivative along every direction of the state."""
    dynamics, plateau = _anchored()
    run = cycle_of(dynamics, interval, lag)
    flat, unravel = ravel_pytree(at_rest(plateau, lag))

    @jax.jit
    def jacobian(rate, momentum):
        return jax.jacfwd(lambda x: ravel_pytree(run(unravel(x), rate, momentum))[0])(flat)

    return lambda rate, momentum: float(np.abs(np.linalg.eigvals(np.asarray(jacobian(rate, momentum)))).max())


def _thresholds(lag: int, momenta: tuple[float, ...], intervals: tuple[int, ...]) -> tuple[Any, Any]:
    cells = [(mu, k) for k in intervals for mu in momenta]
    labels = tuple(f"mu = {mu:g}, K = {k}" for mu, k in cells)

    def predict():
        kappa = _stiffness()
        critical = [float(theory.critical_stiffness(mu, float(k), 1.0, lag)) / kappa for mu, k in cells]
        return Prediction(np.array(critical), labels)

    def measure(prediction):
        found = []
        radii = {k: _radius(k, lag) for k in intervals}
        for (mu, k), expected in zip(cells, prediction.values, strict=True):
            radius = radii[k]
            found.append(_bisect(lambda r, f=radius, m=mu: f(r, m) > 1.0, 0.3 * expected, 3.0 * expected, 30))
        return np.array(found)

    return predict, measure


def _ringing() -> tuple[Any, Any]:
    momenta = (0.25, 0.5, 0.9)

    def predict():
        kappa = _stiffness()
        values = np.array([(1.0 - np.sqrt(mu)) ** 2 / kappa for mu in momenta])
        return Prediction(values, tuple(f"mu = {mu:g}" for mu in momenta))

    def measure(prediction):
        dynamics, plateau = _anchored()
        run = cycle_of(dynamics, 1)
        state = at_rest(plateau)

        @jax.jit
        def overshoots(rate, momentum):
            """Whether a small displacement ever changes sign, by the derivative of the update itself."""
            start = (jax.tree.map(jnp.ones_like, state[0]), state[1])

            def step(tangent, _):
                moved = jax.jvp(lambda s: run(s, rate, momentum), (state,), (tangent,))[1]
                size = jnp.maximum(jnp.abs(moved[0].logits[0, 0]), jnp.abs(moved[1].logits[0, 0]))
                moved = jax.tree.map(lambda x: x / size, moved)
                return moved, moved[0].logits[0, 0]

            return jnp.any(jax.lax.scan(step, start, None, length=4000)[1] < 0)

        pairs = zip(momenta, prediction.values, strict=True)
        return np.array(
            [_bisect(lambda r, m=mu: bool(overshoots(r, m)), 0.3 * v, 3.0 * v, 24) for mu, v in pairs]
        )

    return predict, measure


def _course(rate: float, momentum: float, steps: int, displacement: float = 1e-3) -> np.ndarray:
    """Displacement of the bandit's logit from its plateau, step by step."""
    start = SoftmaxBandit(jnp.asarray([[1.0 / BETA - displacement]]))
    dynamics, plateau = _anchored()
    run = cycle_of(dynamics, 1)

    def step(state, _):
        return run(state, jnp.asarray(rate), jnp.asarray(momentum)), state[0].logits[0, 0]

    logits = jax.jit(lambda s: jax.lax.scan(step, s, None, length=steps)[1])(at_rest(start))
    return np.asarray(plateau.logits[0, 0] - logits) / displacement


def _overdamped() -> tuple[Any, Any]:
    rate, momentum = 0.02, 0.5

    def predict():
        h = rate * _stiffness()
        return Prediction(np.array([(1.0 - momentum) / h]), ("timescale in steps",))

    def measure(prediction):
        timescale = float(prediction.values[0])
        curve = _course(rate, momentum, int(3 * timescale))
        t = np.arange(curve.size)
        kept = t > 0.3 * timescale
        return np.array([-1.0 / np.polyfit(t[kept], np.log(curve[kept]), 1)[0]])

    return predict, measure


def _slow_start() -> tuple[Any, Any]:
    rate, momentum = 0.03, 0.9

    def predict():
        task = Task(curvature=_stiffness(), plateau=0.0, initial_reward=1.0)
        settings = Hyperparameters(rate, momentum=momentum, convention="heavy_ball")
        oscillator = reduce(settings, task)
        t = 20.0 * float(oscillator.timescale)
        # Long after the start the course is an exponential that began later than the run.
        delay = t + float(oscillator.timescale) * np.log(float(oscillator.mean(t)))
        return Prediction(np.array([delay]), ("delay in steps",), {"timescale": float(oscillator.timescale)})

    def measure(prediction):
        timescale = prediction.given["timescale"]
        curve = _course(rate, momentum, int(6 * timescale), 1e-4)
        t = np.arange(curve.size)
        kept = t > 3 * timescale
        slope, offset = np.polyfit(t[kept], np.log(curve[kept]), 1)
        return np.array([-offset / slope])

    return predict, measure


def _variance(at_half: bool) -> tuple[Any, Any]:
    """Stationary variance of the sampled bandit; penalty at the current parameters, so that its noise does not vanish."""
    rate, momentum, batch = 0.05, 0.5, 4

    def where(group):
        shift = (1.0 - 1.0 / group) / BETA
        return (-shift, 0.0) if at_half else (0.0, shift)

    def predict():
        values = []
        for group in GROUPS:
            logit = where(group)[1]
            p = 1.0 / (1.0 + np.exp(-logit))
            with_noise = float(groups.group_force_variance(p, float(group), unbiased=False))
            h, sigma = rate * BETA * p * (1.0 - p), rate * np.sqrt(with_noise / batch)
            values.append(float(theory.stationary_variance_single(momentum, h, sigma)) * (p * (1.0 - p)) ** 2)
        return Prediction(np.array(values), tuple(f"G = {g}" for g in GROUPS))

    def measure(prediction):
        found = []
        for i, group in enumerate(GROUPS):
            anchor, logit = where(group)
            start, reference = (SoftmaxBandit(jnp.full((1, 1), x)) for x in (logit, anchor))
            trained = train_grpo(
                start,
                first_arm(),
                Hyperparameters(rate, momentum, group, 1, batch, convention="heavy_ball"),
                Algorithm("mean", penalty="current", beta=BETA),
                steps=6000,
                key=jax.random.key(100 + i),
                seeds=96,
                reference=reference,
            )
            found.append(np.var(trained.expected_reward[:, 1000:]))
        return np.array(found)

    return predict, measure


def _slope(variances: np.ndarray) -> float:
    return float(np.polyfit(np.log(GROUPS), np.log(variances), 1)[0])


def _mean_curves() -> tuple[Any, Any, Any]:
    """Mean course of the sampled bandit against its mean field with the factors of the finite group."""
    rate, momentum, batch, steps = 0.2, 0.5, 16, 300
    algorithm = Algorithm("mean", penalty="current", beta=BETA)

    def run(group, expected, seeds):
        start, reference = SoftmaxBandit.with_success(0.1), SoftmaxBandit.with_success(0.5)
        settings = Hyperparameters(rate, momentum, group, 1, batch, convention="heavy_ball")
        trained = train_grpo(
            start,
            first_arm(),
            settings,
            algorithm,
            steps=steps,
            key=jax.random.key(7 + group),
            seeds=seeds,
            expected=expected,
            reference=reference,
        )
        return trained.expected_reward.mean(axis=0)

    kept = tuple(g for g in GROUPS if g >= 4)

    def predict():
        curves = np.stack([run(g, True, 1) for g in kept])
        return Prediction(curves[:, -1], tuple(f"end of G = {g}" for g in kept), {"curves": curves})

    def measure(prediction):
        curves = np.stack([run(g, False, 256) for g in kept])
        prediction.given["sampled"] = curves
        return curves[:, -1]

    def deviation(prediction):
        return float(np.abs(prediction.given["sampled"] - prediction.given["curves"]).max())

    return predict, measure, deviation


def _groups() -> tuple[Any, Any, Any]:
    """Share of groups without spread and their mean spread, for prompts of mixed difficulty that are not trained."""
    sizes, prompts, rounds = (2, 4, 8, 16), 64, 400
    probabilities = np.random.default_rng(0).beta(0.7, 0.9, prompts)
    probabilities = np.clip(probabilities, 1e-4, 1.0 - 1e-4)

    def predict():
        zero = [float(np.mean(groups.zero_spread_probability(probabilities, float(g)))) for g in sizes]
        spread = [float(np.mean(groups.expected_std(probabilities, float(g)))) for g in sizes]
        labels = [f"no spread, G = {g}" for g in sizes] + [f"mean spread, G = {g}" for g in sizes]
        return Prediction(np.array(zero + spread), tuple(labels))

    def measure(prediction):
        zero, spread = [], []
        for g in sizes:
            trained = train_grpo(
                SoftmaxBandit.with_success(probabilities),
                first_arm(prompts),
                Hyperparameters(0.0, 0.0, g, 1, prompts, convention="heavy_ball"),
                Algorithm("mean"),
                steps=rounds,
                key=jax.random.key(g),
            )
            zero.append(trained.logged["frac_reward_zero_std"][0])
            spread.append(trained.logged["reward_std"][0])
        series = np.array(zero + spread)
        prediction.given["doubt"] = series.std(axis=1, ddof=1) / np.sqrt(rounds)
        return series.mean(axis=1)

    def error(prediction, measured):
        return float(np.max(np.abs(measured - prediction.values) / prediction.given["doubt"]))

    return predict, measure, error


def claims() -> list[Claim]:
    """All claims about the bandit."""
    ringing, overdamped, slow = _ringing(), _overdamped(), _slow_start()
    thresholds = _thresholds(0, MOMENTA, INTERVALS)
    trailing = _thresholds(1, (0.0, 0.9, 0.95), INTERVALS)
    away, half = _variance(False), _variance(True)
    curves, spread = _mean_curves(), _groups()
    relative = "largest relative error"
    found: list[Claim] = [
        Claim(
            "bandit-ringing",
            "at K = 1 the course begins to ring at h = (1 - sqrt(mu))^2",
            0.01,
            *ringing,
            largest_relative,
            relative,
        ),
        Claim(
            "bandit-threshold",
            "the critical learning rate is h_crit(mu, K) over the measured stiffness",
            1e-3,
            *thresholds,
            largest_relative,
            relative,
        ),
        Claim(
            "bandit-async-threshold",
            "one rollout set of lag lowers the critical learning rate to that of the companion map",
            1e-3,
            *trailing,
            largest_relative,
            relative,
        ),
        Claim(
            "bandit-single-exponential",
            "overdamped, the distance to the plateau falls by e every (1 - mu)/h steps",
            0.01,
            *overdamped,
            largest_relative,
            relative,
        ),
        Claim(
            "bandit-slow-start",
            "the inertia delays the exponential by as much as the matched oscillator says",
            0.02,
            *slow,
            largest_relative,
            relative,
        ),
        Claim(
            "bandit-variance",
            "stationary variance of the reward of the sampled bandit, for each group size",
            0.10,
            *away,
            largest_relative,
            relative,
        ),
        Claim(
            "bandit-variance-slope",
            "its slope in log G, away from p = 1/2 and at it (nearly -2)",
            0.10,
            lambda: Prediction(
                np.array([_slope(away[0]().values), _slope(half[0]().values)]), ("away from 1/2", "at 1/2")
            ),
            lambda prediction: np.array([_slope(away[1](prediction)), _slope(half[1](prediction))]),
            largest_absolute,
            "largest error of the slope",
        ),
        Claim(
            "bandit-mean-curves",
            "mean courses are those of the mean field with the factors of the finite group, for G from 4 to 32",
            0.02,
            curves[0],
            curves[1],
            lambda prediction, measured: curves[2](prediction),
            "largest deviation along the courses",
        ),
        Claim(
            "group-spread",
            "groups without spread, and the mean spread within groups, for prompts of mixed difficulty",
            3.5,
            *spread,
            "largest error in standard errors",
        ),
    ]
    return found
