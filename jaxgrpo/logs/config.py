"""Configuration files of training frameworks: YAML, TOML, JSON, Hydra overrides, scripts, `GRPOConfig` calls.

Nothing is executed: Python files are parsed and only literals are taken, shell scripts are split into words.
"""

import ast
import json
import re
import shlex
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.frameworks import detect_framework, framework_named
from jaxgrpo.logs.settings import flatten_settings, same_value

_MAX_BYTES = 5_000_000
_MAX_EXPANSION = 4_000
_MAX_QUOTED_LINES = 50
_CALL = re.compile(r"(?:^|[A-Z])\w*(?:Config|Args|Arguments)$|^Config$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\Z")
_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w./-]*(?:\[\d+\])?\Z")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^{}$]*))?\}|(\w+))")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\Z")


class _Unparsed(Exception):
    """A text that is not in the format tried; the message says where."""


def read_config(path: str | Path, framework: str | None = None) -> tuple[str, dict[str, Any]]:
    """Read a training configuration and recognise its framework.

    YAML, TOML, JSON, lists of Hydra overrides, shell scripts with `--learning_rate 1e-6` or
    `actor_rollout_ref.actor.optim.lr=1e-6`, and Python files that call `GRPOConfig(...)` are understood.

    Args:
        path: The file.
        framework: The framework's name, if it is not to be recognised by its settings.

    Returns:
        The framework's name and the settings, by dotted name.

    Raises:
        ReadError: If the file cannot be read or parsed, or its framework is unknown or another than named.
    """
    path = Path(path)
    named = None if framework is None else framework_named(framework)
    text = _read_text(path)
    try:
        settings = flatten_settings(_parse(path, text))
    except ReadError as error:
        raise ReadError(f"{path}: {' '.join(str(error).split())}") from None
    except (RecursionError, MemoryError):
        raise ReadError(f"{path}: nested too deeply to be a training configuration") from None
    if not settings:
        raise ReadError(
            f"{path}: no settings found; give the trainer's YAML, TOML, JSON, script or GRPOConfig call"
        )
    detected = detect_framework(settings)
    if named is None:
        if detected is None:
            some = ", ".join(list(settings)[:3])[:100]
            raise ReadError(
                f"{path}: no framework is recognised by these settings ({some}); name it, for example 'trl'"
            )
        return detected, settings
    if detected is not None and framework_named(detected).family != named.family:
        title = framework_named(detected).title
        raise ReadError(f"{path}: these settings look like {title} ({detected!r}), not {named.title}")
    return named.name, settings


def _read_text(path: Path) -> str:
    """The text of a file of reasonable size."""
    try:
        if not path.is_file():
            kind = "is a directory" if path.is_dir() else "does not exist"
            raise ReadError(f"{path}: the configuration file {kind}")
        if path.stat().st_size > _MAX_BYTES:
            raise ReadError(
                f"{path}: larger than {_MAX_BYTES // 1_000_000} MB; this is no training configuration"
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, ReadError):
            raise
        raise ReadError(f"{path}: cannot be read ({reason})") from None
    if not data.strip():
        raise ReadError(f"{path}: the configuration file is empty")
    if b"\0" in data:
        raise ReadError(f"{path}: binary, not a configuration file")
    return data.decode("utf-8-sig", errors="replace")


def _parse(path: Path, text: str) -> dict[str, Any]:
    """Settings from a text; the ending says what to try first, and what must succeed."""
    ending = path.suffix.lower()
    by_ending: dict[str, Callable[[str], dict[str, Any]]] = {
        ".json": _json,
        ".yaml": _yaml,
        ".yml": _yaml,
        ".toml": _toml,
        ".py": _python,
        ".sh": _shell,
    }
    if ending in by_ending:
        try:
            return by_ending[ending](text)
        except _Unparsed as error:
            kind = {".py": "Python", ".sh": "a script"}.get(ending, ending[1:].upper())
            raise ReadError(f"not readable as {kind} ({error})") from None
    first: dict[str, Any] = {}
    for parse in (_json, _toml, _yaml, _python, _shell):
        try:
            settings = flatten_settings(parse(text))
        except (_Unparsed, ReadError):
            continue
        if detect_framework(settings):
            return settings
        first = first or settings
    return first


def _mapping(value: Any) -> dict[str, Any]:
    """A mapping of settings; a list of overrides becomes one."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
        return _overrides(value)
    raise _Unparsed(f"a table of settings is needed, found {type(value).__name__}")


def _json(text: str) -> dict[str, Any]:
    try:
        return _mapping(json.loads(text))
    except json.JSONDecodeError as error:
        raise _Unparsed(f"line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise _Unparsed(str(error)[:80]) from None


def _toml(text: str) -> dict[str, Any]:
    try:
        return _mapping(tomllib.loads(text))
    except ValueError as error:
        raise _Unparsed(str(error)[:120]) from None


def _yaml(text: str) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        value = yaml.load(text, Loader=loader)  # noqa: S506 (both are safe loaders)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise _Unparsed(where + str(getattr(error, "problem", None) or "not YAML")[:80]) from None
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        # Impossible dates and the like come out of the constructors as plain errors.
        raise _Unparsed(str(error)[:80]) from None
    return _mapping(value)


def _python(text: str) -> dict[str, Any]:
    """Keyword arguments of the calls of `GRPOConfig` and its kin, as far as they are literals."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise _Unparsed(f"line {getattr(error, 'lineno', None) or '?'}: {str(error)[:80]}") from None
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found, value = _literal(node.value, constants)
            name = node.targets[0].id
            # A name bound twice has no one value.
            constants[name] = value if found and name not in constants else None
    calls: list[tuple[str, ast.Call]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if _CALL.search(name):
                calls.append((name, node))
    # A notebook may tune the model in other ways first; those settings are not of this run.
    calls = [(name, call) for name, call in calls if "GRPO" in name] or calls
    settings: dict[str, Any] = {}
    for name, call in calls:
        for keyword in call.keywords:
            found, value = _literal(keyword.value, constants)
            if keyword.arg is None or not found or value is None:
                continue
            if not same_value(settings.setdefault(keyword.arg, value), value):
                raise _Unparsed(f"line {call.lineno}: another call of {name} sets {keyword.arg} differently")
    return settings


def _literal(node: ast.expr, constants: Mapping[str, Any], depth: int = 6) -> tuple[bool, Any]:
    """Whether an expression is a literal (or the name of one), and its value."""
    if depth == 0:
        return False, None
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None):
        return True, node.value
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id] is not None, constants[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found, value = _literal(node.operand, constants, depth - 1)
        if found and isinstance(value, int | float):
            return True, -value
    if isinstance(node, ast.List | ast.Tuple) and len(node.elts) <= 100:
        items = [_literal(item, constants, depth - 1) for item in node.elts]
        if all(found for found, _ in items):
            return True, [value for _, value in items]
    return False, None


def _overrides(words: list[str]) -> dict[str, Any]:
    """Settings from words such as `a.b=c` and `--name value`."""
    settings: dict[str, Any] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, equals, value = word.partition("=")
        if word.startswith("--") and len(word) > 2:
            if not equals:
                values = []
                while position < len(words) and _is_value(words[position]):
                    # Only numbers can follow a value: `--adam_betas 0.9 0.95`.
                    if values and not (_NUMBER.match(values[-1]) and _NUMBER.match(words[position])):
                        break
                    values.append(words[position])
                    position += 1
                value = True if not values else values[0] if len(values) == 1 else values
            settings[name[2:]] = value
        elif equals and _OVERRIDE.match(name):
            settings[name.lstrip("+~")] = value
    return settings


def _is_value(word: str) -> bool:
    """Whether a word is the value of the option before it, not an option or override itself."""
    if word.startswith("--"):
        return False
    name, equals, _ = word.partition("=")
    return not (equals and _OVERRIDE.match(name))


def _shell(text: str) -> dict[str, Any]:
    """Settings from the commands of a shell script; its own variables are filled in."""
    variables: dict[str, str] = {}
    words: list[str] = []
    for command in _commands(text):
        at_start = True
        for word in command:
            name, equals, value = word.partition("=")
            if at_start and word in ("export", "local", "readonly", "declare", "set"):
                continue
            if at_start and equals and _ASSIGNMENT.match(name):
                if not value.startswith("("):
                    variables[name] = _filled_in(value, variables)
                    continue
                word = value[1:]
            at_start = False
            word = _filled_in(word, variables).strip("()")
            # A variable may hold several words, as in ARGUMENTS="--a 1 --b 2".
            words.extend(word.split() if " --" in f" {word}" and "=" not in word.split(" ")[0] else [word])
    settings = _overrides([word for word in words if word])
    return settings if settings else dict(variables)


def _commands(text: str) -> Iterator[list[str]]:
    """The commands of a script as lists of words: lines, joined where a backslash or a quotation goes on."""
    waiting, lines = "", 0
    for line in text.splitlines():
        if waiting and line.lstrip().startswith("#"):
            continue
        waiting, lines = f"{waiting} {line}", lines + 1
        if waiting.rstrip().endswith("\\"):
            waiting = waiting.rstrip()[:-1]
            continue
        try:
            words = shlex.split(waiting, comments=True)
        except ValueError:
            if lines < _MAX_QUOTED_LINES:
                continue
            # No quotation is that long: the quotation mark was an apostrophe.
            words = waiting.split()
        waiting, lines = "", 0
        yield words
    if waiting:
        yield waiting.split()


def _filled_in(word: str, variables: Mapping[str, str]) -> str:
    """A word with the script's own variables in place; `${NAME:-default}` takes its default."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else "")

    for _ in range(4):
        filled = _VARIABLE.sub(value, word)
        if filled == word or len(filled) > _MAX_EXPANSION:
            break
        word = filled
    return word[:_MAX_EXPANSION]
