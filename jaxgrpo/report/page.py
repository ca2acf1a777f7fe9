"""Reports as one self-contained HTML page: pictures inside, all text escaped, no scripts."""

import base64
from collections.abc import Sequence
from html import escape

from jaxgrpo.report.blocks import Block, Bullets, Heading, Pairs, Paragraph, Table, Title
from jaxgrpo.report.text import clean

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 2.5rem 0 0; overflow-wrap: anywhere; }
h1:first-child { margin-top: 0; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
.detail { color: #555; margin: 0 0 1rem; overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .8rem .15rem 0; vertical-align: top; text-align: left; font-weight: normal; }
th { border-bottom: 1px solid #999; color: #555; }
.right { text-align: right; }
tr.mark td { font-weight: 600; }
.pairs td:first-child { color: #555; white-space: nowrap; }
footer { color: #777; font-size: .85rem; margin-top: 3rem; }
""".strip()


def _text(text: str) -> str:
    return escape(clean(text), quote=True)


def _table(block: Table) -> str:
    sides = ["" if column.align == "left" else ' class="right"' for column in block.columns]
    head = "".join(
        f"<th{side}>{_text(column.title)}</th>" for column, side in zip(block.columns, sides, strict=True)
    )
    rows = []
    for index, row in enumerate(block.rows):
        cells = "".join(f"<td{side}>{_text(cell)}</td>" for cell, side in zip(row, sides, strict=True))
        mark = ' class="mark"' if index in block.marks else ""
        rows.append(f"<tr{mark}>{cells}</tr>")
    body = "\n".join(rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'


def _html(block: Block) -> str:
    if isinstance(block, Title):
        detail = f'\n<p class="detail">{_text(block.detail)}</p>' if block.detail else ""
        return f"<h1>{_text(block.text)}</h1>{detail}"
    if isinstance(block, Heading):
        return f"<h2>{_text(block.text)}</h2>"
    if isinstance(block, Paragraph):
        return f"<p>{_text(block.text)}</p>"
    if isinstance(block, Bullets):
        items = "\n".join(f"<li>{_text(item)}</li>" for item in block.items)
        return f"<ul>\n{items}\n</ul>"
    if isinstance(block, Pairs):
        rows = "\n".join(
            f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in block.rows
        )
        return f'<table class="pairs">\n{rows}\n</table>'
    return _table(block)


def page(
    title: str, blocks: Sequence[Block], pictures: Sequence[tuple[str, bytes]] = (), footer: str = ""
) -> str:
    """A report as an HTML page.

    Args:
        title: Title of the page.
        blocks: The report.
        pictures: Descriptions and PNG files, shown after the report's first title.
        footer: Small print at the end.

    Returns:
        The page.
    """
    parts = [_html(block) for block in blocks]
    encoded = [(_text(words), base64.b64encode(png).decode("ascii")) for words, png in pictures]
    shown = [f'<img alt="{words}" src="data:image/png;base64,{png}">' for words, png in encoded]
    at = 1 if blocks and isinstance(blocks[0], Title) else 0
    body = "\n".join([*parts[:at], *shown, *parts[at:]])
    end = f"\n<footer>{_text(footer)}</footer>" if footer else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n{body}{end}\n</body>\n</html>\n"
    )
