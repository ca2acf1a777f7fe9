"""What an ensemble can simulate: a rule that moves many paths of one configuration."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxgrpo.simulation.configurations import Configurations
from jaxgrpo.simulation.noise import Words

# What has been seen of each path so far: whether it reached the target, whether it diverged.
Seen = tuple[Bool[Array, " paths"], Bool[Array, " paths"]]
# Called with the state after each unit of time, and with what was seen before; twice with one state does no harm.
Observer = Callable[[Any, Seen], Seen]


class AbstractRule(eqx.Module):
    """A rule that moves paths; concrete rules are final.

    Optimizer steps are cut into `units()` units of time, `body()` of which make a body of the loop. From unit `first`
    up to before unit `last` the loop calls `advance` for the bodies `first // body()` to `ceil(last / body()) - 1`.
    """

    @abc.abstractmethod
    def units(self) -> int:
        """Units of time to an optimizer step."""

    @abc.abstractmethod
    def body(self) -> int:
        """Units of time that `advance` covers."""

    @abc.abstractmethod
    def bind(self, c: Configurations) -> Any:
        """What the other methods need of one configuration, prepared once, before the loop."""

    @abc.abstractmethod
    def start(self, bound: Any, paths: UInt32[Array, " paths"]) -> Any:
        """State of the paths at the start."""

    @abc.abstractmethod
    def reward(self, bound: Any, state: Any) -> Float[Array, " paths"]:
        """Expected reward of the paths."""

    @abc.abstractmethod
    def advance(
        self,
        bound: Any,
        words: Words,
        paths: UInt32[Array, " paths"],
        carry: tuple[Any, Seen],
        body: Int[Array, ""],
        first: Int[Array, ""],
        last: Int[Array, ""],
        observe: Observer,
    ) -> tuple[Any, Seen]:
        """Move the paths through one body of the loop, as far as it lies between `first` and `last`."""
