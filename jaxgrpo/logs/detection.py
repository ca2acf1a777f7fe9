"""Telling a log's format from its content."""

import json
import re

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import console, delimited, json_layouts, json_lines, tensorboard
from jaxgrpo.logs.source import Source, decode
from jaxgrpo.logs.table import Table

FORMATS = ("tensorboard", "json", "jsonl", "csv", "console")
"""Names of formats that a caller may insist on."""

FRAMEWORKS = ("trl", "verl", "openrlhf", "nemo-rl", "prime-rl", "tunix", "tinker-cookbook", "roll", "wandb")
"""Names of frameworks that a caller may insist on."""

_JSON = re.compile(r"\s*(\{\s*[\"}]|\[\s*[\[{\"])")


def read_any(source: Source, wanted: str | None = None) -> list[Table]:
    """Recognise a log and read it.

    Args:
        source: The log.
        wanted: A format of `FORMATS` or a framework of `FRAMEWORKS` that the caller insists on.

    Returns:
        One table for each run.

    Raises:
        ReadError: If it is of no known format or damaged.
    """
    if wanted is not None and wanted not in FORMATS + FRAMEWORKS:
        from jaxgrpo.logs.columns import near

        raise ReadError(f"framework {wanted!r} is not known; {near(wanted, FORMATS + FRAMEWORKS)}")
    form = wanted if wanted in FORMATS else _format(source)
    if form == "tensorboard":
        tables = tensorboard.read(source)
    elif form == "jsonl":
        tables = json_lines.read(source)
    elif form == "json":
        tables = json_layouts.read(source)
    elif form == "csv":
        tables = delimited.read(source)
    else:
        tables = console.read(source, wanted if wanted in FRAMEWORKS else None)
    if wanted in FRAMEWORKS:
        for table in tables:
            table.framework = wanted
            table.counts = "optimizer" if wanted == "trl" else table.counts
    return tables


def _format(source: Source) -> str:
    """The format that the beginning of a log shows."""
    head = source.head()
    if not head.strip():
        raise ReadError(f"{source.label}: there is nothing in it but white space")
    if tensorboard.looks_like(head):
        return "tensorboard"
    is_wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    if b"\x00" in head[:4096] and not is_wide:
        raise ReadError(
            f"{source.label}: is of no format of training logs (binary, but no TensorBoard event file)"
        )
    text = decode(head)
    if _JSON.match(text):
        return "jsonl" if _is_json_lines(text, len(head) < 65536) else "json"
    if delimited.looks_like(text):
        return "csv"
    return "console"


def _is_json_lines(text: str, complete: bool) -> bool:
    """Whether each line is an object of its own, judged by the first ones."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines[0].lstrip().startswith("{"):
        return False
    if len(lines) == 1 and not complete:
        # One line longer than what was looked at: an object a line, if it ends within the line.
        return False
    try:
        first = json.loads(lines[0])
    except ValueError:
        return False
    if not isinstance(first, dict):
        return False
    return len(lines) > 1 or not any(isinstance(value, dict | list) for value in first.values())
