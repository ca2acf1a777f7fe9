"""Settings of a training framework as a table of dotted names, and how one value is looked up in it."""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxgrpo.errors import ReadError

_MAX_SETTINGS = 100_000
_MAX_DEPTH = 40
_ABSENT = ("", "null", "none", "None", "~", "???")
_NUMBERS = (int, float, np.generic, np.ndarray)
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxstring = 3, 50, 50, 200
TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off", "none")


def flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Bring settings, however nested, to one level of dotted names.

    Leading dashes and the plus signs of Hydra overrides are dropped, `-` inside a name becomes `_` and `/`
    becomes `.`; the `{"value": ...}` wrappers of Weights & Biases are opened.

    Args:
        settings: The settings as read from a log, a configuration file or a command line.

    Returns:
        Dotted name -> value; lists stay values.

    Raises:
        ReadError: If two spellings of one name disagree, or the settings are absurdly large or deep.

    Example:
        >>> flatten_settings({"--learning-rate": "1e-6", "actor": {"optim": {"lr": 2e-6}}})
        {'learning_rate': '1e-6', 'actor.optim.lr': 2e-06}
    """
    flat: dict[str, Any] = {}
    stack: list[tuple[str, Mapping[Any, Any], int]] = [("", settings, 0)]
    visited = 0
    while stack:
        prefix, node, depth = stack.pop()
        if depth > _MAX_DEPTH:
            raise ReadError(f"settings are nested more than {_MAX_DEPTH} levels deep at {prefix[:60]!r}")
        for key, value in node.items():
            visited += 1
            if visited > _MAX_SETTINGS:
                raise ReadError(f"more than {_MAX_SETTINGS} settings; this is no training configuration")
            name = prefix + "".join(str(key).split()).lstrip("-+~").replace("-", "_").replace("/", ".")
            if isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}:
                value = value["value"]
            if isinstance(value, Mapping):
                stack.append((name + ".", value, depth + 1))
                continue
            if name in flat and not same_value(flat[name], value):
                raise ReadError(
                    f"setting {show(name)} is given twice, {show(flat[name])} and {show(value)}; keep one"
                )
            flat[name] = value
    return flat


def same_value(first: Any, second: Any) -> bool:
    """Whether two values say the same; numbers may be text."""
    left, right = as_number(first), as_number(second)
    if left is not None and right is not None:
        return left == right
    return as_text(first) == as_text(second)


def as_text(value: Any) -> str:
    """A value as lower-case text, of a length that does not depend on how often lists refer to lists."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return text.strip().strip("\"'").lower()


def show(value: Any) -> str:
    """A value for a message: one line, not too long."""
    text = " ".join(_SHORT.repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def as_number(value: Any) -> float | None:
    """A finite number, which may be text, or None; booleans are no numbers."""
    if isinstance(value, str):
        value = value.strip().strip("\"'")
        if len(value) > 40:
            return None
    elif isinstance(value, bool | np.bool_) or np.ndim(value) or not isinstance(value, _NUMBERS):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _first_of(value: Any) -> Any:
    """First entry of a pair such as Adam's betas, which may be text: `(0.9, 0.95)` or `0.9 0.95`."""
    if isinstance(value, str):
        parts = value.strip("[]()\"' \t").replace(",", " ").split()
        return parts[0] if parts else None
    if isinstance(value, list | tuple | np.ndarray):
        return value[0] if len(value) else None
    return value


@dataclass(frozen=True)
class Option:
    """One setting of a framework.

    Args:
        names: Its dotted names, the current one first; every one is accepted, the first is written.
        default: What the framework takes if it is not given; None if there is no such value.
        first: Whether the value is the first entry of a list, as for Adam's betas.
    """

    names: tuple[str, ...]
    default: Any = None
    first: bool = False


def option(names: str, default: Any = None, *, first: bool = False) -> Option:
    """An `Option` from names that blanks separate."""
    return Option(tuple(names.split()), default, first)


@dataclass
class Settings:
    """One framework's settings while they are read.

    Args:
        title: The framework's name in messages.
        options: Quantity -> setting.
        flat: The settings, by dotted name.
        assumed: Filled with the defaults that had to be taken, by name.
        notes: Filled with remarks for the user.
        found: Filled with the names that were looked up and present.
    """

    title: str
    options: Mapping[str, Option]
    flat: dict[str, Any]
    assumed: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    found: set[str] = field(default_factory=set)

    def find(self, quantity: str) -> tuple[str, Any] | None:
        """Name and value of a setting, or None if it is absent."""
        wanted = self.options.get(quantity)
        if wanted is None:
            return None
        hits = [name for name in wanted.names if self._present(name)]
        if not hits:
            ending = "." + wanted.names[0]
            hits = [name for name in self.flat if name.endswith(ending) and self._present(name)]
        for name in hits[1:]:
            if not same_value(self._resolved(hits[0]), self._resolved(name)):
                raise ReadError(
                    f"{self.title} settings contradict each other: {hits[0]} = {show(self.flat[hits[0]])} "
                    f"but {name} = {show(self.flat[name])}"
                )
        if not hits:
            return None
        self.found.add(hits[0])
        value = self._resolved(hits[0])
        return hits[0], _first_of(value) if wanted.first else value

    def _present(self, name: str) -> bool:
        value = self._resolved(name)
        return not (value is None or (isinstance(value, str) and value.strip() in _ABSENT))

    def _resolved(self, name: str) -> Any:
        """A value, following references to other settings such as `${policy.max_grad_norm}`."""
        value = self.flat.get(name)
        for _ in range(8):
            if not (isinstance(value, str) and value.startswith("${")):
                return value
            value = self.flat.get(value[2:].rstrip("}").strip())
        return None

    def name(self, quantity: str) -> str:
        """The name under which a setting is given, or its current name."""
        hit = self.find(quantity)
        return hit[0] if hit else self.options[quantity].names[0]

    def given(self, quantity: str) -> bool:
        """Whether a setting is given."""
        return self.find(quantity) is not None

    def number(
        self, quantity: str, *, low: float = 0.0, below: float = math.inf, whole: bool = False
    ) -> float | None:
        """A number within its range; where it is absent the default, which is then remembered as assumed."""
        hit = self.find(quantity)
        if hit is None:
            default = self.options[quantity].default
            if default is not None:
                self.assumed[self.options[quantity].names[0]] = default
            return None if default is None else float(default)
        name, value = hit
        number = as_number(value)
        if number is None or (whole and number != round(number)) or not low <= number < below:
            kind = "a whole number" if whole else "a number"
            limit = f" and less than {below:g}" if below < math.inf else ""
            raise ReadError(
                f"{self.title} setting {name} must be {kind} of at least {low:g}{limit}, got {show(value)}"
            )
        return number

    def count(self, quantity: str) -> float:
        """A whole number of at least 1, of a setting that has a default."""
        number = self.number(quantity, low=1.0, whole=True)
        return 1.0 if number is None else number

    def optional_count(self, quantity: str) -> float | None:
        """A whole number of at least 1, or None; no default is taken."""
        return self.number(quantity, low=1.0, whole=True) if self.given(quantity) else None

    def optional_positive(self, quantity: str) -> float | None:
        """A number above 0, or None: absent, zero and -1 all mean that a setting is not used."""
        hit = self.find(quantity)
        if hit is None:
            return None
        number = as_number(hit[1])
        if number is None:
            raise ReadError(f"{self.title} setting {hit[0]} must be a number, got {show(hit[1])}")
        return number if number > 0 else None

    def text(self, quantity: str) -> str | None:
        """A text, lower case, or None."""
        hit = self.find(quantity)
        return None if hit is None else as_text(hit[1])

    def flag(self, quantity: str) -> bool:
        """A switch; its default where it is absent."""
        text = self.text(quantity)
        if text is None:
            return bool(self.options[quantity].default)
        if text in TRUE or text in FALSE:
            return text in TRUE
        raise ReadError(f"{self.title} setting {self.name(quantity)} must be true or false, got {show(text)}")

    def minibatches(self, quotient: float, whole_batch: str, minibatch: str) -> float:
        """Mini-batches per set of rollouts; one where the mini-batch asked for exceeds the batch."""
        if quotient >= 1.0:
            return quotient
        self.notes.append(
            f"{self.name(minibatch)} exceeds {self.name(whole_batch)}; a rollout is then one mini-batch"
        )
        return 1.0
