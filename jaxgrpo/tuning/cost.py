r"""What a run costs: rollouts made, rollouts trained on, synchronisations.

A refresh makes $B G S$ rollouts, trains on each of them $I$ times in $K = S I$ updates, and synchronises the sampler once.
Fresh mini-batches save synchronisations, not rollouts; passes over the same ones save rollouts.
"""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgrpo.errors import TuneError
from jaxgrpo.logs.run import Run
from jaxgrpo.theory.hyperparameters import Hyperparameters, as_float_leaf, is_concrete

# Generating a completion is usually the larger half of a step; a synchronisation also waits for the slowest completion.
_DEFAULTS = {"rollout": 1.0, "update": 0.5, "synchronisation": 8.0}
_GENERATION = ("timing_s/gen", "timing_s/generate_sequences", "timing/generation", "time/generation")
_UPDATE = ("timing_s/update_actor", "timing/policy_training", "time/training")
_SYNCHRONISATION = ("timing_s/update_weights", "timing_s/sync_rollout_weights", "timing_s/reshard")


class Prices(eqx.Module):
    """Prices of what a run does, in any one unit (rollouts, seconds, currency).

    Args:
        rollout: Of generating one completion, its reward included.
        update: Of training on one completion once.
        synchronisation: Of handing new weights to the sampler and starting it again.
        unit: Name of the unit.

    Raises:
        ValueError: If a price known at construction is negative or not finite, or all are zero.
    """

    rollout: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=_DEFAULTS["rollout"])
    update: Float[Array, "..."] = eqx.field(converter=as_float_leaf, default=_DEFAULTS["update"])
    synchronisation: Float[Array, "..."] = eqx.field(
        converter=as_float_leaf, default=_DEFAULTS["synchronisation"]
    )
    unit: str = eqx.field(static=True, default="rollouts")

    def __check_init__(self):
        prices = {name: getattr(self, name) for name in _DEFAULTS}
        for name, price in prices.items():
            if is_concrete(price) and not bool(jnp.all(jnp.isfinite(price) & (price >= 0))):
                raise ValueError(f"the price of a {name} must be finite and not negative, got {price}")
        if all(is_concrete(price) and bool(jnp.all(price == 0)) for price in prices.values()):
            raise ValueError("all prices are zero: then nothing is to be saved")

    def per_step(self, hyperparameters: Hyperparameters) -> Float[Array, "..."]:
        r"""Cost of one optimizer step, $B G (c_r / I + c_u) + c_s / K$.

        Args:
            hyperparameters: The settings.

        Returns:
            The cost in `unit`.
        """
        h = hyperparameters
        rollouts = h.rollouts_per_step * (self.rollout / h.epochs_per_rollout + self.update)
        return rollouts + self.synchronisation / h.refresh_interval

    def steps(
        self, hyperparameters: Hyperparameters, budget: Float[Array, "..."] | float | int
    ) -> Float[Array, "..."]:
        """Optimizer steps that a budget pays for.

        Args:
            hyperparameters: The settings.
            budget: The budget in `unit`.

        Returns:
            The number of steps, a real number.
        """
        return budget / self.per_step(hyperparameters)


def _median(values: np.ndarray | None) -> float | None:
    """Median of a timing, which does not mind the first steps (they compile and load); none if it was hardly logged."""
    if values is None:
        return None
    known = values[np.isfinite(values) & (values > 0)]
    return float(np.median(known)) if len(known) >= 3 else None


def _timing(run: Run, names: tuple[str, ...]) -> float | None:
    found = [_median(run.extra.get(name)) for name in names]
    return next((value for value in found if value is not None), None)


def prices_from_run(run: Run, hyperparameters: Hyperparameters) -> tuple[Prices, list[str]]:
    """Prices in seconds from the timings of a log; stated defaults in rollouts where it has none.

    Args:
        run: The run.
        hyperparameters: Its settings.

    Returns:
        The prices, and a sentence on each of their origins.
    """
    h = hyperparameters
    per_refresh = float(h.rollouts_per_step * h.minibatches_per_rollout)
    trained = float(h.rollouts_per_step * h.refresh_interval)
    units = 1.0 if run.row_is_rollout else float(h.refresh_interval)
    whole = _median(run.channels.get("step_time"))
    generation, update = _timing(run, _GENERATION), _timing(run, _UPDATE)
    if generation is not None and update is not None:
        synchronisation = _timing(run, _SYNCHRONISATION)
        notes = [
            f"prices from the log's timings (medians): {generation:.3g} s of generation and {update:.3g} s of training "
            f"per set of {per_refresh:.4g} rollouts"
        ]
        if synchronisation is None:
            # What a step takes beyond generation and training belongs to the rollouts as far as it is known.
            synchronisation = 0.05 * (generation + update)
            notes.append(
                "the log has no timing of a synchronisation: 5 % of generation and training is assumed"
            )
        if whole is not None:
            rest = max(whole - generation - update - synchronisation, 0.0)
            generation += rest
            notes.append(f"the other {rest:.3g} s of a step are counted as the rollouts'")
        return Prices(
            rollout=generation * units / per_refresh,  # pyright: ignore[reportArgumentType]
            update=update * units / trained,  # pyright: ignore[reportArgumentType]
            synchronisation=synchronisation * units,  # pyright: ignore[reportArgumentType]
            unit="seconds",
        ), notes
    if whole is None:
        return Prices(), [
            "the log has no timings: a rollout counts 1, training on one counts 0.5, a synchronisation 8 (give prices "
            "of your own if you have them)"
        ]
    seconds = whole * units
    share = per_refresh + _DEFAULTS["update"] * trained + _DEFAULTS["synchronisation"]
    return Prices(
        rollout=seconds / share,  # pyright: ignore[reportArgumentType]
        update=_DEFAULTS["update"] * seconds / share,  # pyright: ignore[reportArgumentType]
        synchronisation=_DEFAULTS["synchronisation"] * seconds / share,  # pyright: ignore[reportArgumentType]
        unit="seconds",
    ), [
        f"the log times whole steps alone ({seconds:.3g} s a refresh, median): a rollout, training on one and a "
        "synchronisation are taken to cost as 1 : 0.5 : 8"
    ]


def prices_from_mapping(values: Mapping[str, float | int], unit: str = "rollouts") -> Prices:
    """Prices by name, the others at their defaults.

    Args:
        values: Prices under `rollout`, `update`, `synchronisation`.
        unit: Name of the unit.

    Returns:
        The prices.

    Raises:
        TuneError: If a name is unknown or a price is out of range.
    """
    unknown = sorted(set(values) - set(_DEFAULTS))
    if unknown:
        raise TuneError(f"{unknown[0]!r} is no price; there are: {', '.join(_DEFAULTS)}")
    try:
        return Prices(**{**_DEFAULTS, **values}, unit=unit)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise TuneError(str(error)) from error
