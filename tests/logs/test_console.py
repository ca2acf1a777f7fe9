import io

import pytest

from jaxgrpo.errors import ReadError
from jaxgrpo.logs import console, read_run
from jaxgrpo.logs.source import Source


def lines(*texts):
    return Source(io.BytesIO("\n".join(texts).encode()))


def test_verl_goes_before_what_others_would_see_in_the_log():
    (table,) = console.read(lines("1/9 | reward=0.5 | loss=1", "step:1 - critic/rewards/mean:0.25 - a:1"))
    assert table.framework == "verl" and table.rows == 1


def test_trl_goes_before_home_made_rows():
    (table,) = console.read(lines("1/9 | reward=0.5 | loss=1", "{'reward': 0.5, 'loss': 0.1}"))
    assert table.framework == "trl"


def test_one_reader_may_be_insisted_on():
    with pytest.raises(ReadError, match="no line of it"):
        console.read(lines("1/9 | reward=0.5 | loss=1"), "trl")


def test_an_environments_prints_alone_are_no_log():
    with pytest.raises(ReadError, match="no line of it"):
        read_run(io.BytesIO(b"{'step': 0.0, 'direction': 0.03, 'reward': -0.67}\n" * 5))
