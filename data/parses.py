"""Dependency trees for lines of text, from where the user says:

spacy:MODEL_OR_PATH   a spaCy pipeline with a parser, by name or by its folder
conllu:FILE           a CoNLL-U file that has the lines' sentences, plain or gzip
gold                  the trees the toy language was generated from
"""

import importlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import shortened
from headgates.data.conllu import Tree, read_conllu
from headgates.data.text import DataError, reworded

NOT_FOR_PARSING = ("ner", "lemmatizer", "entity_linker", "entity_ruler", "textcat", "textcat_multilabel")


def parses(spec: str, lines: Sequence[str]) -> list[Tree]:
    """Return the tree of every line, in order; an empty line has a tree without words.

    Raises DataError at an unknown spec, at lines that have no tree (the first is named), and if spaCy or its
    model is missing."""
    kind, _, where = spec.partition(":")
    if kind == "spacy" and where:
        return parse_lines(where, lines)
    if kind == "conllu" and where:
        return match(read_conllu(where), lines, origin=where)
    if spec == "gold":
        return match(toy_trees(), lines, origin="the toy language (gold)")
    hint = did_you_mean(kind, ("spacy", "conllu", "gold"))
    raise DataError(
        f"cannot get parses from {spec!r}{hint}; expected spacy:MODEL_OR_PATH, conllu:FILE or gold"
    )


def toy_trees() -> list[Tree]:
    """Return the trees of all sentences in all splits of the toy corpus; no two have the same text."""
    from headgates.data.toy import SPLITS, toy_pairs  # here, because the grammar takes time to load

    return [Tree(p.words, p.heads, p.labels, p.source) for split in SPLITS for p in toy_pairs(split)]


def match(trees: Sequence[Tree], lines: Sequence[str], *, origin: str) -> list[Tree]:
    """Return the tree of every line, found by its text, white space aside; there may be trees of other
    sentences too.

    A line that comes again takes the next tree of that text, or the last one where there is no other. Raises
    DataError at the first line without a tree."""
    of_text: dict[str, list[Tree]] = defaultdict(list)
    for tree in trees:
        of_text[_plain(tree.text)].append(tree)
    times: Counter[str] = Counter()
    found: list[Tree] = []
    for i, line in enumerate(lines, start=1):
        text = _plain(line)
        same = of_text.get(text) or ([] if text else [Tree((), (), (), line)])
        if not same:
            raise DataError(
                f"{origin} has no tree for line {i}, {shortened(line)}; expected parses of these very "
                "sentences"
            )
        found.append(same[min(times[text], len(same) - 1)])
        times[text] += 1
    return found


def _plain(text: str) -> str:
    return " ".join(text.split())


def parse_lines(model: str, lines: Sequence[str]) -> list[Tree]:
    """Return the trees that a spaCy pipeline gives, with each line as one sentence.

    Raises DataError if spaCy, the model or its parser is missing."""
    nlp = load_pipeline(model)
    trees = []
    for line, doc in zip(lines, nlp.pipe(_documents(nlp, lines)), strict=True):
        if len(doc) and not doc.has_annotation("DEP"):
            raise DataError(
                f"the spaCy pipeline {model!r} has no dependency parser, only "
                f"{', '.join(nlp.pipe_names) or 'a tokenizer'}"
            )
        trees.append(tree_of(doc, line))
    return trees


def load_pipeline(model: str) -> Any:
    """Return the spaCy pipeline of this name or path. Raises DataError, one line that says what to install,
    instead of spaCy's errors."""
    with reworded(f"parses from spacy:{model} need spaCy", 'pip install "spacy>=3.8"', ImportError):
        spacy = importlib.import_module("spacy")
    folder = Path(model).expanduser()
    named = f"python -m spacy download {model}"
    cure = named if model.isidentifier() else "check the path; it is the folder that has config.cfg"
    with reworded(f"spaCy cannot load the pipeline {model!r}", cure):
        return spacy.load(folder if folder.is_dir() else model, exclude=NOT_FOR_PARSING)


def _documents(nlp: Any, lines: Sequence[str]) -> Iterator[Any]:
    """Yield a document for each line, marked as one sentence, because a parser would cut some captions in
    two."""
    for line in lines:
        doc = nlp.make_doc(line)
        for token in list(doc)[1:]:
            token.is_sent_start = False
        yield doc


def tree_of(doc: Any, text: str) -> Tree:
    """Return the tree of a parsed document. Tokens of white space are left out, and their dependents go to
    their heads."""
    tokens = [token for token in doc if not token.is_space]
    number = {token.i: n for n, token in enumerate(tokens, start=1)}
    heads = []
    for token in tokens:
        head = token.head
        while head.is_space and head.head.i != head.i:
            head = head.head
        heads.append(0 if head.i == token.i else number.get(head.i, 0))
    return Tree(
        tuple(token.text for token in tokens), tuple(heads), tuple(token.dep_ for token in tokens), text
    )
