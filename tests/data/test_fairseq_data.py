"""--data fairseq:DIR: the files of fairseq-preprocess, written here byte by byte."""

import struct
from pathlib import Path

import numpy as np
import pytest

from headgates.data import load_corpus
from headgates.data.fairseq_vocab import fairseq_vocabs
from headgates.data.text import DataError

FIXTURES = Path(__file__).parents[2] / "../shared/fixtures/fairseq"
SYMBOLS = ["the", "dog", "s@@", "leeps", "b@@", "ig"]  # ids from 4
PAIRS = [([4, 5, 6, 7], [5, 4]), ([8, 9, 5], [4]), ([3, 9, 5], [8, 3, 4])]
FORMATS = {4: "<i4", 8: "<u2"}


def write_side(path: Path, sentences: list[list[int]], code: int = 8, end: tuple[int, ...] = (2,)) -> None:
    ended = [np.array([*ids, *end], FORMATS[code]) for ids in sentences]
    lengths = np.array(list(map(len, ended)), "<i4")
    begins = (np.cumsum(lengths) - lengths) * ended[0].itemsize
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQ", 1, code, len(ended))
    Path(f"{path}.bin").write_bytes(np.concatenate(ended).tobytes())
    Path(f"{path}.idx").write_bytes(head + lengths.tobytes() + begins.astype("<i8").tobytes())


def write_split(folder: Path, name: str, pairs=PAIRS, code: int = 8) -> None:
    for side, language in enumerate(("en", "de")):
        write_side(folder / f"{name}.en-de.{language}", [pair[side] for pair in pairs], code)
        (folder / f"dict.{language}.txt").write_text("".join(f"{symbol} 1\n" for symbol in SYMBOLS))


@pytest.fixture
def folder(tmp_path) -> Path:
    write_split(tmp_path, "test")
    return tmp_path


@pytest.mark.parametrize("code", FORMATS)
def test_pieces_become_words_but_not_around_unknown_ones(code, tmp_path):
    write_split(tmp_path, "test", code=code)
    corpus = load_corpus(f"fairseq:{tmp_path}")
    assert corpus.test.sources == ["the dog sleeps", "big dog", "<unk> ig dog"]
    assert corpus.test.targets == ["dog the", "the", "b@@ <unk> the"]
    assert (corpus.src, corpus.tgt, corpus.name) == ("en", "de", tmp_path.name)
    assert load_corpus(f"fairseq-pieces:{tmp_path}").test.sources == [
        "the dog s@@ leeps",
        "b@@ ig dog",
        "<unk> ig dog",
    ]


def test_splits_are_put_together_and_an_empty_training_pair_is_skipped(folder):
    write_split(folder, "train", [([4], [5]), ([], [5])])
    write_split(folder, "train1", [([5], [4])])
    write_split(folder, "valid", [([9], [9])])
    write_split(folder, "test2", [([8], [8])])
    corpus = load_corpus(f"fairseq:{folder}", src="en", tgt="de")
    assert (corpus.train.sources, corpus.train.targets, corpus.train.skipped) == (
        ["the", "dog"],
        ["dog", "the"],
        {"empty": 1},
    )
    assert corpus.split("test2").sources == ["b@@"]  # what its word went on with is not there
    assert len(corpus.split("valid")) == 1


def test_a_sentence_without_any_id_is_an_empty_line(folder):
    write_side(folder / "test.en-de.en", [[], [4, 2], [5]], end=())
    assert load_corpus(f"fairseq:{folder}").test.sources == ["", "the", "dog"]


def test_a_split_that_is_not_there_is_missed_when_it_is_asked_for(folder):
    corpus = load_corpus(f"fairseq:{folder}")
    assert len(corpus.digest()) == 12
    with pytest.raises(DataError, match="has no 'train' text; it has test"):
        corpus.split("train")


@pytest.mark.parametrize(
    ("ending", "place", "content", "message"),
    [
        ("idx", None, b"TNTIDX\x00\x00" + bytes(40), "does not begin with MMIDIDX.* --dataset-impl mmap"),
        ("idx", None, b"MMIDIDX\x00\x00", "does not begin with MMIDIDX"),
        ("idx", 9, b"\x02", "version 2, type 8, .*; expected version 1"),
        ("idx", 17, b"\x06", "version 1, type 6, .*; expected version 1"),
        ("idx", 18, b"\xff" * 8, "18,446,744,073,709,551,615 sentences in 62 bytes"),
        ("idx", 26, struct.pack("<i", -1), "sentence 0 should be -1 ids from byte 0"),
        ("idx", 38, struct.pack("<q", -2), "sentence 0 should be 5 ids from byte -2"),
        ("idx", 38, struct.pack("<q", 3), "sentence 0 should be 5 ids from byte 3"),
        ("bin", None, bytes(8), "has 8 bytes, but sentence 0 should be 5 ids from byte 0"),
        ("bin", 0, b"\x0a\x00", "sentence 0: ids 2 to 10, but .* has 10 entries"),
    ],
)
def test_a_broken_file_is_one_clear_error(ending, place, content, message, folder):
    path = folder / f"test.en-de.en.{ending}"
    if place is None:
        path.write_bytes(content)
    else:
        raw = path.read_bytes()
        path.write_bytes(raw[:place] + content + raw[place + len(content) :])
    with pytest.raises(DataError, match=message) as caught:
        load_corpus(f"fairseq:{folder}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("gone", "added", "message"),
    [
        ("test.en-de.en.bin", None, r"no file .*test\.en-de\.en\.bin"),
        ("dict.en.txt", None, r"no file .*dict\.en\.txt"),
        ("*.idx", None, "has no binarised texts: it has no files such as"),
        (None, "test.en-de.de", "test has 3 sentences of en and 1 of de"),
        (None, "test.de-fr.fr", "has 2 binarised texts: it has de-fr, en-de; --src and --tgt name one"),
    ],
)
def test_what_is_missing_or_too_much_is_named(gone, added, message, folder):
    if added:
        write_side(folder / added, [[4]])
    for path in list(folder.glob(gone or "none")):
        path.unlink()
    with pytest.raises(DataError, match=message):
        load_corpus(f"fairseq:{folder}")


def test_other_languages_and_no_folder_are_named(folder):
    with pytest.raises(DataError, match="has no binarised texts for de-en: it has en-de"):
        load_corpus(f"fairseq:{folder}", src="de", tgt="en")
    with pytest.raises(DataError, match=r"no folder .*none; fairseq:DIR is a folder"):
        load_corpus(f"fairseq:{folder}/none")


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="needs ../shared/fixtures/fairseq")
@pytest.mark.parametrize("place", ["iwslt_like/binarized", "iwslt_like/binarized_int32"])
@pytest.mark.parametrize("kind", ["fairseq", "fairseq-pieces"])
def test_encoding_the_text_of_a_folder_gives_its_ids_again(place, kind):
    pytest.importorskip("subword_nmt", reason="subword-nmt is not installed")
    folder = FIXTURES / place
    corpus = load_corpus(f"{kind}:{folder}")
    files = [
        {"dictionary": folder / f"dict.{language}.txt", "bpe": folder.parent / "bpe.codes"}
        for language in ("en", "de")
    ]
    for vocab, language, lines in zip(
        fairseq_vocabs(*files, folder), ("en", "de"), (corpus.test.sources, corpus.test.targets), strict=True
    ):
        cut = (folder.parent / f"test.bpe.{language}").read_text().split("\n")[:-1]
        assert vocab.encode(lines) == [
            [vocab.dictionary.index(piece) for piece in line.split(" ")] for line in cut
        ]
