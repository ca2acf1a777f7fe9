from html.parser import HTMLParser

from jaxgrpo.report.blocks import Bullets, Column, Heading, Pairs, Paragraph, Table, Title
from jaxgrpo.report.page import page

EVIL = "<script>alert(1)</script> \" onload='x' &amp; \x1b[31m"


class Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that tags are closed in order."""

    VOID = {"meta", "img", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(document):
    reader = Reader()
    reader.feed(document)
    reader.close()
    assert not reader.open
    return reader


def evil_blocks():
    return [
        Title(EVIL, EVIL),
        Heading(EVIL),
        Paragraph(EVIL),
        Bullets([EVIL]),
        Pairs([(EVIL, EVIL)]),
        Table([Column(EVIL), Column("n", "left")], [[EVIL, "1"]], frozenset({0})),
    ]


def test_all_text_is_escaped():
    reader = read(page(EVIL, evil_blocks(), [(EVIL, b"png")], EVIL))
    assert "script" not in reader.tags
    assert not any(name.startswith("on") for name, _ in reader.attributes)
    # Title of the page, title and its detail, heading, paragraph, bullet, two in the pair, column, cell, footer.
    assert reader.text.count("<script>alert(1)</script> \" onload='x' &amp; ?[31m") == 11


def test_nothing_is_fetched():
    document = page("t", evil_blocks(), [("picture", b"\x89PNG")])
    reader = read(document)
    sources = [value for name, value in reader.attributes if name in ("src", "href", "srcset", "data")]
    assert sources == ["data:image/png;base64,iVBORw=="]
    assert "http:" not in document and "https:" not in document and "url(" not in document


def test_the_picture_follows_the_title():
    document = page("t", [Title("first"), Paragraph("then")], [("picture", b"x")])
    assert document.index("first</h1>") < document.index("<img") < document.index("then")


def test_marked_rows_and_sides():
    table = Table([Column("a", "left"), Column("b")], [["x", "1"], ["y", "2"]], frozenset({1}))
    document = page("t", [table])
    assert '<tr><td>x</td><td class="right">1</td></tr>' in document
    assert '<tr class="mark"><td>y</td><td class="right">2</td></tr>' in document
