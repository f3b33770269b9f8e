"""Trees for lines, from a CoNLL-U file, from the toy language and from spaCy: an imitation, and the real one
where installed."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from headgates.data.conllu import Tree, read_conllu, word_spans
from headgates.data.parallel import DataError
from headgates.data.parses import load_pipeline, match, parse, parses, tree_of
from headgates.data.toy import to_conllu, toy_pairs

SHARED = Path(__file__).parents[2] / ".." / "shared"
PIPELINE, EWT = (
    SHARED / "spacy" / "en_ewt_dep",
    SHARED / "data" / "ud_english_ewt" / "en_ewt-ud-test.conllu.gz",
)


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


def test_trees_are_found_by_text_in_any_order_and_among_others():
    trees = [tree("a b"), tree("c"), tree("d e f"), tree("g")]
    assert match(trees, ["g", "a b"], origin="x") == [trees[3], trees[0]]


def test_white_space_does_not_matter():
    assert match([tree("a b c")], ["  a\u00a0b   c "], origin="x")[0].words == ("a", "b", "c")


def test_a_line_that_comes_again_takes_the_next_tree_of_its_text_and_then_the_last():
    trees = [tree("a b", "one"), tree("c"), tree("a b", "two")]
    found = match(trees, ["a b", "a b", "c", "a b"], origin="x")
    assert [one.labels[0] for one in found] == ["one", "two", "dep", "two"]


def test_an_empty_line_has_a_tree_without_words():
    assert match([tree("a")], ["", "a", "  "], origin="x") == [
        Tree((), (), (), ""),
        tree("a"),
        Tree((), (), (), "  "),
    ]


def test_a_line_without_a_tree_is_named_with_what_stands_in_its_place():
    with pytest.raises(DataError) as caught:
        match([tree("a"), tree("b b"), tree("c")], ["a", "x", "c", "y"], origin="trees.conllu")
    assert str(caught.value) == (
        "trees.conllu has no tree for line 2, 'x' (tree 2 there is of 'b b'); 2 of 4 lines have none; "
        "expected parses of these very sentences"
    )


def test_a_line_beyond_the_trees_is_named_with_their_number():
    with pytest.raises(DataError, match=r"no tree for line 3, 'x' \(it has 1 trees\); 1 of 3 lines"):
        match([tree("a")], ["a", "a", "x"], origin="trees.conllu")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("gld", r" \(did you mean 'gold'\?\)"),
        ("spcy:x", r" \(did you mean 'spacy'\?\)"),
        ("conllu:", ""),
        ("spacy", ""),
        ("gold:x", ""),
        ("", ""),
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


def test_a_sentence_that_is_not_of_the_toy_language_has_no_gold_tree():
    with pytest.raises(
        DataError, match=r"the toy language \(gold\) has no tree for line 2, 'A man is on a horse.'"
    ):
        parses("gold", [toy_pairs("test")[0].source, "A man is on a horse."])


def test_conllu_trees_are_found_for_lines_that_skip_some_of_the_file(tmp_path):
    pairs = toy_pairs("test")[:13]
    (tmp_path / "t.conllu").write_text("".join(map(to_conllu, pairs)), encoding="utf-8")
    kept = [pairs[2], pairs[7], pairs[12]]
    found = parses(f"conllu:{tmp_path / 't.conllu'}", [pair.source for pair in kept])
    assert [t.heads for t in found] == [pair.heads for pair in kept]


# --- spaCy


def test_a_spacy_document_becomes_a_tree():
    doc = document(("A", 1, "det"), ("dog", 2, "nsubj"), ("sleeps", 2, "ROOT"), (".", 2, "punct"))
    assert tree_of(doc, "A dog sleeps.") == Tree(
        ("A", "dog", "sleeps", "."), (2, 3, 0, 3), ("det", "nsubj", "ROOT", "punct"), "A dog sleeps."
    )


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


def test_an_empty_document_is_a_tree_without_words():
    assert len(tree_of([], "")) == 0


@pytest.fixture
def imitation(monkeypatch):
    """A module called spacy, whose load does what the test wants."""

    def put(load) -> None:
        module = ModuleType("spacy")
        module.load = load
        monkeypatch.setitem(sys.modules, "spacy", module)

    return put


def raising(error: Exception):
    def load(name):
        raise error

    return load


def test_missing_spacy_gives_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(
        DataError, match=r'^parses from spacy:en_core_web_sm need spaCy \(.*\): pip install "spacy>=3.8"$'
    ):
        parses("spacy:en_core_web_sm", ["A dog."])


def test_a_missing_model_gives_the_line_that_installs_it(imitation):
    imitation(raising(OSError("[E050] Can't find model 'en_core_web_sm'.\nIt doesn't seem to be ...")))
    with pytest.raises(
        DataError, match=r"^spaCy has no pipeline 'en_core_web_sm': python -m spacy download en_core_web_sm$"
    ):
        load_pipeline("en_core_web_sm")


def test_a_missing_folder_is_not_offered_for_download(imitation):
    imitation(raising(OSError("[E050] Can't find model")))
    with pytest.raises(
        DataError,
        match=r"^spaCy has no pipeline '../no/such': check the path; it is the folder that has config.cfg$",
    ):
        load_pipeline("../no/such")


def test_a_folder_that_holds_no_pipeline_is_said_to(imitation, tmp_path):
    imitation(raising(OSError("[E053] Could not read\n meta.json")))
    with pytest.raises(
        DataError, match=r"is not the folder of a spaCy pipeline, .*: \[E053\] Could not read meta.json$"
    ):
        load_pipeline(str(tmp_path))


def test_a_pipeline_that_cannot_be_built_says_why_in_one_line(imitation):
    imitation(raising(ValueError("[E002] Can't find factory for 'curated'\n\nAvailable: ...")))
    with pytest.raises(
        DataError,
        match=r"^spaCy cannot load the pipeline 'xx_trf': \[E002\] Can't find factory for 'curated' "
        r"Available: ...$",
    ):
        load_pipeline("xx_trf")


def test_a_real_missing_model_gives_the_line_that_installs_it():
    pytest.importorskip("spacy")
    with pytest.raises(DataError, match=r"python -m spacy download xx_not_there_sm$"):
        parses("spacy:xx_not_there_sm", ["A dog."])


def test_a_real_empty_folder_is_no_pipeline(tmp_path):
    pytest.importorskip("spacy")
    with pytest.raises(DataError, match="is not the folder of a spaCy pipeline"):
        parses(f"spacy:{tmp_path}", ["A dog."])


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


@pytest.mark.skipif(
    not (PIPELINE.is_dir() and EWT.is_file()),
    reason="needs ../shared/spacy and ../shared/data/ud_english_ewt",
)
def test_a_real_parser_is_as_good_on_raw_text_as_its_readme_says():
    """LAS over the first 211 test sentences, on sentences that spaCy cuts into the same words; the whole
    set's is 81.7."""
    pytest.importorskip("spacy")
    gold = read_conllu(EWT)[:211]
    right = total = 0
    for ours, theirs in zip(parse(str(PIPELINE), [t.text for t in gold]), gold, strict=True):
        if ours.words == theirs.words:
            rename = {"obj": "dobj", "root": "ROOT"}
            expected = zip(theirs.heads, (rename.get(label, label) for label in theirs.labels), strict=True)
            right += sum(
                a == b for a, b in zip(zip(ours.heads, ours.labels, strict=True), expected, strict=True)
            )
            total += len(ours)
    assert total > 1500
    assert right / total > 0.75
