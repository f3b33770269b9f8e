"""Labelled sentences and pairs from files, and one clear error for what is wrong with them."""

import gzip
import json
import sys
from types import SimpleNamespace

import pytest

from headgates.data.labelled import labelled_corpus, labels_of, read_labelled
from headgates.data.text import DataError, ParallelText

ROWS = [("good", "a funny film"), ("bad", "a dull plot")]
TSV = "".join(f"{label}\t{sentence}\n" for label, sentence in ROWS)


def as_json(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(path, text: str):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", TSV),
        ("a.tsv.gz", TSV),
        ("a.tsv", "sentence\tlabel\na funny film\tgood\na dull plot\tbad\n"),
        ("a.tsv", "idx\tsentence\tlabel\n7\ta funny film\tgood\n8\ta dull plot\tbad\n"),
        ("a.jsonl", as_json({"label": label, "text": sentence, "idx": 3} for label, sentence in ROWS)),
        ("a.jsonl.gz", as_json({"sentence": sentence, "label": label} for label, sentence in ROWS)),
    ],
)
def test_every_form_gives_the_same_examples(tmp_path, name, text):
    assert read_labelled(write(tmp_path / name, text)) == ParallelText(
        ["a funny film", "a dull plot"], ["good", "bad"]
    )


def test_a_pair_is_one_line_with_a_tab_and_empty_lines_are_counted(tmp_path):
    text = read_labelled(write(tmp_path / "a.tsv", "1\tA man  sleeps.\tHe sleeps.\n\n0\tA dog.\tA cat.\n"))
    assert text == ParallelText(["A man sleeps.\tHe sleeps.", "A dog.\tA cat."], ["1", "0"], {"empty": 1})
    rows = [
        {"premise": "A man sleeps.", "hypothesis": "He sleeps.", "label": 1},
        {"premise": "A dog.", "hypothesis": "A cat.", "label": 0},
    ]
    again = read_labelled(write(tmp_path / "a.jsonl", as_json(rows)))
    assert (again.sources, again.targets) == (text.sources, text.targets)


def test_two_sentences_stand_in_the_order_of_the_first_row_by_their_names(tmp_path):
    row = {"premise": "A man sleeps.", "hypothesis": "Somebody sleeps.", "label": "yes"}
    turned = dict(sorted(row.items()))
    train = read_labelled(write(tmp_path / "a.jsonl", as_json([row, turned])))
    assert [*train.sources] == ["A man sleeps.\tSomebody sleeps."] * 2
    valid = read_labelled(write(tmp_path / "b.jsonl", as_json([turned])), like=train.first(1))
    assert [*valid.sources] == ["A man sleeps.\tSomebody sleeps."]
    tabs = "label\thypothesis\tpremise\nyes\tSomebody sleeps.\tA man sleeps.\n"
    assert read_labelled(write(tmp_path / "c.tsv", tabs), like=train).sources == valid.sources
    other = as_json([{"text1": "a", "text2": "b", "label": "yes"}])
    with pytest.raises(DataError, match="text1 and text2, other examples have premise and hypothesis"):
        read_labelled(write(tmp_path / "d.jsonl", other), like=train)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.tsv", "1\tfine\n0 no tab\n", "line 2: expected label TAB first, as in the first line; got 1"),
        ("a.tsv", "1\ta\tb\tc\n", "line 1: .* got 4 columns"),
        ("a.tsv", "sentence\tlabel\nonly one\n", "line 2: expected sentence TAB label.* got 1"),
        ("a.tsv", "", "no examples"),
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.jsonl", '{"label": "a", "text": "cut \\ud83d"}', "line 1: not JSON .*surrogates"),
        ("a.jsonl", '{"text": "a"}', "line 1: expected a `label`, .* got {'text': 'a'}"),
        ("a.jsonl", '{"label": 0.5, "text": "a"}', "line 1: expected a `label`, .* got {'label': 0.5"),
        ("a.jsonl", '{"label": 1, "text": " "}', "and one or two sentences, none of them empty; got"),
        ("a.jsonl", '{"label": 1, "a": "x"}\n{"label": 1, "a": "x", "b": "y"}', r"line 2: has 2 sentence"),
        ("a.jsonl", '{"label": 1, "a": "x", "b": "y", "c": "z"}', "line 1: .* and one or two sentences"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, name, text, error):
    with pytest.raises(DataError, match=error):
        read_labelled(write(tmp_path / name, text))


def test_a_folder_has_three_splits_and_its_labels_are_those_of_training(tmp_path):
    write(tmp_path / "train.tsv", TSV)
    write(tmp_path / "val.jsonl", '{"label": "good", "text": "rich"}\n')
    with pytest.raises(DataError, match="has no test text: expected test; found train, val"):
        labelled_corpus(str(tmp_path))
    write(tmp_path / "test.tsv.gz", "good\tfunny\nawful\tpoor\n")
    with pytest.raises(DataError, match=r"test\.tsv\.gz, line 2: the label 'awful' is none of the training"):
        labelled_corpus(str(tmp_path))
    write(tmp_path / "test.tsv.gz", "good\tfunny\n")
    corpus = labelled_corpus(str(tmp_path))
    assert (corpus.valid.sources, corpus.test.targets, corpus.name) == (["rich"], ["good"], tmp_path.name)
    assert labels_of(corpus.train) == ["bad", "good"]
    write(tmp_path / "train.tsv", "good\tfunny\n")
    with pytest.raises(DataError, match="has 1 label, 'good'; expected at least two"):
        labelled_corpus(str(tmp_path))


def test_a_harder_test_set_beside_the_test_set_stays_out_of_it(tmp_path):
    for name in ("train.tsv", "valid.tsv", "test.tsv", "test-hard.tsv"):
        write(tmp_path / name, TSV)
    assert len(labelled_corpus(str(tmp_path)).test) == 2


def test_numbers_are_labels_in_their_own_order():
    assert labels_of(ParallelText(["a"] * 4, ["10", "2", "no", "2"])) == ["2", "10", "no"]


def test_labels_of_one_number_have_one_order():
    spelt = ["0" * zeros + "1" for zeros in range(9)]
    assert labels_of(ParallelText(["a"] * 9, spelt)) == spelt[::-1]


@pytest.mark.parametrize("place", [None, "toy", "nowhere/at/all"])
def test_no_text_is_one_error(place):
    with pytest.raises(DataError, match=r"no labelled text at .*: expected a folder"):
        labelled_corpus(place)


class Rows(list):
    """A split as the package datasets has it."""

    def __init__(self, rows, names):
        super().__init__(rows)
        self.features = {"label": SimpleNamespace(names=names)}


def test_a_data_set_of_the_package_datasets_is_read_by_its_names(monkeypatch):
    rows = [{"sentence": "funny", "label": 1, "idx": 0}, {"sentence": "dull", "label": 0, "idx": 1}]
    splits = {name: Rows(rows, ["bad", "good"]) for name in ("train", "validation", "test")}
    asked = []
    monkeypatch.setitem(
        sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *words: asked.append(words) or splits)
    )
    corpus = labelled_corpus("hf:own/glue:sst2")
    assert asked[0] == ("own/glue", "sst2")
    assert (corpus.test, corpus.name) == (ParallelText(["funny", "dull"], ["good", "bad"]), "own-glue-sst2")
    splits["test"] = Rows([{"sentence": "funny", "label": -1, "idx": 0}], ["bad", "good"])
    with pytest.raises(DataError, match=r"test, example 0: its labels are hidden \(-1\)"):
        labelled_corpus("hf:own/glue:sst2")
    del splits["validation"]
    with pytest.raises(DataError, match=r"has no valid text: expected .*; found test, train"):
        labelled_corpus("hf:own/glue")


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the package datasets .*; pip install datasets"):
        labelled_corpus("hf:glue")
