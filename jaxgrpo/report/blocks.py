"""What a report consists of, independent of where it is shown: the terminal or a page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Title:
    """Title of a report, with what it is about in small print."""

    text: str
    detail: str = ""


@dataclass(frozen=True)
class Heading:
    """Heading of a part of a report."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Plain text; wrapped to the width there is."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """Short remarks."""

    items: Sequence[str]


@dataclass(frozen=True)
class Pairs:
    """Names with their values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading, of one line or several.
        align: Numbers to the right, words to the left.
        wraps: Whether its cells may be broken into several lines.
        expendable: Columns of the highest number are the first to be left out where there is no room; those
            of 0 stay.
    """

    title: str
    align: Literal["left", "right"] = "right"
    wraps: bool = False
    expendable: int = 0


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; `marks` are the indices of the rows to stand out."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    marks: frozenset[int] = field(default_factory=frozenset)


Block = Title | Heading | Paragraph | Bullets | Pairs | Table
