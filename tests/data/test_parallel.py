"""Text files as people have them: compressed, damaged, misaligned, half missing."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgates.data import CORPORA, DataError, load_corpus, parallel
from headgates.data.parallel import read_lines, read_pairs

WRITTEN = {"train": ("a\nb\nc", "x\ny\nz"), "valid": ("d", "v"), "test": ("e\n\nf", "u\nw\nt")}


def write_folder(folder: Path, *, valid: str = "valid", src: str = "en", tgt: str = "de") -> Path:
    for split, (source, target) in WRITTEN.items():
        name = valid if split == "valid" else split
        (folder / f"{name}.{src}").write_text(source + "\n", encoding="utf-8")
        (folder / f"{name}.{tgt}").write_text(target + "\n", encoding="utf-8")
    return folder


def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("one\u2028still one\x0bstill\x0cone\u0085\x1cend\r\ntwo\r\n".encode())
    assert read_lines(path) == ["one\u2028still one\x0bstill\x0cone\u0085\x1cend", "two"]


def test_lines_are_stripped_and_empty_lines_kept(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("  a b\t\n\n \u00a0 \nlast".encode())
    assert read_lines(path) == ["a b", "", "", "last"]


def test_the_last_line_counts_once_with_and_without_a_newline_after_it(tmp_path):
    (tmp_path / "with").write_bytes(b"a\nb\n")
    (tmp_path / "without").write_bytes(b"a\nb")
    assert read_lines(tmp_path / "with") == read_lines(tmp_path / "without") == ["a", "b"]


def test_an_empty_file_has_no_lines(tmp_path):
    (tmp_path / "text").write_bytes(b"")
    assert read_lines(tmp_path / "text") == []


def test_a_gzip_file_is_known_by_its_content_whatever_its_name(tmp_path):
    for name in ("text.gz", "text.en"):
        (tmp_path / name).write_bytes(gzip.compress("grün\nü\n".encode()))
        assert read_lines(tmp_path / name) == ["grün", "ü"]
    (tmp_path / "unpacked.gz").write_bytes("grün\n".encode())
    assert read_lines(tmp_path / "unpacked.gz") == ["grün"]


def test_a_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfa\n")
    assert read_lines(tmp_path / "text") == ["a"]


def test_nul_characters_are_text(tmp_path):
    (tmp_path / "text").write_bytes(b"a\x00b\n")
    assert read_lines(tmp_path / "text") == ["a\x00b"]


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "text.de").write_bytes("grün\n".encode() + "schön\n".encode("latin-1") + b"ok\n")
    with pytest.raises(DataError, match=r"text\.de, line 2: byte 4 \(0xf6\) is not UTF-8.*iconv"):
        read_lines(tmp_path / "text.de")


def test_utf16_is_named_as_such(tmp_path):
    (tmp_path / "text").write_bytes("grün\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"is UTF-16, expected UTF-8"):
        read_lines(tmp_path / "text")


def test_a_truncated_gzip_file_is_called_damaged(tmp_path):
    (tmp_path / "text.gz").write_bytes(gzip.compress(os.urandom(1009).hex().encode())[:-61])
    with pytest.raises(DataError, match="damaged gzip"):
        read_lines(tmp_path / "text.gz")


def test_a_gzip_file_that_unpacks_to_far_more_than_text_is_refused_before_memory_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "SMALL", 2**22)
    path = tmp_path / "train.en.gz"
    path.write_bytes(gzip.compress(b"\n" * 2**23))
    message = r"train\.en\.gz has [\d,]+ bytes and unpacks to more than 4 MiB; .* unpack it \(gunzip --keep\)"
    with pytest.raises(DataError, match=message):
        read_lines(path)
    path.write_bytes(gzip.compress(b"\n" * 2**22))
    assert len(read_lines(path)) == 2**22


def test_a_gzip_file_of_several_parts_is_read_whole(tmp_path):
    path = tmp_path / "train.en.gz"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert read_lines(path) == ["one", "two"]


def test_a_missing_file_names_its_nearest_neighbour(tmp_path):
    (tmp_path / "train.en.gz").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"no file .*train\.en \(did you mean 'train\.en\.gz'\?\).* has train\.en\.gz"
    ):
        read_lines(tmp_path / "train.en")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        read_lines(tmp_path / "nowhere" / "train.en")


def test_a_folder_in_place_of_a_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        read_lines(tmp_path)


def test_different_line_counts_are_both_named(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n")
    with pytest.raises(DataError, match=r"a has 3 lines and .*b has 2"):
        read_pairs(tmp_path / "a", tmp_path / "b", skip_empty=True)


def test_pairs_with_an_empty_side_are_skipped_and_counted(tmp_path):
    (tmp_path / "a").write_text("1\n \n3\n\n5\n")
    (tmp_path / "b").write_text("x\ny\n\n\nz\n")
    text = read_pairs(tmp_path / "a", tmp_path / "b", skip_empty=True)
    assert (text.sources, text.targets, text.skipped) == (["1", "5"], ["x", "z"], {"empty": 3})


def test_two_empty_files_are_an_error(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("\n\n")
    with pytest.raises(DataError, match="no pair of lines with text on both sides"):
        read_pairs(tmp_path / "a", tmp_path / "b", skip_empty=True)


@pytest.mark.parametrize("valid", ["valid", "val", "dev"])
def test_a_folder_is_read_under_any_usual_name_of_validation(tmp_path, valid):
    corpus = load_corpus(write_folder(tmp_path, valid=valid), src="en", tgt="de")
    assert (len(corpus.train), corpus.valid.sources, corpus.src, corpus.tgt) == (3, ["d"], "en", "de")


def test_the_direction_can_be_turned(tmp_path):
    assert load_corpus(write_folder(tmp_path), src="de", tgt="en").train.sources == ["x", "y", "z"]


def test_an_empty_test_line_stays(tmp_path):
    test = load_corpus(write_folder(tmp_path), src="en", tgt="de").test
    assert (test.sources, test.targets, test.skipped) == (["e", "", "f"], ["u", "w", "t"], {})


def test_a_compressed_folder_reads_like_a_plain_one(tmp_path):
    plain = load_corpus(write_folder(tmp_path), src="en", tgt="de")
    for path in list(tmp_path.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    packed = load_corpus(tmp_path, src="en", tgt="de")
    assert (packed.train, packed.valid, packed.test) == (plain.train, plain.valid, plain.test)


def test_a_folder_inside_data_dir_is_found_by_its_name(tmp_path):
    (tmp_path / "mine").mkdir()
    write_folder(tmp_path / "mine")
    assert load_corpus("mine", data_dir=tmp_path, src="en", tgt="de").name == "mine"


def test_a_language_without_a_file_lists_the_languages_there(tmp_path):
    with pytest.raises(DataError, match=r"no file for language 'dee' \(did you mean 'de'\?\); it has de, en"):
        load_corpus(write_folder(tmp_path), src="en", tgt="dee")


def test_a_folder_needs_both_languages_named(tmp_path):
    with pytest.raises(DataError, match=r"--src and --tgt; .* has de, en"):
        load_corpus(write_folder(tmp_path), src="en")


def test_a_language_is_not_translated_into_itself(tmp_path):
    with pytest.raises(DataError, match="both 'en'"):
        load_corpus(write_folder(tmp_path), src="en", tgt="en")


def test_a_missing_split_is_named_with_what_is_there(tmp_path):
    (write_folder(tmp_path) / "valid.de").unlink()
    with pytest.raises(
        DataError,
        match=r"no valid text for en-de: expected valid\.en and valid\.de or val\.en.*found valid\.en$",
    ):
        load_corpus(tmp_path, src="en", tgt="de")


def test_a_folder_without_text_says_what_it_should_hold(tmp_path):
    with pytest.raises(DataError, match=r"no parallel text: expected files such as train\.en"):
        load_corpus(tmp_path, src="en", tgt="de")


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(
        DataError, match=r"no corpus named 'multi30' \(did you mean 'multi30k'\?\).*toy, multi30k"
    ):
        load_corpus("multi30")


def test_no_data_at_all_says_what_to_give():
    with pytest.raises(DataError, match="give --data"):
        load_corpus(None)


def test_a_split_is_had_by_name(tmp_path):
    corpus = load_corpus(write_folder(tmp_path), src="en", tgt="de")
    assert corpus.split("valid") is corpus.valid
    with pytest.raises(DataError, match=r"no split 'vaild' \(did you mean 'valid'\?\)"):
        corpus.split("vaild")


def test_importing_the_room_imports_neither_torch_nor_lightning():
    heavy = ("torch", "pytorch_lightning", "lightning", "sentencepiece")
    code = f"import sys, headgates.data; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"


def test_every_named_corpus_has_a_loader():
    assert set(CORPORA) >= {"toy", "multi30k"}
    assert all(callable(loader) for loader in CORPORA.values())
