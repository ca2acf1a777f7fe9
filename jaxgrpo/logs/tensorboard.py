"""TensorBoard event files, of verl and of the Hugging Face Trainer."""

import json
import logging
import os
import struct
import tempfile
from collections.abc import Iterator
from typing import Any

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.records import framework_of
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import Table

_INSTALL = "pip install 'jaxgrpo[tensorboard]'"
_MAX_TEXT = 2_000_000


def looks_like(head: bytes) -> bool:
    """Whether bytes begin an event file: a record whose first event names the file's version."""
    return b"brain.Event:" in head[:256] and b"\x00" in head[:16]


def read(source: Source) -> list[Table]:
    """Read an event file.

    Args:
        source: The log.

    Returns:
        One table; the events of a step make a row.

    Raises:
        ReadError: If the file is damaged, or the package to read it is not installed.
    """
    table = Table(source.name, "tensorboard", "rollout")
    texts: dict[str, str] = {}
    row: dict[str, float] = {}
    step: int | None = None
    try:
        for event_step, tag, value in _scalars(source, texts):
            if event_step != step or tag in row:
                if row and step is not None:
                    table.add(row | {"step": float(step)})
                row, step = {}, event_step
            row[tag] = value
    except ReadError:
        raise
    except Exception as error:  # The event reader raises its own and protobuf's, of many kinds.
        if not table.rows and not row:
            raise ReadError(
                f"{source.label}: the TensorBoard file is damaged ({' '.join(str(error).split())[:120]})"
            ) from error
        table.notes.append(f"the TensorBoard file is damaged after step {step}: what follows is lost")
    if row and step is not None:
        table.add(row | {"step": float(step)})
    if table.rows == 0:
        raise ReadError(f"{source.label}: the TensorBoard file holds no scalars; nothing was logged to it")
    table.framework = framework_of(table.names) or "tensorboard"
    if table.framework == "trl":
        table.counts = "optimizer"
    table.settings = _settings(texts)
    return [table]


def _scalars(source: Source, texts: dict[str, str]) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of each scalar; texts are put aside."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise ReadError(f"{source.label}: is a TensorBoard file; to read it: {_INSTALL}") from error
    quiet = logging.getLogger("tensorboard")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="jaxgrpo-") as folder:
            path = os.path.join(folder, "events")
            with open(path, "wb") as handle:
                handle.write(source.data())
            for event in LegacyEventFileLoader(path).Load():
                for value in event.summary.value:
                    yield from _scalar(event.step, value, texts)
    finally:
        quiet.setLevel(level)


def _scalar(step: int, value: Any, texts: dict[str, str]) -> Iterator[tuple[int, str, float]]:
    """One value of a summary, if it is a scalar."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        yield step, value.tag, float(value.simple_value)
    elif kind == "tensor":
        tensor = value.tensor
        if len(tensor.string_val):
            if len(tensor.string_val[0]) < _MAX_TEXT:
                texts.setdefault(value.tag, tensor.string_val[0].decode("utf-8", "replace"))
        elif len(tensor.float_val) == 1:
            yield step, value.tag, float(tensor.float_val[0])
        elif len(tensor.double_val) == 1:
            yield step, value.tag, float(tensor.double_val[0])
        elif tensor.dtype == 1 and len(tensor.tensor_content) == 4:
            yield step, value.tag, struct.unpack("<f", tensor.tensor_content)[0]
        elif tensor.dtype == 2 and len(tensor.tensor_content) == 8:
            yield step, value.tag, struct.unpack("<d", tensor.tensor_content)[0]


def _settings(texts: dict[str, str]) -> dict[str, Any]:
    """The training arguments that the Hugging Face Trainer writes as JSON."""
    for tag in ("args/text_summary", "args"):
        try:
            settings = json.loads(texts.get(tag, ""))
        except (ValueError, RecursionError):
            continue
        if isinstance(settings, dict):
            return settings
    return {}
