import gzip
import io

import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs.source import Source, decode


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(ReadError, match=r"nowhere\.json: there is no such file"):
        Source(tmp_path / "nowhere.json")


def test_an_empty_file_is_said_to_be_empty(tmp_path):
    (tmp_path / "empty.log").touch()
    with pytest.raises(ReadError, match=r"empty\.log: the file is empty"):
        Source(tmp_path / "empty.log")
    with pytest.raises(ReadError, match="the input is empty"):
        Source(io.BytesIO(b""))


@pytest.mark.parametrize("packed", [False, True])
def test_lines_and_data_of_files_and_objects(tmp_path, packed):
    data = b"\xef\xbb\xbffirst\nsec\xffond\n"
    stored = gzip.compress(data) if packed else data
    path = tmp_path / "some.log"
    path.write_bytes(stored)
    for source in (Source(path), Source(str(path)), Source(io.BytesIO(stored))):
        assert source.data() == data
        assert list(source.lines()) == ["first\n", "sec\N{REPLACEMENT CHARACTER}ond\n"]
        assert source.head(4) == data[:4]


def test_text_objects_are_read():
    assert Source(io.StringIO("a\nb")).data() == b"a\nb"


def test_a_damaged_gzip_is_an_error_of_the_package(tmp_path):
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"x" * 5000)[:30])
    with pytest.raises(ReadError, match="cannot be unpacked"):
        Source(path).data()


def test_utf_16_is_decoded_by_its_mark():
    assert decode("step,reward".encode("utf-16")) == "step,reward"
    assert list(Source(io.BytesIO("a\nb".encode("utf-16"))).lines()) == ["a", "b"]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("mine.log", "mine"),
        ("mine.csv.gz", "mine"),
        ("trainer_state.json", "run7"),
        ("events.out.tfevents.1.a", "run7"),
    ],
)
def test_a_run_is_named_after_its_file_or_folder(tmp_path, name, expected):
    folder = tmp_path / "run7"
    folder.mkdir()
    (folder / name).write_text("x")
    assert Source(folder / name).name == expected
