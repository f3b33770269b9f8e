"""hf:NAME as parallel text: folders of the package `datasets` and of its hub, with either form of a row."""

import gzip
import json
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgates.data.parallel
import headgates.data.store
from headgates.data import load_corpus
from headgates.data.text import DataError

PAIRS = [
    ("The dog sleeps.", "Der Hund schläft."),
    (" A cat. ", "Eine Katze."),
    ("", "Nichts."),
    ("Two\nlines.", "Zwei Zeilen."),
]
READ = [("The dog sleeps.", "Der Hund schläft."), ("A cat.", "Eine Katze."), ("Two lines.", "Zwei Zeilen.")]


def rows(form):
    return [
        {"translation": {"en": en, "de": de}} if form == "translation" else {"id": 1, "en": en, "de": de}
        for en, de in PAIRS
    ]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(content)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with (
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as writer,
        ):  # as save_to_disk writes it
            writer.write_table(table, max_chunksize=3)
    else:
        text = "".join(json.dumps(row) + "\n" for row in content).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def pairs_of(text):
    return list(zip(text.sources, text.targets, strict=True))


@pytest.mark.parametrize("form", ["translation", "columns"])
@pytest.mark.parametrize(
    "names",
    [
        "train.parquet validation.parquet test.parquet",
        "data/train-00000-of-00001.parquet data/validation-00000-of-00001.parquet "
        "data/test-00000-of-00001.parquet",
        "train/data-00000-of-00001.arrow validation/data-00000-of-00001.arrow test/data-00000-of-00001.arrow",
        "train.jsonl dev.jsonl.gz test.jsonl",
    ],
)
def test_a_folder_is_read_in_every_form_it_comes_in(tmp_path, form, names):
    for name in names.split():
        write(tmp_path / "own" / name, rows(form))
    corpus = load_corpus(f"hf:{tmp_path / 'own'}", src="en", tgt="de")
    assert pairs_of(corpus.train) == pairs_of(corpus.valid) == READ
    assert (corpus.train.skipped, corpus.test.skipped) == ({"empty": 1}, {})
    assert pairs_of(corpus.test) == [READ[0], READ[1], PAIRS[2], READ[2]]
    assert load_corpus(f"hf:{tmp_path / 'own'}", src="de", tgt="en").train.sources == [de for _, de in READ]


def test_parts_are_read_in_order_and_a_configuration_is_a_folder_inside(tmp_path):
    for number, row in enumerate(rows("columns")[:2]):
        write(tmp_path / f"de-en/train-0000{number}-of-00002.parquet", [row])
    for split in ("validation", "test"):
        write(tmp_path / f"de-en/{split}.parquet", rows("columns"))
    assert pairs_of(load_corpus(f"hf:{tmp_path}:de-en", src="en", tgt="de").train) == READ[:2]


def test_a_large_one_goes_through_a_store_for_each_direction(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADGATES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(headgates.data.parallel, "IN_MEMORY", 0)
    for split in ("train", "validation", "test"):
        write(tmp_path / f"own/{split}.parquet", rows("translation"))
    forth, back = (
        load_corpus(f"hf:{tmp_path / 'own'}", src=src, tgt=tgt).train
        for src, tgt in (("en", "de"), ("de", "en"))
    )
    assert pairs_of(forth) == READ
    assert pairs_of(back) == [(de, en) for en, de in READ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"translation": {"en": "a", "fr": "b"}}, r"train\.jsonl, row 2: expected a column translation"),
        ({"en": "a", "de": 7}, r"row 2: .* got {'en': 'a', 'de': 7}"),
        ([1], r"line 2: expected a JSON object"),
    ],
)
def test_a_row_without_a_language_is_named(tmp_path, row, words):
    text = "\n".join(map(json.dumps, [{"en": "a", "de": "b"}, row])) + "\n"
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.jsonl").write_text(text)
    with pytest.raises(DataError, match=words):
        load_corpus(f"hf:{tmp_path}", src="en", tgt="de")


@pytest.mark.parametrize("name", ["train.parquet", "train.arrow"])
def test_a_broken_file_and_a_missing_split_are_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"{broken\n")
    with pytest.raises(DataError, match=r"train\.\w+ cannot be read \(.*copy or download it again"):
        load_corpus(f"hf:{tmp_path}", src="en", tgt="de")
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match="has no train text: expected train; found none"):
        load_corpus(f"hf:{tmp_path}", src="en", tgt="de")


def test_a_name_is_left_to_the_package_datasets(tmp_path, monkeypatch):
    """Its cache files are what is read."""
    splits = {}
    for split in ("train", "validation", "test"):
        write(tmp_path / f"cached-{split}.arrow", rows("translation"))
        splits[split] = SimpleNamespace(cache_files=[{"filename": str(tmp_path / f"cached-{split}.arrow")}])
    asked = []
    monkeypatch.setitem(
        sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *words: asked.append(words) or splits)
    )
    corpus = load_corpus("hf:own/wmt:de-en", src="en", tgt="de")
    assert (pairs_of(corpus.train), corpus.name, asked) == (READ, "own-wmt-de-en", [("own/wmt", "de-en")])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"hf:own/wmt needs the package datasets .*; pip install datasets"):
        load_corpus("hf:own/wmt", src="en", tgt="de")
