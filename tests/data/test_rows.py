"""Files of rows as parallel text, in a folder or as hf:NAME."""

import gzip
import json
import sys
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgates.data.parallel
import headgates.data.rows
from headgates.configs.own_file import check_unpacked
from headgates.data import load_corpus
from headgates.data.rows import row_ending
from headgates.data.text import DataError

PAIRS = [
    ("The dog sleeps.", "Der Hund schläft."),
    (" A cat. ", "Eine Katze."),
    ("", "Nichts."),
    ("Two\nlines.", "Zwei Zeilen."),
]
READ = [("The dog sleeps.", "Der Hund schläft."), ("A cat.", "Eine Katze."), ("Two lines.", "Zwei Zeilen.")]


def rows(form):
    named = [{"en": en, "de": de} for en, de in PAIRS]
    if form == "translation":
        return [{"translation": row} for row in named]
    return [{"id": 1, **row} if form == "columns" else {"src": row["en"], "tgt": row["de"]} for row in named]


UNIT = """<tu><tuv xml:lang="EN-gb"><seg>{}</seg></tuv><tuv lang="fr"><seg>x</seg></tuv>
<tuv xml:lang="de"><seg><hi>{}</hi>{}<bpt i="1">&lt;b>no <sub>text</sub></bpt></seg></tuv></tu>"""


def as_text(ending, content):
    if ending == ".tsv":
        cells = [("de", "n", "en"), *((row["de"], "7", row["en"].replace("\n", " ")) for row in content)]
        return "".join("\t".join(each) + "\n" for each in cells)
    if ending == ".tmx":
        units = (UNIT.format(row["en"], row["de"][:3], row["de"][3:]) for row in content)
        return f'<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx><body>{"".join(units)}</body></tmx>'
    return "".join(json.dumps(row) + "\n" for row in content)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = row_ending(path)
    if ending in (".tsv", ".tmx", ".jsonl"):
        raw = as_text(ending, content).encode()
        packed = gzip.compress if path.suffix == ".gz" else partial(pa.compress, codec="zstd", asbytes=True)
        path.write_bytes(packed(raw) if path.suffix in (".gz", ".zst") else raw)
        return
    table = pa.Table.from_pylist(content)
    if ending == ".parquet":
        pq.write_table(table, path)
        return
    write_arrow(path, table)


def write_arrow(path, table):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3000)  # as save_to_disk writes it


def pairs_of(text):
    return list(zip(text.sources, text.targets, strict=True))


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("translation", "train.parquet validation.parquet test.parquet"),
        ("columns", "data/train-00000-of-00001.parquet data/validation.parquet data/test.parquet"),
        ("columns", "train/data-00000-of-00001.arrow validation/data-0.arrow test/data-0.arrow"),
        ("translation", "train.arrow validation.arrow test.arrow"),
        ("columns", "train.jsonl dev.jsonl.gz test.jsonl.zst"),
        ("sides", "train.jsonl.zst dev.jsonl test.jsonl"),
        ("columns", "train.tsv val.tsv.zst test.tsv"),
        ("columns", "train.tmx valid.tmx test.tmx.gz"),
    ],
)
def test_a_folder_is_read_in_every_form_it_comes_in(tmp_path, form, names):
    for name in names.split():
        write(tmp_path / "own" / name, rows(form))
    corpus = load_corpus(tmp_path / "own", src="en", tgt="de")
    assert pairs_of(corpus.train) == pairs_of(corpus.valid) == READ
    units = ".tmx" in names  # which may lack a language, and have no line number to keep
    assert (corpus.train.skipped, corpus.test.skipped) == ({"empty": 1}, {"empty": 1} if units else {})
    assert pairs_of(corpus.test) == [READ[0], READ[1], *([] if units else [PAIRS[2]]), READ[2]]
    again = load_corpus(f"hf:{tmp_path / 'own'}", src="en", tgt="de")
    assert (again.train, again.valid, again.test) == (corpus.train, corpus.valid, corpus.test)
    if form != "sides":
        assert load_corpus(tmp_path / "own", src="de", tgt="en").train.sources == [de for _, de in READ]


def test_compressed_lines_and_two_columns_without_names_are_parallel_text(tmp_path):
    for split in ("train", "valid", "test"):
        for side, language in enumerate(("en", "de")):
            raw = "".join(pair[side] + "\n" for pair in READ).encode()
            (tmp_path / f"{split}.{language}.zst").write_bytes(pa.compress(raw, "zstd", asbytes=True))
        (tmp_path / "tabs").mkdir(exist_ok=True)
        (tmp_path / f"tabs/{split}.tsv").write_text("".join(f"{en}\t{de}\n" for en, de in READ) + "\n")
    for folder in (tmp_path, tmp_path / "tabs"):
        assert pairs_of(load_corpus(folder, src="en", tgt="de").train) == READ


@pytest.mark.parametrize("header", ["src\ttgt", "source\ttarget", "id\tsource\ttarget"])
def test_a_first_line_of_sides_is_a_header_and_no_pair(tmp_path, header):
    first = "7\t" * header.startswith("id")
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tsv").write_text(f"{header}\n{first}a dog\tein Hund\n")
    assert pairs_of(load_corpus(tmp_path, src="en", tgt="de").train) == [("a dog", "ein Hund")]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.tsv", b"a\tb\na b\n", r"train\.tsv, line 2: expected en TAB de, .* got 1 columns"),
        (
            "train.tsv",
            b"a\tb\tc\n",
            "line 1: expected en TAB de, or a first line that names the columns; got 3 columns",
        ),
        ("train.tmx", b"<tmx><tu>", r"train\.tmx is no whole TMX \(no element found"),
        (
            "train.tmx",
            b'<?xml version="1.0" encoding="foo"?><tmx/>',
            r"train\.tmx .*\(unknown encoding: foo\)",
        ),
        (
            "train.tmx",
            b'<?xml version="1.0" encoding="GBK"?><tmx/>',
            r"train\.tmx .*\(multi-byte encodings are not supported\); .*UTF-8",
        ),
        ("train.tmx.gz", gzip.compress(b"<tmx/>", mtime=0)[:-5], r"^\S+train\.tmx\.gz is damaged"),
        ("train.tmx", b"<tu/>", "no pair has text on both sides.* in en and de"),
        ("train.tsv.zst", pa.compress(b"a\tb\n" * 99, "zstd", asbytes=True)[:-5], "is damaged"),
    ],
)
def test_a_broken_file_of_text_is_one_error(tmp_path, name, content, words):
    for split in ("valid", "test"):
        write(tmp_path / f"{split}.{name.partition('.')[2]}", rows("columns"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        load_corpus(tmp_path, src="en", tgt="de")


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_rows_many_times_as_large_as_their_file_are_not_written_out(tmp_path, monkeypatch, ending):
    """One long value in a dictionary, and a number for each row: 2 kB that would become 3 GB."""
    own = pa.DictionaryArray.from_arrays(pa.array([0] * 9001, pa.int32()), pa.array(["long " * 70_000]))
    table = pa.table({"en": own, "de": pa.array(["kurz"] * 9001)})
    for split in ("train", "valid", "test"):
        if ending == "parquet":
            pq.write_table(table, tmp_path / f"{split}.parquet", compression="zstd", store_schema=False)
        else:
            write_arrow(tmp_path / f"{split}.arrow", table)
    before = pa.total_allocated_bytes()
    seen = []
    monkeypatch.setattr(
        headgates.data.rows,
        "check_unpacked",
        lambda *given: (seen.append(pa.total_allocated_bytes()), check_unpacked(*given)),
    )
    with pytest.raises(DataError, match=r"train\.\w+ cannot be read .* says to have [\d,]+ bytes, and holds"):
        load_corpus(tmp_path, src="en", tgt="de")
    assert max(seen) - before < 2**24


def test_parts_are_read_in_order_and_a_configuration_is_a_folder_inside(tmp_path):
    for number, row in enumerate(rows("columns")[:2]):
        write(tmp_path / f"de-en/train-0000{number}-of-00002.parquet", [row])
    for split in ("validation", "test"):
        write(tmp_path / f"de-en/{split}.parquet", rows("columns"))
    assert pairs_of(load_corpus(f"hf:{tmp_path}:de-en", src="en", tgt="de").train) == READ[:2]


@pytest.mark.parametrize(
    "names",
    [
        ("train.part1.jsonl", "train.part2.jsonl"),
        ("train-v1.0-00000.parquet", "train-v1.1-00001.parquet"),
        ("train.part1.jsonl.gz", "train.part2.jsonl.gz"),
    ],
)
def test_no_part_is_lost_for_a_dot_in_its_name(tmp_path, names):
    for name, row in zip(names, rows("columns"), strict=False):
        write(tmp_path / name, [row])
    for split in ("valid", "test"):
        write(tmp_path / f"{split}.jsonl", rows("columns"))
    assert pairs_of(load_corpus(tmp_path, src="en", tgt="de").train) == READ[:2]


def test_a_file_with_the_name_of_a_split_is_taken_alone(tmp_path):
    for name in ("train.jsonl", "val.tsv", "test.tsv"):
        write(tmp_path / name, rows("columns")[:1])
    for name in ("train.jsonl.gz", "train-more.jsonl", "val-old.tsv", "valid-old.tsv", "backup/test.jsonl"):
        write(tmp_path / name, rows("columns")[1:2])
    corpus = load_corpus(tmp_path, src="en", tgt="de")
    assert pairs_of(corpus.train) == pairs_of(corpus.valid) == pairs_of(corpus.test) == READ[:1]


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
    with pytest.raises(DataError, match=r"has no valid text: expected valid or .*; found train"):
        load_corpus(f"hf:{tmp_path}", src="en", tgt="de")
    for split in ("validation", "test"):
        write(tmp_path / f"{split}.parquet", rows("columns"))
    with pytest.raises(DataError, match=r"train\.\w+ cannot be read \(.*copy or download it again"):
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
