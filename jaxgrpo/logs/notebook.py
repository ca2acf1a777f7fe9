"""Notebooks: the results are an HTML table in a cell's output."""

import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import trl
from jaxgrpo.logs.columns import REWARD, STEP, normal
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import Table, number

_ARGUMENT = re.compile(r"\b(\w{2,40})\s{0,10}=\s{0,10}([-+]?\d[\d.eE+-]{0,20})\s{0,10}[,)#\n]")
_ARGUMENTS = (
    "learning_rate adam_beta1 num_generations num_iterations steps_per_generation "
    "gradient_accumulation_steps per_device_train_batch_size max_steps beta"
).split()


class _Tables(HTMLParser):
    """Collects the cells of each table."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tables: list[list[list[str]]] = []
        self._cell: list[str] | None = None

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self._close()
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self._close()
            self.tables[-1].append([])
        elif tag in ("td", "th") and self.tables and self.tables[-1]:
            self._close()
            self._cell = []

    def handle_endtag(self, tag):
        if tag in ("td", "th", "tr", "table"):
            self._close()

    def handle_data(self, data):
        if self._cell is not None:
            self._cell.append(data)

    def _close(self):
        if self._cell is not None:
            self.tables[-1][-1].append("".join(self._cell).strip())
            self._cell = None


def _text(value: Any) -> str:
    """A notebook's multi-line text, which is a list of lines or one string."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _outputs(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """HTML and plain text of each output."""
    for cell in document["cells"]:
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else []:
            if not isinstance(output, dict):
                continue
            data = output.get("data")
            html = _text(data.get("text/html")) if isinstance(data, dict) else ""
            yield html, _text(output.get("text"))


def read(document: Mapping[str, Any], source: Source) -> list[Table]:
    """Read the tables of training results in a notebook.

    Args:
        document: The parsed notebook.
        source: The log.

    Returns:
        One table; several tables of results are sessions of it.

    Raises:
        ReadError: If no output holds a table with steps and rewards.
    """
    table = Table(source.name, "trl", "optimizer")
    console = trl.ConsoleReader(source.name)
    for html, text in _outputs(document):
        for line in text.splitlines():
            console.feed(line)
        if "<table" not in html:
            continue
        parser = _Tables()
        parser.feed(html)
        parser.close()
        for cells in parser.tables:
            _add(table, cells)
    settings = console.table.settings
    printed = console.finish()
    if table.rows == 0:
        if not printed:
            raise ReadError(
                f"{source.label}: is a notebook without a table of training results; "
                f"run it, or save it with its outputs"
            )
        table = printed[0]
    settings.pop("max_steps", None)
    table.settings = settings | _arguments(document)
    return [table]


def _add(table: Table, cells: list[list[str]]) -> None:
    """Take a table of results, if it is one: its header names a step and a reward."""
    if len(cells) < 2:
        return
    header = [re.sub(r"\s*/\s*", "/", name) for name in cells[0]]
    names = [normal(name) for name in header]
    if not any(name in REWARD for name in names) or not any(name in STEP for name in names):
        return
    table.break_here()
    for row in cells[1:]:
        values = {name: number(value) for name, value in zip(header, row, strict=False)}
        table.add({name: value for name, value in values.items() if value is not None})


def _arguments(document: Mapping[str, Any]) -> dict[str, float | int]:
    """Plain numbers among the arguments of a `GRPOConfig` in the notebook's code."""
    found: dict[str, float | int] = {}
    for cell in document["cells"]:
        code = _text(cell.get("source")) if isinstance(cell, dict) else ""
        start = code.find("GRPOConfig(")
        if start < 0:
            continue
        lines = [line.split("#", 1)[0] + "\n" for line in code[start : start + 20_000].splitlines()]
        for name, text in _ARGUMENT.findall("".join(lines)):
            value = number(text)
            if name in _ARGUMENTS and value is not None:
                found[name] = int(value) if value.is_integer() and name != "beta" else value
    return found
