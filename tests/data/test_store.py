"""Large text: read once, tokenised once, mapped from a cache folder; the same pairs, batches and digests as
in memory."""

import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import headgates.data.parallel
import headgates.data.splits
import headgates.data.store
from headgates.data import ranks
from headgates.data.corpus import TranslationData, make_vocabs
from headgates.data.encoded import EncodedPairs, ids_type, record_batch
from headgates.data.parallel import read_pairs
from headgates.data.splits import Corpus
from headgates.data.store import StoredLines, encoded, received, sent
from headgates.data.text import DataError
from headgates.data.text_file import read_lines
from headgates.data.vocab import Vocab, load_vocabs

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["a", "dog", "sees", "the", "old", "cat", "bird", "does", "not", ",", "."]
PAIRS = 211


def lines(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 13))) for _ in range(count)]


@pytest.fixture
def files(tmp_path):
    """Two aligned files, of which pairs 3 and 17 have an empty side."""
    sources, targets = lines(PAIRS, 1), lines(PAIRS, 2)
    sources[3] = targets[17] = ""
    for name, side in (("train.en", sources), ("train.de", targets)):
        (tmp_path / name).write_text("".join(line + "\n" for line in side))
    return tmp_path / "train.en", tmp_path / "train.de"


@pytest.fixture
def stores(monkeypatch, tmp_path):
    """All text is large, and record batches are small; the folder of stores."""
    monkeypatch.setenv("HEADGATES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(headgates.data.parallel, "IN_MEMORY", 0)
    monkeypatch.setattr(headgates.data.store, "BATCH_ROWS", 31)
    monkeypatch.setattr(headgates.data.store, "FEW_BATCHES", 100)
    return tmp_path / "cache/text"


def corpus_of(text):
    return Corpus(text, text.first(23), text.first(29), "own", "own text", "en", "de")


def in_memory(files, skip_empty=True):
    pairs = [pair for pair in zip(*map(read_lines, files), strict=True) if all(pair) or not skip_empty]
    return [source for source, _ in pairs], [target for _, target in pairs]


def translation_data(corpus, folder):
    source, target = make_vocabs(corpus, folder, size=60, joint=True)
    settings = {"max_tokens": 101, "max_length": 11, "seed": 1}
    return TranslationData(corpus=corpus, source_vocab=source, target_vocab=target, **settings)


@pytest.mark.parametrize("skip_empty", [True, False])
def test_a_stored_text_has_the_lines_of_its_files(files, stores, skip_empty):
    read_pairs(*files, skip_empty=not skip_empty)  # has a store of its own
    text = read_pairs(*files, skip_empty=skip_empty)
    sources, targets = in_memory(files, skip_empty)
    assert isinstance(text.sources, StoredLines)
    assert (list(text.sources), list(text.targets)) == (sources, targets)
    assert text.skipped == ({"empty": 2} if skip_empty else {})
    assert [text.sources[at] for at in (0, -1, slice(30, 33))] == [sources[0], sources[-1], sources[30:33]]
    with pytest.raises(IndexError):
        text.sources[len(sources)]
    assert text.only([5, 190], reason="x").targets == [targets[5], targets[190]]


def test_the_digest_is_that_of_the_text_in_memory_and_stays_with_the_store(files, stores, monkeypatch):
    stored, own = corpus_of(read_pairs(*files, skip_empty=True)), headgates.data.splits.digest_lines
    digest, read = stored.digest(), []
    monkeypatch.setattr(
        headgates.data.splits, "digest_lines", lambda *texts: read.append(texts) or own(*texts)
    )
    assert corpus_of(read_pairs(*files, skip_empty=True)).digest() == digest
    assert [len(texts) for texts in read] == [2], "the validation text alone"
    monkeypatch.setattr(headgates.data.parallel, "IN_MEMORY", 2**24)
    assert corpus_of(read_pairs(*files, skip_empty=True)).digest() == digest


def test_batches_of_a_stored_text_are_those_of_the_text_in_memory(files, stores, monkeypatch, tmp_path):
    stored = translation_data(corpus_of(read_pairs(*files, skip_empty=True)), tmp_path / "one")
    monkeypatch.setattr(headgates.data.parallel, "IN_MEMORY", 2**24)
    held = translation_data(corpus_of(read_pairs(*files, skip_empty=True)), tmp_path / "two")
    assert stored.source_vocab.path.read_bytes() == held.source_vocab.path.read_bytes()
    assert stored.report == held.report
    assert stored.report["train"]["skipped"].keys() == {"empty", "longer than 11 pieces"}
    for ours, theirs in zip(stored.train_dataloader(), held.train_dataloader(), strict=True):
        for name in ("source", "target_in", "target_out", "index"):
            assert getattr(ours, name).equal(getattr(theirs, name))
        assert (ours.step_tokens, ours.target_tokens) == (theirs.step_tokens, theirs.target_tokens)
    assert list(stored.train_pairs) == list(held.train_pairs)


def test_text_is_read_once_and_tokenised_once(files, stores, monkeypatch, tmp_path, capsys):
    whole = corpus_of(read_pairs(*files, skip_empty=True))
    first = translation_data(whole, tmp_path)
    assert capsys.readouterr().err.count(", once") == 2
    monkeypatch.setattr(headgates.data.store, "write_text", None)
    monkeypatch.setattr(headgates.data.store, "write_ids", None)
    again = translation_data(corpus_of(read_pairs(*files, skip_empty=True)), tmp_path)
    assert list(again.train_pairs) == list(first.train_pairs)


def test_a_rank_that_comes_before_the_first_makes_the_store(files, stores, monkeypatch, tmp_path):
    text = read_pairs(*files, skip_empty=True)
    vocabs = make_vocabs(corpus_of(text), tmp_path, size=60, joint=True)
    second = SimpleNamespace(get_world_size=lambda: 2, get_rank=lambda: 1)
    monkeypatch.setattr(ranks, "group", lambda: None if ranks._alone else second)
    assert not ranks.is_first()
    assert len(encoded(text, *vocabs)) == len(text)


def test_another_text_or_vocabulary_has_a_store_of_its_own(files, stores, tmp_path):
    text = read_pairs(*files, skip_empty=True)
    small, large = (
        make_vocabs(corpus_of(text), tmp_path / str(size), size=size, joint=True) for size in (40, 60)
    )
    assert list(encoded(text, *small)) != list(encoded(text, *large))
    expected = (large[0].encode(list(side)) for side in (text.sources, text.targets))
    assert list(encoded(text, *large)) == list(zip(*expected, strict=True))
    files[0].write_text(files[0].read_text().replace("dog", "cow"))
    assert read_pairs(*files, skip_empty=True).sources[7:9] == in_memory(files)[0][7:9]
    assert len(list(stores.iterdir())) == 2


@pytest.mark.parametrize("how", ["gone", "short", "foreign"])
@pytest.mark.parametrize("pattern", ["pairs.arrow", "about.json", "ids-*.arrow"])
def test_a_torn_store_is_made_again(files, stores, tmp_path, how, pattern):
    expected = list(translation_data(corpus_of(read_pairs(*files, skip_empty=True)), tmp_path).train_pairs)
    (path,) = stores.glob(f"*/{pattern}")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if how == "short" else b"x" * len(content))
    if how == "gone":
        path.unlink()
    text = read_pairs(*files, skip_empty=True)
    assert list(text.sources) == in_memory(files)[0]
    assert list(translation_data(corpus_of(text), tmp_path).train_pairs) == expected


def test_errors_of_the_text_leave_no_store(files, stores):
    files[0].write_bytes(files[0].read_bytes().replace(b"bird", b"b\xefrd", 1))
    with pytest.raises(DataError, match=r"train\.en, line \d+: byte \d+ \(0xef\) is not UTF-8"):
        read_pairs(*files, skip_empty=True)
    files[0].write_text("a\nb\n")
    with pytest.raises(DataError, match=r"train\.en has 2 lines and .*train\.de has 211"):
        read_pairs(*files, skip_empty=True)
    assert not stores.exists()


def test_a_folder_that_cannot_be_written_is_one_error(files, stores, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADGATES_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot write .* set HEADGATES_CACHE to another folder"):
        read_pairs(*files, skip_empty=True)


def test_pairs_can_be_chosen_and_counted():
    rng = np.random.default_rng(3)
    pairs = [tuple(rng.integers(5, size=rng.integers(7)).tolist() for _ in range(2)) for _ in range(17)]
    parts = [pairs[start : start + 5] for start in range(0, 17, 5)]
    whole = EncodedPairs([record_batch(*zip(*part, strict=True), ids_type(4)) for part in parts])
    chosen = [pairs[i] for i in (1, 4, 5, 11, 16)]
    some = whole.only(np.array([1, 4, 5, 11, 16]))
    assert (list(whole), list(some)) == (pairs, chosen)
    assert some.lengths("target").tolist() == [len(target) for _, target in chosen]
    assert some.occurrences("source", 3) == sum(source.count(3) for source, _ in chosen)
    flat = np.concatenate(list(some.flat("source"))).tolist()
    assert flat == [piece for source, _ in chosen for piece in source]


def test_tokenizers_of_other_files_go_to_other_processes(tmp_path):
    (tmp_path / "vocab.dict.txt").write_text("th@@ 5\ne 5\nthe 9\ndog 3\n")
    (tmp_path / "vocab.codes").write_text("#version: 0.2\nt h\nth e</w>\n")
    side = {"dictionary": "vocab.dict.txt", "bpe": "vocab.codes"}
    (tmp_path / "vocab.json").write_text(json.dumps({"kind": "fairseq", "source": side, "target": side}))
    source, target = load_vocabs(tmp_path)
    given = pickle.loads(pickle.dumps(sent((source, target, pa.uint16()))))
    one, _, ids = received(*given)
    assert (one.encode(["the dog"]), ids) == (source.encode(["the dog"]), pa.uint16())


PROGRAM = """
import sys
from headgates.data import parallel, store
from headgates.data.vocab import Vocab
parallel.IN_MEMORY, store.BATCH_ROWS, store.FEW_BATCHES = 0, 31, 0
text, vocab = parallel.read_pairs(*sys.argv[1:3], skip_empty=True), Vocab.load(sys.argv[3])
print(sum(map(len, store.encoded(text, vocab, vocab).flat("source"))))
"""


@pytest.mark.slow
def test_scripts_without_a_main_guard_make_one_store_at_once(files, stores, tmp_path):
    """Each tokenises in processes of its own, which do not run the script again."""
    (tmp_path / "program.py").write_text(PROGRAM)
    vocab = Vocab.train(in_memory(files)[0] + in_memory(files)[1], size=60, path=tmp_path / "vocab.model")
    started = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py"), *map(str, files), str(vocab.path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert [int(out) for out, _ in said] == [sum(map(len, vocab.encode(in_memory(files)[0])))] * 2
    assert "".join(error for _, error in said).count("tokenising") == 1
    assert [path.name for path in stores.iterdir() if path.name.startswith(".")] == []
