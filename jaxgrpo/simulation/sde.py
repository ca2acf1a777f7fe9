r"""The oscillator as a stochastic differential equation for Diffrax: any force, any schedule, any damping.

$$dz = v\,dt, \qquad m\,dv = \bigl(-\gamma v + g f(t)[F(z) - \tau F'(z) v]\bigr) dt + \sigma f(t)\,s(z)\,dW$$

with the time in optimizer steps, $f$ the factor of the schedule and $s$ the shape of the noise; $m = 0$ is the
first-order equation $\gamma\,dz = g f F(z)\,dt + \sigma f s(z)\,dW$, not a stiff limit of the other.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from jaxgrpo.simulation.brownian import StepBrownianPath
from jaxgrpo.simulation.configurations import Configurations, NoiseShape, Structure, check_noise_shape
from jaxgrpo.simulation.lattice import largest
from jaxgrpo.simulation.noise import Words, key_words
from jaxgrpo.simulation.rule import AbstractRule, Observer, Seen
from jaxgrpo.theory.forces import AbstractForce, Harmonic
from jaxgrpo.theory.hyperparameters import Hyperparameters, is_concrete
from jaxgrpo.theory.numerics import safe_sqrt
from jaxgrpo.theory.oscillator import Oscillator
from jaxgrpo.theory.reduction import learning_rate_gain, step_noise
from jaxgrpo.theory.schedules import Schedule
from jaxgrpo.theory.task import Task
from jaxgrpo.theory.trajectory import schedule_factor

Scalar = Float[Array, ""]
Position = Float[Array, "nodes *paths"]


_MOST_SUBSTEPS = 256


class State(NamedTuple):
    """State of the equation: coordinates and their velocity, which the first-order equation has none of."""

    position: Position
    velocity: Position | None


class Diffusion(diffrax.AbstractTerm):
    """Noise on the velocity (on the coordinates for the first-order equation), for Diffrax.

    Attributes:
        sde: The equation.
        control: Brownian path of shape `(1, *paths)`, or `(nodes, *paths)` for independent noise.
    """

    sde: "OscillatorSDE"
    control: diffrax.AbstractBrownianPath

    def vf(self, t, y, args):
        """Standard deviation of the increment per root of time."""
        del args
        return self.sde.diffusion(t, y)

    def contr(self, t0, t1, **kwargs):
        """Increment of the Brownian path."""
        return self.control.evaluate(t0, t1, **kwargs)

    def prod(self, vf, control):
        """Noise enters the velocity alone, on every node."""
        shape = jnp.broadcast_shapes((self.sde.nodes, *jnp.shape(control)[1:]), jnp.shape(control))
        move = jnp.broadcast_to(vf * control, shape)
        return State(move, None) if self.sde.first_order else State(jnp.zeros_like(move), move)


class Drift(diffrax.AbstractTerm):
    """Drift of the equation, for Diffrax.

    Attributes:
        sde: The equation.
        drive: Its force, prepared, so that no solver prepares it at every step.
    """

    sde: "OscillatorSDE"
    drive: Callable[[Position], Position]

    def vf(self, t, y, args):
        """Rate of change of the state."""
        del args
        return self.sde.drift(t, y, self.drive)

    def contr(self, t0, t1, **kwargs):
        """The time that passes."""
        del kwargs
        return t1 - t0

    def prod(self, vf, control):
        """Rate times time."""
        return jax.tree.map(lambda x: x * control, vf)


def needed_substeps(mass: ArrayLike, damping: ArrayLike, stiffness: ArrayLike) -> int:
    """Steps of a solver to an optimizer step that resolve the fastest rate, half of its time each.

    Args:
        mass: Masses; 0 for the first-order equation.
        damping: Dampings.
        stiffness: Stiffnesses.

    Returns:
        The number of steps.

    Raises:
        ValueError: If more than 256 were needed.
    """
    mass, damping, stiffness = (np.abs(np.asarray(x, float)) for x in (mass, damping, stiffness))
    moving = mass > 0
    safe = np.where(moving, mass, 1.0)
    second = np.maximum(damping / safe, np.sqrt(stiffness / safe))
    rate = float(np.max(np.where(moving, second, stiffness / np.where(damping > 0, damping, 1.0))))
    needed = max(int(np.ceil(2.0 * rate)), 1)
    if needed > _MOST_SUBSTEPS:
        raise ValueError(
            f"the fastest rate, {rate:.3g} per optimizer step, needs {needed} steps of the solver to each: "
            "take the first-order equation (momentum 0), or method='exact'"
        )
    return needed


class OscillatorSDE(eqx.Module):
    r"""Reward dynamics as a stochastic differential equation that Diffrax can solve.

    $$m\,dv = (-\gamma v + g f(t)\,[F(z) - \tau F'(z) v])\,dt + \sigma f(t)\,s(z)\,dW, \qquad dz = v\,dt$$

    All numbers are differentiable leaves. Noise acts on the velocity and hangs on the coordinates alone, so that the
    interpretations of Itô and of Stratonovich agree; in the first-order equation ($m = 0$) with state-dependent
    noise they do not, and Itô's is meant, the limit of an update whose noise is drawn at the policy before it.

    Args:
        oscillator: Mass, damping (of any sign), stiffness, plateau, start and noise, one configuration.
        force: Restoring force; its largest slope has the stiffness of the oscillator.
        schedule: Factor on force and noise by optimizer step (an Optax schedule with peak value 1).
        group_size: $G$, for the forces that know it.
        noise_shape: `"constant"`, or `"binary"` for a variance in proportion to $R(1-R)$, as given at $R = 1/2$.
        node_noise: `"common"` noise for all nodes of a mixed force, or `"independent"`.
        lag: Mean age $\tau$ of the force in steps, where the damping does not hold its effect already.
        exponent: Learning-rate exponent, applied to the factor of the schedule.

    Raises:
        ValueError: If an option is unknown, the oscillator holds several configurations, the mass is negative, or
            a first-order equation has no positive damping.

    Example:
        >>> import jax, jaxgrpo as jg
        >>> oscillator = jg.Oscillator(0.9, 0.1, 0.01, plateau=0.8, initial_reward=0.2, noise=0.01)
        >>> solution = jg.OscillatorSDE(oscillator).solve(steps=100, paths=8, key=jax.random.key(0))
        >>> solution.ys.shape
        (101, 8)
    """

    mass: Scalar
    damping: Scalar
    gain: Scalar
    noise: Scalar
    plateau: Scalar
    initial_reward: Scalar
    initial_velocity: Scalar
    group_size: Scalar
    lag: Scalar | None
    exponent: Scalar
    force: AbstractForce
    schedule: Schedule | None = eqx.field(static=True)
    noise_shape: NoiseShape = eqx.field(static=True)
    node_noise: Literal["common", "independent"] = eqx.field(static=True)
    first_order: bool = eqx.field(static=True)

    def __init__(
        self,
        oscillator: Oscillator,
        force: AbstractForce | None = None,
        schedule: Schedule | None = None,
        *,
        group_size: Float[Array, ""] | float | int = np.inf,
        noise_shape: NoiseShape = "constant",
        node_noise: Literal["common", "independent"] = "common",
        lag: Float[Array, ""] | float | int | None = None,
        exponent: Float[Array, ""] | float | int = 1.0,
        first_order: bool | None = None,
    ):
        check_noise_shape(noise_shape)
        if node_noise not in ("common", "independent"):
            raise ValueError(f"node_noise must be 'common' or 'independent', got {node_noise!r}")
        force = Harmonic() if force is None else force
        fields = (oscillator.mass, oscillator.damping, oscillator.stiffness, oscillator.noise)
        fields += (oscillator.plateau, oscillator.initial_reward, oscillator.initial_velocity)
        if any(jnp.ndim(field) for field in fields):
            raise ValueError("OscillatorSDE holds one configuration: use equinox.filter_vmap for several")
        explicit = [x.dtype for x in fields if not x.weak_type]
        dtype = jnp.result_type(*explicit) if explicit else jnp.result_type(float)
        mass, damping, stiffness, noise, plateau, start, velocity = (x.astype(dtype) for x in fields)
        if first_order is None:
            # A traced mass is taken to be positive: whether it is zero decides the shape of the state.
            first_order = is_concrete(mass) and bool(mass == 0)
        if is_concrete(mass) and bool(mass < 0):
            raise ValueError(f"the mass must not be negative, got {float(mass):g}")
        if first_order and is_concrete(damping) and bool(damping <= 0):
            raise ValueError("without mass the damping must be positive: nothing else holds the coordinates")
        if first_order and lag is not None and not isinstance(force, Harmonic):
            raise ValueError(
                "without momentum the leading order has no lag for a force that is not harmonic; "
                "simulate by method='exact'"
            )
        self.mass, self.damping, self.noise = mass, damping, noise
        self.gain = stiffness / force.peak_slope()
        self.plateau, self.initial_reward, self.initial_velocity = plateau, start, velocity
        self.group_size = jnp.asarray(group_size, dtype)
        self.lag = None if lag is None else jnp.asarray(lag, dtype)
        self.exponent = jnp.asarray(exponent, dtype)
        self.force = jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, force)
        self.schedule, self.noise_shape, self.node_noise = schedule, noise_shape, node_noise
        self.first_order = first_order

    @classmethod
    def from_task(
        cls,
        hyperparameters: Hyperparameters,
        task: Task,
        schedule: Schedule | None = None,
        *,
        noise_shape: NoiseShape = "constant",
        node_noise: Literal["common", "independent"] = "common",
        first_order: bool | None = None,
    ) -> "OscillatorSDE":
        r"""The leading order of a run: $m = \mu$, $\gamma = 1-\mu$ less what the mean lag takes away.

        Args:
            hyperparameters: One configuration.
            task: The task.
            schedule: Factor on the learning rate by step.
            noise_shape: As in the class.
            node_noise: As in the class.
            first_order: Whether there is no mass; decided by the momentum where that is known.

        Returns:
            The equation; it agrees with `reduce(..., order="leading")` for the harmonic force.
        """
        h, lag = hyperparameters, hyperparameters.mean_lag
        gain = learning_rate_gain(h, task) * task.curvature
        harmonic = isinstance(task.force, Harmonic) and schedule is None
        damping = 1.0 - h.momentum - (gain * lag if harmonic else 0.0)
        fresh = is_concrete(lag) and bool(jnp.all(lag == 0))
        oscillator = Oscillator(
            h.momentum,
            damping,
            gain * task.force.peak_slope(),
            task.plateau,
            task.initial_reward,
            step_noise(h, task),
        )
        return cls(
            oscillator,
            task.force,
            schedule,
            group_size=h.group_size,
            noise_shape=noise_shape,
            node_noise=node_noise,
            lag=None if harmonic or fresh else lag,
            exponent=task.learning_rate_exponent,
            first_order=first_order,
        )

    @property
    def nodes(self) -> int:
        """Number of coordinates."""
        return jax.eval_shape(self.force.initial_state, self.initial_reward, self.plateau).shape[0]

    @property
    def additive(self) -> bool:
        """Whether the noise is the same at all coordinates."""
        return self.noise_shape == "constant"

    def _factor(self, t):
        if self.schedule is None:
            return jnp.ones((), self.gain.dtype)
        return schedule_factor(self.schedule, jnp.asarray(t, self.gain.dtype), self.exponent)

    def initial_state(self, paths: tuple[int, ...] = ()) -> State:
        """State at the start.

        Args:
            paths: Shape of the batch of paths.

        Returns:
            Coordinates and velocity, each `(nodes, *paths)`.
        """
        z = self.force.initial_state(self.initial_reward, self.plateau).astype(self.gain.dtype)
        z = jnp.broadcast_to(z.reshape(-1, *(1,) * len(paths)), (z.size, *paths))
        velocity = None if self.first_order else jnp.broadcast_to(self.initial_velocity, z.shape)
        return State(z, velocity)

    def reward(self, position: Position) -> Float[Array, "..."]:
        """Expected reward at the coordinates."""
        function = lambda z: self.force.reward(z, self.plateau)
        for _ in range(position.ndim - 1):
            function = jax.vmap(function, in_axes=-1, out_axes=-1)
        return function(position)

    def prepared_force(self) -> Callable[[Position], Position]:
        """The force on the coordinates of one path, with what depends on the group size worked out."""
        drive = self.force.bind(self.plateau, self.group_size, self.gain.dtype)
        return eqx.filter_closure_convert(drive, self.initial_state().position)

    def drift(self, t: Any, y: State, drive: Callable[[Position], Position] | None = None) -> State:
        """Rate of change of the state at time `t`.

        Args:
            t: Optimizer steps.
            y: The state.
            drive: What `prepared_force` returned, if it is at hand.

        Returns:
            Rates, in the form of the state.
        """
        drive = self.prepared_force() if drive is None else drive
        for _ in range(y.position.ndim - 1):
            drive = jax.vmap(drive, in_axes=-1, out_axes=-1)
        gain = self._factor(t) * self.gain
        if y.velocity is None:
            return State(gain * drive(y.position) / self.damping, None)
        if self.lag is None:
            force = gain * drive(y.position)
        else:
            value, change = jax.jvp(drive, (y.position,), (y.velocity,))
            force = gain * (value - self.lag * change)
        return State(y.velocity, (force - self.damping * y.velocity) / self.mass)

    def diffusion(self, t: Any, y: State) -> Float[Array, "..."]:
        """Standard deviation of the noise per root of time."""
        sigma = self._factor(t) * self.noise / (self.damping if self.first_order else self.mass)
        if self.additive:
            return sigma
        p = jnp.clip(self.reward(y.position), 0.0, 1.0)
        return (sigma * 2.0 * safe_sqrt(p * (1.0 - p)))[None]

    def terms(self, brownian: diffrax.AbstractBrownianPath) -> diffrax.MultiTerm:
        """Drift and diffusion for a solver of one's own.

        Args:
            brownian: A Brownian path of shape `(1, *paths)`, or `(nodes, *paths)` for independent noise.

        Returns:
            Terms for `diffrax.diffeqsolve`, with `initial_state(paths)` as the state.
        """
        return diffrax.MultiTerm(Drift(self, self.prepared_force()), Diffusion(self, brownian))

    def default_solver(self) -> diffrax.AbstractSolver:
        """ShARK for additive noise (strong order 1.5); otherwise Heun, or Euler where Itô's interpretation matters."""
        if self.additive:
            return diffrax.ShARK()
        return diffrax.Euler() if self.first_order else diffrax.Heun()

    def substeps(self) -> int:
        """Steps of the solver to an optimizer step that resolve the fastest rate of the linearised equation.

        Raises:
            ValueError: If more than 256 were needed, or the numbers are not known.
        """
        numbers = (self.mass, self.damping, self.gain)
        if not all(map(is_concrete, numbers)) or not (self.lag is None or is_concrete(self.lag)):
            raise ValueError("inside a transformation the steps of the solver must be given: substeps=2, say")
        stiffness = np.abs(np.asarray(self.gain, float)) * self.force.peak_slope()
        lag = 0.0 if self.lag is None else np.asarray(self.lag, float)
        damping = np.abs(np.asarray(self.damping, float)) + stiffness * np.abs(lag)
        return needed_substeps(self.mass, damping, stiffness)

    def solve(
        self,
        steps: int | float,
        *,
        key: PRNGKeyArray | Array,
        paths: int = 1,
        substeps: int | None = None,
        tolerance: float | None = None,
        solver: diffrax.AbstractSolver | None = None,
        saveat: diffrax.SaveAt | None = None,
        adjoint: diffrax.AbstractAdjoint | None = None,
        max_steps: int = 2**20,
        throw: bool = True,
    ) -> diffrax.Solution:
        r"""Solve the equation for many paths, batched in the state.

        At fixed steps the noise of a path is a function of key, number of the path and step, so that configurations
        that are solved with one key see common random numbers; with `tolerance` the steps adapt to the
        paths together and the noise comes from a `diffrax.VirtualBrownianTree`.

        Args:
            steps: Optimizer steps to solve for.
            key: A JAX key.
            paths: Number of paths.
            substeps: Steps of the solver to an optimizer step; as many as the fastest rate needs if not given.
            tolerance: Relative tolerance, and a thousandth of it absolute, for adaptive steps.
            solver: A Diffrax solver; `default_solver` if not given.
            saveat: What to save; the expected reward at every whole step, `(steps + 1, paths)`, if not given.
            adjoint: How derivatives are taken. By default `diffrax.RecursiveCheckpointAdjoint`, for reverse mode
                (`jax.grad`); `diffrax.ForwardMode()` for `jax.jvp` and `jax.jacfwd`, the better choice for few
                parameters.
            max_steps: Most steps of the solver (adaptive only).
            throw: Whether to raise where the solver fails.

        Returns:
            Diffrax's solution.
        """
        solver = self.default_solver() if solver is None else solver
        adjoint = diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint
        each = None
        if tolerance is None:
            each = self.substeps() if substeps is None else substeps
            max_steps = int(np.ceil(steps * each)) + 1
        return _solve(self, key, steps, paths, each, tolerance, solver, saveat, adjoint, max_steps, throw)


@eqx.filter_jit
def _solve(
    sde: OscillatorSDE, key, steps, paths, substeps, tolerance, solver, saveat, adjoint, max_steps, throw
) -> diffrax.Solution:
    """One program, compiled once for each shape, solver and number of steps."""
    dtype = sde.gain.dtype
    start, end = jnp.zeros((), dtype), jnp.asarray(steps, dtype)
    nodes = sde.nodes if sde.node_noise == "independent" else 1
    if tolerance is None:
        step = jnp.asarray(1.0 / substeps, dtype)
        brownian = StepBrownianPath(
            words=key_words(key),
            paths=jnp.arange(paths, dtype=jnp.uint32),
            start=start,
            step=step,
            nodes=nodes,
        )
        controller = diffrax.ConstantStepSize()
    else:
        step = jnp.asarray(0.1, dtype)
        brownian = diffrax.VirtualBrownianTree(
            start,
            end,
            tol=max(1e-4 * float(steps), 1e-3) * min(tolerance * 10.0, 1.0),
            shape=jax.ShapeDtypeStruct((nodes, paths), dtype),
            key=key,
            levy_area=diffrax.SpaceTimeLevyArea,
        )
        controller = diffrax.PIDController(
            rtol=tolerance, atol=1e-3 * tolerance, pcoeff=0.1, icoeff=0.3, dcoeff=0.0
        )
    if saveat is None:
        times = jnp.arange(0, int(steps) + 1).astype(dtype)
        saveat = diffrax.SaveAt(ts=times, fn=lambda t, y, args: sde.reward(y.position))
    return diffrax.diffeqsolve(
        sde.terms(brownian),
        solver,
        start,
        end,
        step,
        sde.initial_state((paths,)),
        saveat=saveat,
        stepsize_controller=controller,
        adjoint=adjoint,
        max_steps=max_steps,
        throw=throw,
    )


class SDERule(AbstractRule):
    """The equation as a rule that an ensemble can simulate: a solver's own steps, at fixed length.

    Attributes:
        force: Restoring force, shared by all configurations.
        solver: Diffrax solver.
        schedule: Factor on the learning rate by step, or none.
        noise_shape: As in `OscillatorSDE`.
        first_order: Whether there is no momentum.
        lagged: Whether the force of some configuration is lagged.
        per_step: Steps of the solver to an optimizer step.
    """

    force: AbstractForce
    solver: diffrax.AbstractSolver
    schedule: Schedule | None = eqx.field(static=True)
    noise_shape: NoiseShape = eqx.field(static=True)
    first_order: bool = eqx.field(static=True)
    lagged: bool = eqx.field(static=True)
    per_step: int = eqx.field(static=True)

    def units(self) -> int:
        """A unit is a step of the solver."""
        return self.per_step

    def body(self) -> int:
        """One step a body: its two normals are the increment and its Lévy area."""
        return 1

    def bind(self, c: Configurations) -> tuple[OscillatorSDE, Drift]:
        """The equation of one configuration, and its drift."""
        equation = leading_equation(
            c, self.force, self.schedule, self.noise_shape, self.first_order, self.lagged
        )
        return equation, Drift(equation, equation.prepared_force())

    def start(self, bound: tuple[OscillatorSDE, Drift], paths: UInt32[Array, " paths"]) -> State:
        """All paths at the initial reward, at rest."""
        return bound[0].initial_state((paths.size,))

    def reward(self, bound: tuple[OscillatorSDE, Drift], state: State) -> Float[Array, " paths"]:
        """Expected reward of the paths."""
        return bound[0].reward(state.position)

    def advance(
        self,
        bound: tuple[OscillatorSDE, Drift],
        words: Words,
        paths: UInt32[Array, " paths"],
        carry: tuple[State, Seen],
        body: Int[Array, ""],
        first: Int[Array, ""],
        last: Int[Array, ""],
        observe: Observer,
    ) -> tuple[State, Seen]:
        """One step of the solver."""
        (state, seen), (equation, drift) = carry, bound
        dtype = equation.gain.dtype
        step = jnp.asarray(1.0 / self.per_step, dtype)
        brownian = StepBrownianPath(words=words, paths=paths, start=jnp.zeros((), dtype), step=step)
        terms = diffrax.MultiTerm(drift, Diffusion(equation, brownian))
        t0, t1 = body.astype(dtype) * step, (body + 1).astype(dtype) * step
        memory = self.solver.init(terms, t0, t1, state, None)
        new = self.solver.step(terms, t0, t1, state, None, memory, made_jump=False)[0]
        limit = largest(dtype)
        active = (body >= first) & (body < last)
        state = jax.tree.map(lambda a, b: jnp.where(active, jnp.clip(a, -limit, limit), b), new, state)
        return state, observe(state, seen)


def leading_equation(
    c: Configurations,
    force: AbstractForce,
    schedule: Schedule | None,
    noise_shape: NoiseShape,
    first_order: bool,
    lagged: bool,
) -> OscillatorSDE:
    """Leading order of one configuration; as `OscillatorSDE.from_task`."""
    lag = c.staleness * (0.5 * (c.refresh_interval - 1.0) + c.async_lag * c.refresh_interval)
    constant = isinstance(force, Harmonic) and schedule is None
    damping = 1.0 - c.momentum - (c.gain * lag if constant else 0.0)
    oscillator = Oscillator(
        c.momentum, damping, c.gain * force.peak_slope(), c.plateau, c.initial_reward, c.noise
    )
    return OscillatorSDE(
        oscillator,
        force,
        schedule,
        group_size=c.group_size,
        noise_shape=noise_shape,
        lag=lag if lagged and not constant else None,
        exponent=c.exponent,
        first_order=first_order,
    )


def sde_rule(
    c: Configurations,
    structure: Structure,
    force: AbstractForce,
    schedule: Schedule | None = None,
    noise_shape: NoiseShape = "constant",
    substeps: int | None = None,
) -> SDERule:
    """The equation for some configurations, with a solver and a step that suit all of them.

    Args:
        c: The configurations; all with momentum, or all without.
        structure: What of the rule they need.
        force: Restoring force.
        schedule: Factor on the learning rate by step.
        noise_shape: As in `OscillatorSDE`.
        substeps: Steps of the solver to an optimizer step, where the numbers are not known or another is wanted.

    Returns:
        The rule.

    Raises:
        ValueError: If the first-order equation does not exist, or too many steps were needed.
    """
    concrete = all(is_concrete(x) for x in jax.tree.leaves(c))
    first_order = bool(jnp.all(c.momentum == 0)) if concrete else structure.first_order
    if not concrete and substeps is None:
        raise ValueError("inside a transformation the steps of the solver must be given: substeps=2, say")
    if concrete:
        lag = c.staleness * (0.5 * (c.refresh_interval - 1.0) + c.async_lag * c.refresh_interval)
        stiffness = np.asarray(c.gain, float) * force.peak_slope()
        damping = 1.0 - np.asarray(c.momentum, float) - stiffness * np.asarray(lag, float)
        if first_order and np.any(damping <= 0):
            raise ValueError(
                "without momentum the leading order does not exist where the lag takes all damping away "
                "(stiffness times mean lag of 1 and more): use method='exact'"
            )
        if substeps is None:
            substeps = needed_substeps(c.momentum, damping, stiffness)
    if noise_shape == "constant":
        solver = diffrax.ShARK()
    else:
        solver = diffrax.Euler() if first_order else diffrax.Heun()
    return SDERule(force, solver, schedule, noise_shape, first_order, structure.stale, int(substeps or 1))
