"""A stream of lines: cut at newlines alone, read no further than a window, translated in order, written a
line for a line."""

import itertools
import os
from types import SimpleNamespace

import pytest

from headgates.configs.settings import SearchConfig
from headgates.data.text import DataError
from headgates.models import stream
from headgates.models.stream import as_text, output_file, split_lines, translated, windows


def translation(text: str, score: float = -0.5, log_prob: float = -1.25):
    return SimpleNamespace(text=text, score=score, log_prob=log_prob, tokens=3)


class Upper:
    """A translator that shouts; a word is a piece."""

    search = SearchConfig()

    def __init__(self):
        self.source_vocab = SimpleNamespace(encode=lambda lines: [line.split() for line in lines])
        self.calls = []

    def translate_n_best(self, lines, *, beam=None, length_penalty=None):
        self.calls.append((list(lines), beam, length_penalty))
        return [[translation(line.upper())] for line in lines]


def texts(found) -> list[str]:
    return [best[0].text for window in found for best in window]


# ---------------------------------------------------------------- bytes to lines


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"", []),
        (b"a\n", ["a"]),
        (b"a\n\n\nb", ["a", "", "", "b"]),
        (b"a\r\nb\r\n\r\nc\r", ["a", "b", "", "c"]),
        ("a\rb\u2028c\u2029d\x85e\x0bf\x0cg\x1ch\n".encode(), ["a\rb\u2028c\u2029d\x85e\x0bf\x0cg\x1ch"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbf", []),
    ],
)
def test_lines_end_at_newlines_and_nowhere_else(raw, lines):
    assert list(split_lines([raw] if raw else [])) == lines
    assert list(split_lines([raw[i : i + 1] for i in range(len(raw))])) == lines


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        (
            b"a\nb\nx\xe4y\nc\n",
            ["in.txt, line 3: byte 2 (0xe4) is not UTF-8", "iconv -f ITS-ENCODING -t UTF-8"],
        ),
        (b"a\nb\nx\xc3", ["in.txt, line 3: byte 2 (0xc3)"]),
        ("Grüße\n".encode("utf-16"), ["in.txt, line 1", "UTF-16"]),
        (b"\x1f\x8b\x08\x00\n", ["in.txt, line 1", "gunzip"]),
        (b"\x28\xb5\x2f\xfd\n", ["in.txt, line 1", "unzstd"]),
    ],
)
def test_bytes_that_are_not_utf8_are_named_after_the_lines_before_them(raw, parts):
    lines, came = split_lines([raw], name="in.txt"), []
    with pytest.raises(DataError) as error:
        came.extend(lines)
    assert [part for part in parts if part not in str(error.value)] == []
    assert came == (["a", "b"] if raw.startswith(b"a") else [])


def test_a_line_of_other_bytes_is_left_empty_and_told_but_not_another_kind_of_file():
    said = []
    raw = b"(\xb5m)\na\nx\xe4y\r\nc"  # which begins as Zstandard does, for two bytes
    assert list(split_lines([raw], name="in.txt", left_empty=said.append)) == ["", "a", "", "c"]
    assert [words.partition(":")[0] for words in said] == ["in.txt, line 1", "in.txt, line 3"]
    assert said[1].endswith("byte 2 (0xe4) is not UTF-8; its translation is left empty")
    with pytest.raises(DataError, match="UTF-16"):
        list(split_lines(["a\n".encode("utf-16")], left_empty=said.append))


def test_text_without_line_ends_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(stream, "LONGEST_LINE", 1000)
    taken = itertools.count()
    with pytest.raises(DataError, match="line 2 is longer than 1,000 bytes"):
        list(split_lines(b"a\n" if next(taken) == 0 else b"x" * 97 for _ in itertools.count()))
    assert next(taken) < 20
    with pytest.raises(DataError, match="line 1 is longer than 1,000 bytes"):
        list(split_lines([b"x" * 1001 + b"\n"]))
    assert list(split_lines([b"x" * 1000 + b"\n"])) == ["x" * 1000]


# ---------------------------------------------------------------- lines to windows


@pytest.mark.parametrize(("most", "first"), [(1, 1), (7, 2), (3, 11)])
def test_windows_hold_all_lines_in_order_and_none_is_empty_or_too_large(most, first):
    lines = [None, "", "a", "b", None, None, *"cdefghijklmnopqrst"]
    found = list(windows(lines, most=most, first=first))
    assert [line for window in found for line in window] == [line for line in lines if line is not None]
    assert all(1 <= len(window) <= most for window in found)


def test_a_pause_ends_a_window_without_letting_the_next_one_grow():
    lines = ["a", None, None, "b", "c", "d", "e", "f"]
    assert list(windows(lines, most=10, first=2)) == [["a"], ["b", "c"], ["d", "e", "f"]]


# ---------------------------------------------------------------- windows to translations


def test_translations_come_in_the_order_of_the_lines_window_by_window():
    upper = Upper()
    found = translated(upper, [["a", "b c"], ["", "d"]], longest=10, beam=3, length_penalty=0.6)
    assert texts(found) == ["A", "B C", "", "D"]
    assert upper.calls == [(["a", "b c"], 3, 0.6), (["", "d"], 3, 0.6)]


def test_a_line_of_too_many_pieces_is_named_after_the_lines_before_it():
    found, came = (
        translated(
            Upper(), [["a", "b"], ["c", "d e f g", "h"]], longest=3, limit="--max-length 3", name="in.txt"
        ),
        [],
    )
    with pytest.raises(
        DataError, match=r"in\.txt, line 4 has 4 pieces, more than --max-length 3; split it.*--too-long empty"
    ):
        came.extend(found)
    assert texts(came) == ["A", "B", "C"]


def test_lines_of_too_many_pieces_can_be_left_empty_and_are_told():
    said: list[str] = []
    found = translated(Upper(), [["a", "b c d"], ["e f", "g h i", "j"]], longest=2, left_empty=said.append)
    assert texts(found) == ["A", "", "E F", "", "J"]
    assert [text.split(" has")[0] for text in said] == ["standard input, line 2", "standard input, line 4"]
    assert all(text.endswith("its translation is left empty") for text in said)


# ---------------------------------------------------------------- translations to text


def test_a_line_is_written_as_one_line_whatever_is_in_it():
    assert as_text([translation("a\nb\r\nc\td\u2028e")], 1) == "a b  c\td\u2028e\n"
    assert as_text([translation("a\tb\n")], 1, scores=True) == "-0.5000\t-1.2500\ta b \n"
    assert as_text([translation("")], 1) == "\n"


def test_n_best_writes_n_lines_with_the_number_of_their_line_and_one_for_an_empty_line():
    best = [translation("a", -0.25), translation("b", -0.75), translation("c", -1.0)]
    assert as_text(best, 7, n_best=2) == "7\ta\n7\tb\n"
    assert as_text([translation("", 0.0, 0.0)], 8, n_best=2, scores=True) == "8\t0.0000\t0.0000\t\n"
    assert as_text(best, 7, n_best=2, scores=True) == "7\t-0.2500\t-1.2500\ta\n7\t-0.7500\t-1.2500\tb\n"


# ---------------------------------------------------------------- a file, whole or not at all


def test_a_file_is_written_through_a_link_and_is_the_old_one_until_it_is_whole(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    with output_file(str(tmp_path / "link.txt")) as file:
        file.write(b"new")
        file.flush()
        assert (tmp_path / "real.txt").read_text() == "old"
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


@pytest.mark.parametrize(
    ("name", "words"),
    [(".", "is a folder"), ("nowhere/out.txt", "No such file"), ("fifo", "is a device or pipe")],
)
def test_what_is_no_place_for_a_file_is_refused(tmp_path, name, words):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises((ValueError, OSError), match=words), output_file(str(tmp_path / name)):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["fifo"]
