"""Trees for lines, from a CoNLL-U file, from the toy language and from spaCy: an imitation, and the real one
where installed."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgates.data.conllu import Tree, word_spans
from headgates.data.parses import load_pipeline, match, parses, tree_of
from headgates.data.text import DataError
from headgates.data.toy import toy_pairs
from tests.worlds.tiny_language import conllu_of

SHARED = Path(__file__).parents[2] / ".." / "shared"
PIPELINE = SHARED / "spacy" / "en_ewt_dep"


def tree(text: str, label: str = "dep") -> Tree:
    words = tuple(text.split())
    return Tree(words, (0, *[1] * (len(words) - 1)), (label,) * len(words), text)


def document(*tokens: tuple[str, int, str]):
    """An imitation of a parsed spaCy document: (text, number of the head from 0, label)."""
    made = [
        SimpleNamespace(i=i, text=text, dep_=label, is_space=text.isspace())
        for i, (text, _, label) in enumerate(tokens)
    ]
    for token, (_, head, _) in zip(made, tokens, strict=True):
        token.head = made[head]
    return made


# --- lines and trees


def test_a_line_that_comes_again_takes_the_next_tree_of_its_text_and_an_empty_one_a_tree_without_words():
    trees = [tree("a b", "one"), tree("c"), tree("a b", "two")]
    found = match(trees, ["c", " a\u00a0 b", "", "a b", "c", "  ", "a b"], origin="x")
    none = [Tree((), (), (), ""), Tree((), (), (), "  ")]
    assert found == [trees[1], trees[0], none[0], trees[2], trees[1], none[1], trees[2]]


def test_a_line_without_a_tree_is_named_with_what_stands_in_its_place():
    with pytest.raises(DataError, match=r"t\.conllu has no tree for line 2, 'x'; expected parses"):
        match([tree("a"), tree("b b"), tree("c")], ["a", "x", "c", "y"], origin="t.conllu")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("gld", r" \(did you mean 'gold'\?\)"),
        ("spcy:x", r" \(did you mean 'spacy'\?\)"),
        ("conllu:", ""),
        ("gold:x", ""),
    ],
)
def test_another_spec_is_refused_with_those_there_are(spec, hint):
    with pytest.raises(
        DataError,
        match=f"cannot get parses from '{spec}'.*{hint}.*; expected spacy:MODEL_OR_PATH, conllu:FILE or gold",
    ):
        parses(spec, ["a"])


# --- gold and CoNLL-U


def test_gold_trees_are_those_the_toy_sentences_were_generated_from():
    pairs = [*toy_pairs("valid")[:7], *toy_pairs("test")[:5], toy_pairs("train")[11]]
    found = parses("gold", [pair.source for pair in pairs])
    assert [(t.words, t.heads, t.labels, t.text) for t in found] == [
        (p.words, p.heads, p.labels, p.source) for p in pairs
    ]


def test_conllu_trees_are_found_for_lines_that_skip_some_of_the_file(tmp_path):
    pairs = toy_pairs("test")[:13]
    (tmp_path / "t.conllu").write_text("".join(map(conllu_of, pairs)), encoding="utf-8")
    kept = [pairs[2], pairs[7], pairs[12]]
    found = parses(f"conllu:{tmp_path / 't.conllu'}", [pair.source for pair in kept])
    assert [t.heads for t in found] == [pair.heads for pair in kept]


# --- spaCy


def test_tokens_of_white_space_are_left_out_and_what_hangs_on_them_hangs_on_their_head():
    doc = document(
        (" ", 2, "dep"),
        ("dogs", 2, "nsubj"),
        ("sleep", 2, "ROOT"),
        ("  ", 2, "dep"),
        ("\n", 3, ""),
        ("well", 4, "advmod"),
    )
    found = tree_of(doc, " dogs sleep  \nwell")
    assert found.words == ("dogs", "sleep", "well")
    assert found.heads == (2, 0, 2)
    assert word_spans(found.text, found.written)


def test_a_root_of_white_space_leaves_roots():
    assert tree_of(document(("a", 1, "det"), (" ", 1, "ROOT"), ("b", 1, "dep")), "a  b").heads == (0, 0)


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        ("en_core_web_sm", OSError("[E050] Can't find"), r".*; python -m spacy download en_core_web_sm$"),
        (
            "../no/such",
            OSError("[E050] Can't find"),
            ".*; check the path; it is the folder that has config.cfg$",
        ),
        (
            "xx_trf",
            ValueError("[E002] no\n\nfactory"),
            r"spaCy cannot load .* 'xx_trf' \(\[E002\] no factory\); ",
        ),
    ],
)
def test_a_pipeline_that_cannot_be_loaded_is_one_line(monkeypatch, model, error, words):
    def load(name, **_):
        raise error

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load))
    with pytest.raises(DataError, match=words):
        load_pipeline(model)


def test_missing_spacy_gives_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(
        DataError, match=r'^parses from spacy:en_core_web_sm need spaCy \(.*\); pip install "spacy>=3.8"$'
    ):
        parses("spacy:en_core_web_sm", ["A dog."])


def test_a_real_pipeline_without_a_parser_names_what_it_has(tmp_path):
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    nlp.to_disk(tmp_path / "bare")
    nlp.add_pipe("sentencizer")
    nlp.to_disk(tmp_path / "cut")
    with pytest.raises(DataError, match="has no dependency parser, only a tokenizer"):
        parses(f"spacy:{tmp_path / 'bare'}", ["", "A dog."])
    with pytest.raises(DataError, match="has no dependency parser, only sentencizer"):
        parses(f"spacy:{tmp_path / 'cut'}", ["A dog."])


@pytest.mark.skipif(not PIPELINE.is_dir(), reason="needs ../shared/spacy")
def test_a_real_parser_parses_each_line_as_one_sentence():
    pytest.importorskip("spacy")
    lines = ["A man in a blue shirt is standing.", "", "Dogs  run. They bark. Loudly!", "Stop"]
    found = parses(f"spacy:{PIPELINE}", lines)
    assert [t.text for t in found] == lines
    assert [t.heads.count(0) for t in found] == [1, 0, 1, 1]
    words, heads, labels = found[0].words, found[0].heads, found[0].labels
    assert words == ("A", "man", "in", "a", "blue", "shirt", "is", "standing", ".")
    assert (labels[1], words[heads[1] - 1]) == ("nsubj", "standing")
    assert (labels[4], words[heads[4] - 1]) == ("amod", "shirt")
    for one in found:
        word_spans(one.text, one.written)
