"""Text files as people have them: compressed, damaged, misaligned, half missing."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgates.data import DataError, load_corpus, text_file
from headgates.data.parallel import read_pairs
from headgates.data.text_file import read_lines

WRITTEN = {"train": ("a\nb\nc", "x\ny\nz"), "valid": ("d", "v"), "test": ("e\n\nf", "u\nw\nt")}


def write_folder(folder: Path, *, valid: str = "valid", src: str = "en", tgt: str = "de") -> Path:
    for split, (source, target) in WRITTEN.items():
        name = valid if split == "valid" else split
        (folder / f"{name}.{src}").write_text(source + "\n", encoding="utf-8")
        (folder / f"{name}.{tgt}").write_text(target + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (
            "one\u2028still\x0bstill\x0cone\u0085\x1cend\r\ntwo\r\n",
            ["one\u2028still\x0bstill\x0cone\u0085\x1cend", "two"],
        ),
        ("  a b\t\n\n \u00a0 \nlast", ["a b", "", "", "last"]),
        ("a\nb\n", ["a", "b"]),
        ("", []),
        ("\ufeffa\n", ["a"]),
        ("\ufeff", []),
        ("a\x00b\n", ["a\x00b"]),
    ],
)
def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path, content, lines):
    (tmp_path / "text").write_bytes(content.encode())
    assert read_lines(tmp_path / "text") == lines


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("grün\n".encode() + "schön\n".encode("latin-1"), r"line 2: byte 4 \(0xf6\) is not UTF-8.*iconv"),
        ("grün\n".encode("utf-16"), "is UTF-16, expected UTF-8"),
        (gzip.compress(os.urandom(1009))[:-61], "is damaged"),
        (None, r"no file .* \(did you mean 'train\.en\.gz'\?\).* has train\.en\.gz"),
    ],
)
def test_a_file_that_is_not_text_is_one_error(tmp_path, content, words):
    (tmp_path / "train.en.gz").write_bytes(b"")
    path = tmp_path / "train.en"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_lines(path)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [("1\n2\n3\n", "1\n2\n", "a has 3 lines and .*b has 2"), ("\n\n", "\n\n", "no pair has text")],
)
def test_files_that_are_not_aligned_are_one_error(tmp_path, source, target, words):
    (tmp_path / "a").write_text(source)
    (tmp_path / "b").write_text(target)
    with pytest.raises(DataError, match=words):
        read_pairs(tmp_path / "a", tmp_path / "b", skip_empty=True)


@pytest.mark.parametrize(
    ("data", "asked", "words"),
    [
        ("multi30", {}, r"no corpus named 'multi30' \(did you mean 'multi30k'\?\).*toy, toy-multi, multi30k"),
        (None, {}, "give --data"),
        ("own/train.en", {}, r"train\.en is a file; give --data a folder"),
        ("own", {"src": "en"}, "de, en; got en and None"),
        ("own", {"src": "en", "tgt": "en"}, "de, en; got en and en"),
        ("own", {"src": "en", "tgt": "dee"}, "de, en; got en and dee"),
        ("none", {"src": "en", "tgt": "de"}, r"no parallel text: expected files such as train\.en"),
        ("lacks", {"src": "en", "tgt": "de"}, "has no valid text: expected valid.*found test, train"),
    ],
)
def test_text_that_is_not_there_is_one_error(tmp_path, data, asked, words):
    for name in ("own", "none", "lacks"):
        (tmp_path / name).mkdir()
    write_folder(tmp_path / "own")
    (write_folder(tmp_path / "lacks") / "valid.de").unlink()
    with pytest.raises(DataError, match=words):
        load_corpus(data, data_dir=tmp_path, **asked)


def test_a_gzip_file_is_known_by_its_content_whatever_its_name(tmp_path):
    for name in ("text.gz", "text.en"):
        (tmp_path / name).write_bytes(gzip.compress("grün\nü\n".encode()))
        assert read_lines(tmp_path / name) == ["grün", "ü"]
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert read_lines(tmp_path / "text.gz") == ["one", "two"]
    (tmp_path / "unpacked.gz").write_bytes("grün\n".encode())
    assert read_lines(tmp_path / "unpacked.gz") == ["grün"]


def test_a_gzip_file_that_unpacks_to_far_more_than_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "SMALL", 2**21)
    for size in (2**21, 2**22):
        (tmp_path / f"{size}.gz").write_bytes(gzip.compress(b"x" * size))
    assert len(read_lines(tmp_path / f"{2**21}.gz")) == 1
    with pytest.raises(DataError, match=rf"{2**22}\.gz has [\d,]+ bytes and unpacks to more than .*gunzip"):
        read_lines(tmp_path / f"{2**22}.gz")


def test_pairs_with_an_empty_side_are_skipped_and_counted(tmp_path):
    (tmp_path / "a").write_text("1\n \n3\n\n5\n")
    (tmp_path / "b").write_text("x\ny\n\n\nz\n")
    text = read_pairs(tmp_path / "a", tmp_path / "b", skip_empty=True)
    assert (text.sources, text.targets, text.skipped) == (["1", "5"], ["x", "z"], {"empty": 3})


@pytest.mark.parametrize("valid", ["valid", "val", "dev"])
def test_a_folder_is_read_under_any_usual_name_of_validation(tmp_path, valid):
    corpus = load_corpus(write_folder(tmp_path, valid=valid), src="en", tgt="de")
    assert (len(corpus.train), corpus.valid.sources, corpus.src, corpus.tgt) == (3, ["d"], "en", "de")


def test_an_empty_test_line_stays(tmp_path):
    test = load_corpus(write_folder(tmp_path), src="en", tgt="de").test
    assert (test.sources, test.targets, test.skipped) == (["e", "", "f"], ["u", "w", "t"], {})


def test_a_folder_inside_data_dir_is_found_by_its_name(tmp_path):
    (tmp_path / "mine").mkdir()
    for path in list(write_folder(tmp_path / "mine").iterdir()):  # compressed, and turned round
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    corpus = load_corpus("mine", data_dir=tmp_path, src="de", tgt="en")
    assert (corpus.name, corpus.train.sources) == ("mine", ["x", "y", "z"])


def test_a_split_is_had_by_name(tmp_path):
    corpus = load_corpus(write_folder(tmp_path), src="en", tgt="de")
    assert corpus.split("valid") is corpus.valid
    with pytest.raises(DataError, match=r"no 'vaild' text \(did you mean 'valid'\?\)"):
        corpus.split("vaild")


def test_importing_the_room_imports_neither_torch_nor_lightning():
    heavy = ("torch", "pytorch_lightning", "lightning", "sentencepiece")
    modules = "sys, headgates.data.atomic_file, headgates.data.ranks"
    code = f"import {modules}; print([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).parents[2]
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=root).strip() == "[]"
