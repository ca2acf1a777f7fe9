"""Where the bytes of a log come from: a file, a gzip, standard input or an open file object."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxgrpo.errors import ReadError

MAX_BYTES = 2**31
"""A log that unpacks to more than this is refused rather than read into memory."""

GENERIC_NAMES = ("metrics", "trainer_state", "log", "logs", "output", "history", "training_log", "stdout")


@runtime_checkable
class Readable(Protocol):
    """An open text or binary file, or anything that is read like one."""

    def read(self) -> str | bytes:
        """Everything that is left."""
        ...


class Source:
    """A log's bytes, read as often as needed.

    Args:
        path: A file's path, `"-"` for standard input, or an open text or binary file object.

    Raises:
        ReadError: If there is no such file, or it cannot be read or is empty.
    """

    def __init__(self, path: str | Path | Readable):
        self._data: bytes | None = None
        self.path: Path | None = None
        if isinstance(path, str | Path) and str(path) != "-":
            self.path = Path(path)
            self.label = str(path)
            try:
                if not self.path.exists():
                    raise ReadError(f"{self.label}: there is no such file; check the path")
                if self.path.stat().st_size == 0:
                    raise ReadError(f"{self.label}: the file is empty; nothing has been logged to it")
                with self.path.open("rb") as handle:
                    self._gzip = handle.read(2) == b"\x1f\x8b"
            except (OSError, ValueError) as error:
                if isinstance(error, ReadError):
                    raise
                raise ReadError(f"{self.label}: cannot be read ({_reason(error)})") from error
        else:
            self.label = "standard input" if isinstance(path, str) else str(getattr(path, "name", "log"))
            handle: Any = sys.stdin.buffer if isinstance(path, str) else path
            try:
                data = handle.read()
            except (OSError, ValueError, AttributeError, EOFError, zlib.error) as error:
                raise ReadError(f"{self.label}: cannot be read ({_reason(error)})") from error
            self._data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
            if not self._data:
                raise ReadError(f"{self.label}: there is nothing to read; the input is empty")
            self._gzip = self._data[:2] == b"\x1f\x8b"

    @property
    def name(self) -> str:
        """Name for the run: that of the file, or of its folder where all such files are called alike."""
        if self.path is None:
            return Path(self.label).stem or "log"
        path = self.path.resolve()
        name = path.name.removesuffix(".gz")
        stem = Path(name).stem
        if "tfevents" in name or stem in GENERIC_NAMES:
            return path.parent.name or stem
        return stem

    def open(self) -> io.BufferedIOBase:
        """Open the unpacked bytes for reading."""
        try:
            if self._data is not None:
                plain = io.BytesIO(self._data)
                return gzip.GzipFile(fileobj=plain) if self._gzip else plain
            assert self.path is not None
            return gzip.GzipFile(self.path) if self._gzip else self.path.open("rb")
        except OSError as error:
            raise ReadError(f"{self.label}: cannot be read ({_reason(error)})") from error

    def head(self, size: int = 65536) -> bytes:
        """The first bytes."""
        return self._read(size)

    def data(self) -> bytes:
        """All bytes."""
        data = self._read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ReadError(
                f"{self.label}: the log is larger than {MAX_BYTES // 2**20} MiB; read a part of it"
            )
        return data

    def _read(self, size: int) -> bytes:
        try:
            with self.open() as handle:
                return handle.read(size)
        except (OSError, EOFError, zlib.error, MemoryError) as error:
            raise ReadError(f"{self.label}: cannot be unpacked or read ({_reason(error)})") from error

    def text(self) -> str:
        """All of it as text."""
        return decode(self.data())

    def lines(self) -> Iterator[str]:
        """Lines of text, one at a time, so that a long log need not fit into memory."""
        if self.head(2) in (b"\xff\xfe", b"\xfe\xff"):
            yield from self.text().split("\n")
            return
        seen = 0
        try:
            with self.open() as handle:
                for line in handle:
                    if seen == 0:
                        line = line.removeprefix(b"\xef\xbb\xbf")
                    seen += len(line)
                    if seen > 8 * MAX_BYTES:
                        raise ReadError(f"{self.label}: the log is too large; read a part of it")
                    yield line.decode("utf-8", "replace")
        except (OSError, EOFError, zlib.error, MemoryError) as error:
            raise ReadError(f"{self.label}: cannot be unpacked or read ({_reason(error)})") from error


def decode(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 where a byte-order mark says so, replacing what is neither."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def _reason(error: BaseException) -> str:
    """One line about an exception."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]
