"""A training run as read from a log: one reward per logged step, and what was logged beside it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from jaxgrpo.theory.hyperparameters import Hyperparameters

CHANNELS = (
    "reward_std",
    "kl",
    "entropy",
    "length",
    "grad_norm",
    "learning_rate",
    "zero_spread",
    "clip_fraction",
    "truncation",
    "eval_reward",
    "loss",
    "step_time",
    "num_tokens",
)
"""Canonical names that `Run.channels` may hold."""


@dataclass(frozen=True, eq=False)
class Run:
    """One training run, as its log tells it.

    All arrays are float64, have one entry per kept row of the log, and hold NaN where the log has nothing.

    Attributes:
        steps: Optimizer steps since the log's first row, at which the policy that earned the reward acted.
        logged_steps: Steps as the log counts them; 1, 2, 3... where it does not.
        reward: Mean training reward.
        channels: Other series under canonical names, those in `CHANNELS`.
        parts: Components of the reward, by the name of the reward function.
        extra: Every other numeric series, by the log's own name.
        hyperparameters: What the log, the configuration and the caller know together, or `None`.
        settings: The training framework's own settings, where the log carries them.
        framework: Name of the training framework or of the format.
        name: Name of the run.
        path: Where the log was read from.
        warnings: One line for each decision that was taken while reading.
        steps_per_row: Optimizer steps between two consecutive units of `logged_steps`.
        row_is_rollout: Whether one unit of `logged_steps` is one set of rollouts, that is K optimizer steps.
    """

    steps: Float64[np.ndarray, " n"]
    logged_steps: Float64[np.ndarray, " n"]
    reward: Float64[np.ndarray, " n"]
    channels: dict[str, Float64[np.ndarray, " n"]] = field(default_factory=dict)
    parts: dict[str, Float64[np.ndarray, " n"]] = field(default_factory=dict)
    extra: dict[str, Float64[np.ndarray, " n"]] = field(default_factory=dict)
    hyperparameters: Hyperparameters | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    framework: str = "unknown"
    name: str = "run"
    path: Path | None = None
    warnings: tuple[str, ...] = ()
    steps_per_row: float = 1.0
    row_is_rollout: bool = False

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        kept = ", ".join(self.channels)
        return f"Run({self.name!r}, {len(self)} points, framework={self.framework!r}, channels=[{kept}])"

    def head(self, fraction: float) -> "Run":
        """Keep the beginning of the run.

        Args:
            fraction: Part of the points to keep, in (0, 1]; rounded up to a whole point.

        Returns:
            The run's first points.

        Raises:
            ValueError: If the fraction lies outside (0, 1].
        """
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction must lie in (0, 1], got {fraction}")
        # A fraction such as 0.1 of 30 points is 3, whatever the last bit of the product says.
        return self.select(slice(0, math.ceil(round(fraction * len(self), 9))))

    def select(self, rows: slice | np.ndarray) -> "Run":
        """Keep some of the rows.

        Args:
            rows: A slice, a mask or indices; times stay as they are.

        Returns:
            The run with these rows alone.
        """
        return replace(
            self,
            steps=self.steps[rows],
            logged_steps=self.logged_steps[rows],
            reward=self.reward[rows],
            channels={name: values[rows] for name, values in self.channels.items()},
            parts={name: values[rows] for name, values in self.parts.items()},
            extra={name: values[rows] for name, values in self.extra.items()},
        )

    def acting_under(self, hyperparameters: Hyperparameters) -> "Run":
        """The run with its times as they are under other hyperparameters.

        A row that is one set of rollouts takes K optimizer steps, and its reward was earned by the policy of d sets of
        rollouts before it.

        Args:
            hyperparameters: The settings to count steps by.

        Returns:
            The run with `hyperparameters`, and `steps` counted by them.
        """
        if len(self) == 0:
            return replace(self, hyperparameters=hyperparameters)
        interval = float(f"{float(hyperparameters.refresh_interval):.6g}")
        unit = interval if self.row_is_rollout else self.steps_per_row
        late = float(hyperparameters.async_lag) * interval
        steps = np.maximum((self.logged_steps - self.logged_steps[0]) * unit - late, 0.0)
        return replace(self, hyperparameters=hyperparameters, steps=steps, steps_per_row=unit)
