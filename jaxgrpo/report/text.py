"""Reports as plain text for a terminal of any width, a pipe or a file."""

import textwrap
import unicodedata
from collections.abc import Sequence

from jaxgrpo.report.blocks import Block, Bullets, Column, Heading, Pairs, Paragraph, Table, Title

_GAP = 2
# Cells that wrap are not squeezed below this width while there are columns to leave out.
_NARROWEST = 16
_ASCII = {
    "–": "-",
    "—": "-",
    "−": "-",
    "─": "-",
    "═": "=",
    "·": ",",
    "²": "^2",
    "×": "x",
    "…": "...",
    "•": "-",
    "▸": ">",
    "→": "->",
    "≥": ">=",
    "≤": "<=",
    "±": "+-",
    "κ": "kappa",
    "μ": "mu",
    "η": "eta",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
}


def clean(text: str) -> str:
    """Make text from a log harmless to a terminal: control and invisible characters become `?`."""
    return "".join(
        "?" if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else character
        for character in text.replace("\n", " ").replace("\t", " ")
    )


def for_encoding(text: str, encoding: str | None) -> str:
    """Replace what an output cannot encode by its nearest ASCII.

    Args:
        text: Any text.
        encoding: The output's encoding; ASCII where it is not known.

    Returns:
        Text that can be written.
    """
    encoding = encoding or "ascii"
    try:
        text.encode(encoding)
    except LookupError:
        encoding = "ascii"
    except UnicodeEncodeError:
        pass
    else:
        return text
    plain = "".join(_ASCII.get(character, character) for character in text)
    return plain.encode(encoding, "replace").decode(encoding)


def display_width(text: str) -> int:
    """Cells of a terminal that a text takes: none for combining marks, two for East Asian wide characters."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _pad(text: str, width: int, align: str) -> str:
    space = " " * max(width - display_width(text), 0)
    return space + text if align == "right" else text + space


def _wrap(text: str, width: int, indent: str = "", first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 8),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    ) or [""]


def _layout(table: Table, width: int) -> tuple[list[int], list[int], int]:
    """Indices and widths of the columns that fit, and the gap between them."""
    kept = list(range(len(table.columns)))
    while True:
        widths = [
            max(
                [
                    *(display_width(line) for line in table.columns[i].title.split("\n")),
                    *(display_width(row[i]) for row in table.rows),
                ]
            )
            for i in kept
        ]
        flexible = [p for p, i in enumerate(kept) if table.columns[i].wraps]
        expendable = max((table.columns[i].expendable for i in kept), default=0)
        # Wrapped cells are squeezed before columns are left out, and harder where none is left to leave out.
        narrowest = _NARROWEST if expendable else _NARROWEST // 2
        gap = _GAP
        while sum(widths) + gap * (len(kept) - 1) > width:
            squeezable = [p for p in flexible if widths[p] > narrowest]
            if squeezable:
                widths[max(squeezable, key=lambda p: widths[p])] -= 1
            elif gap > 1 and not expendable:
                gap -= 1
            else:
                break
        if sum(widths) + gap * (len(kept) - 1) <= width or not expendable:
            return kept, widths, gap
        # The last of the most expendable ones goes first.
        kept.remove(max(i for i in kept if table.columns[i].expendable == expendable))


def _cell(text: str, column: Column, width: int) -> list[str]:
    if display_width(text) <= width or not column.wraps:
        return [text]
    return _wrap(text, width)


def table_lines(table: Table, width: int) -> list[str]:
    """Lines of a table: a rule under the headings, marked rows with a pointer.

    Args:
        table: The table.
        width: Characters to a line, if it can be done.

    Returns:
        The lines.
    """
    margin = 2 if table.marks else 0
    kept, widths, gap = _layout(table, width - margin)
    columns = [table.columns[i] for i in kept]

    def join(cells: Sequence[str], mark: str) -> str:
        padded = [_pad(c, w, column.align) for c, w, column in zip(cells, widths, columns, strict=True)]
        return (mark + (" " * gap).join(padded)).rstrip()

    blank = " " * margin
    titles = [column.title.split("\n") for column in columns]
    deepest = max(len(title) for title in titles)
    titles = [[""] * (deepest - len(title)) + title for title in titles]
    lines = [join([title[line] for title in titles], blank) for line in range(deepest)]
    lines.append(blank + "─" * (sum(widths) + gap * (len(widths) - 1)))
    for index, row in enumerate(table.rows):
        cells = [_cell(row[i], column, w) for i, column, w in zip(kept, columns, widths, strict=True)]
        for line in range(max(len(cell) for cell in cells)):
            mark = ("▸ " if index in table.marks and line == 0 else "  ")[:margin]
            lines.append(join([cell[line] if line < len(cell) else "" for cell in cells], mark))
    return lines


def _pair_lines(block: Pairs, width: int) -> list[str]:
    left = max((display_width(name) for name, _ in block.rows), default=0)
    indent = " " * (left + _GAP)
    lines = []
    for name, value in block.rows:
        lines += _wrap(value, width, indent, _pad(name, left + _GAP, "left"))
    return lines


def _block_lines(block: Block, width: int) -> list[str]:
    if isinstance(block, Title):
        lines = _wrap(block.text, width)
        lines += _wrap(block.detail, width) if block.detail else []
        return [*lines, "═" * min(width, max(display_width(line) for line in lines))]
    if isinstance(block, Heading):
        return [block.text, "─" * display_width(block.text)]
    if isinstance(block, Paragraph):
        return _wrap(block.text, width)
    if isinstance(block, Bullets):
        return [line for item in block.items for line in _wrap(item, width, "  ", "• ")]
    if isinstance(block, Pairs):
        return _pair_lines(block, width)
    return table_lines(block, width)


def render(blocks: Sequence[Block], width: int = 80) -> str:
    """A report as text.

    Args:
        blocks: The report.
        width: Characters to a line.

    Returns:
        The text, without a newline at its end.
    """
    lines: list[str] = []
    previous: Block | None = None
    for block in blocks:
        if previous is not None and not isinstance(previous, Heading):
            lines.append("")
        lines += [clean(line) for line in _block_lines(block, width)]
        previous = block
    return "\n".join(line.rstrip() for line in lines)
