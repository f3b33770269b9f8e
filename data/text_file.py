"""The lines of a text file, plain, gzip or Zstandard.

A line ends at "\\n" and nowhere else: str.splitlines also cuts at characters that occur inside sentences
(U+2028, U+0085, form feed), after which every later line is paired with the wrong translation."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import shortened
from headgates.configs.own_file import LARGEST_RATIO, SMALL
from headgates.data.text import DataError, line_error

GZIP, ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how such files begin


def unpacked_name(path: Path) -> str:
    """The name of a file without .gz or .zst."""
    return path.name.removesuffix(".gz").removesuffix(".zst")


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a text file, as `lines_of` gives them."""
    return list(lines_of(path))


def lines_of(path: str | Path) -> Iterator[str]:
    """`whole_lines` without white space at their ends."""
    return map(str.strip, whole_lines(path))


def whole_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text file; empty lines stay, a byte-order mark does not.

    A compressed file is recognised by its first bytes. Raises DataError if the file is missing or unreadable,
    or a line is not UTF-8."""
    path = Path(path)
    with opened(path) as file:
        for number, line in enumerate(file, start=1):  # bytes are cut at "\n" alone
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise DataError(f"{path} is UTF-16, expected UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
                if not line:  # a byte-order mark is all that there is
                    return
            yield decode_line(line, number, str(path))


def decode_line(line: bytes, number: int, name: str, cure: str = "") -> str:
    """Return the text of a line of UTF-8. Raises DataError, naming the file, the line's number and the byte,
    at anything else."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        cure = cure or "correct that line, or convert the text: iconv -f ITS-ENCODING -t UTF-8"
        byte = error.object[error.start]
        raise line_error(
            name, number, f"byte {error.start + 1} (0x{byte:02x}) is not UTF-8; {cure}"
        ) from None


def json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line of a .jsonl file that is not empty. Raises DataError, naming the
    line, at anything but an object."""
    for number, line in enumerate(lines_of(path), start=1):
        if line:
            try:
                content = json.loads(line)
                json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair is no text
            except (ValueError, RecursionError) as error:
                raise line_error(path, number, f"not JSON ({error}); expected an object a line") from None
            if not isinstance(content, dict):
                raise line_error(path, number, f"expected a JSON object, got {shortened(content)}")
            yield number, content


def no_file(path: Path) -> DataError:
    """The error for a file that is not there: it names what is."""
    if not path.parent.is_dir():
        return DataError(f"no file {path}: there is no folder {path.parent}")
    entries = sorted(entry.name for entry in path.parent.iterdir())
    names = ", ".join(entries[:12]) + (", ..." if len(entries) > 12 else "")
    return DataError(
        f"no file {path}{did_you_mean(path.name, entries)}; {path.parent} has {names or 'no files'}"
    )


class Unpacked(io.RawIOBase):
    """What a compressed file holds. Raises DataError where it grows beyond what text does: memory or the disk
    would end first."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self.stream, self.path, self.size = stream, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block, packed = self.stream.read(len(buffer)), self.path.stat().st_size
        buffer[: len(block)] = block
        self.size += len(block)
        if self.size > (most := max(SMALL, LARGEST_RATIO * packed)):
            raise DataError(
                f"{self.path} has {packed:,} bytes and unpacks to more than {most:,}; expected text, "
                "which grows tenfold at most; if this is right, unpack it (gunzip, unzstd) first"
            )
        return len(block)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A text file, plain, gzip or Zstandard, open for its bytes. Raises DataError if it is missing,
    unreadable or damaged."""
    try:
        with path.open("rb") as file:
            head, stream = file.peek(4), cast(BinaryIO, file)
            if head.startswith(GZIP):
                stream = cast(BinaryIO, gzip.GzipFile(fileobj=file))
            elif head.startswith(ZSTANDARD):
                import pyarrow  # here, because it takes time to load

                stream = pyarrow.CompressedInputStream(file, "zstd")
            yield file if stream is file else io.BufferedReader(Unpacked(stream, path), 2**20)
    except (FileNotFoundError, NotADirectoryError):
        raise no_file(path) from None
    except (EOFError, OSError, zlib.error) as error:
        if reason := getattr(error, "strerror", None):
            raise DataError(f"cannot read {path}: {reason}; expected a text file") from error
        raise DataError(f"{path} is damaged ({error}); copy or download it again") from error
