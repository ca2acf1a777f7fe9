"""Consoles: one pass over the lines, each offered to every reader that knows a way of printing metrics."""

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import homemade, trl, verl
from jaxgrpo.logs.source import Source
from jaxgrpo.logs.table import Table

MAX_LINE = 10_000_000
"""A longer line is no line of a log."""


def read(source: Source, framework: str | None = None) -> list[Table]:
    """Read console output.

    Args:
        source: The log.
        framework: `"verl"` or `"trl"` to look for its rows alone.

    Returns:
        The table of the reader that found rows; verl's and TRL's go before home-made ones.

    Raises:
        ReadError: If no line is a row of metrics.
    """
    readers = {
        "verl": verl.ConsoleReader(source.name),
        "trl": trl.ConsoleReader(source.name),
        "": homemade.ConsoleReader(source.name),
    }
    chosen = [readers[framework]] if framework in readers else list(readers.values())
    for line in source.lines():
        if len(line) > MAX_LINE:
            line = line[:MAX_LINE]
        for index, reader in enumerate(chosen):
            if reader.feed(line):
                if reader.has_rows:
                    # Readers further down would not be asked any more.
                    chosen = chosen[: index + 1]
                break
    for reader in chosen:
        tables = reader.finish()
        if tables:
            return tables
    raise ReadError(
        f"{source.label}: is of no format of training logs: no line of it is a row of metrics with a reward; "
        f"a table of your own can be given as CSV or JSON lines"
    )
