"""Sentences, or pairs of sentences, with a label each: files of lines, or a data set of the package
`datasets`.

    1<TAB>a stirring , funny film                             TSV: label, sentence
    yes<TAB>A man sleeps.<TAB>Somebody sleeps.                TSV: label and two sentences
    sentence<TAB>label                                        a first line that names `label` says the columns
    {"label": 1, "premise": "...", "hypothesis": "..."}       JSONL: `label`, and one or two fields of text

In a Corpus a source line is the sentence, or both with a tab between them, and the target line is the
label."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgates.configs.fields import shortened
from headgates.data.hub import HUB, HUB_SPLITS, hub_name, load_hub
from headgates.data.parallel import SPLIT_NAMES, Corpus, read_lines
from headgates.data.text import DataError, ParallelText

LABEL = "label"
NUMBERS = ("idx", "index", "id")  # fields that only number the examples
ENDINGS = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")
Example = tuple[str, str]  # source line, label


def labelled_corpus(place: str | None) -> Corpus:
    """The corpus of a folder with {train,valid,test}.tsv or .jsonl, plain or .gz (valid may be called val or
    dev), or of hf:NAME.

    Raises DataError where a split is missing, an example is not as above, or validation or test have a label
    that training lacks."""
    if place is not None and place.startswith(HUB):
        texts, name = hub_texts(place.removeprefix(HUB)), hub_name(place.removeprefix(HUB))
    elif place is not None and Path(place).is_dir():
        texts, name = folder_texts(Path(place)), Path(place).resolve().name
    else:
        raise DataError(
            f"no labelled text at {place}: --task classify needs --data with a folder of train, valid and "
            "test as .tsv (label TAB "
            f"sentence) or .jsonl, plain or .gz, or {HUB}NAME for the package datasets"
        )
    corpus = Corpus(texts["train"], texts["valid"], texts["test"], name, f"labelled sentences of {name}")
    if len(labels := labels_of(corpus.train)) < 2:
        raise DataError(
            f"the training text of {name} has {len(labels)} label, {labels[0]!r}; expected at least two to "
            "tell apart"
        )
    return corpus


def labels_of(text: ParallelText) -> list[str]:
    """The labels of a text, each once: numbers by size, others by name."""
    return sorted(
        set(text.targets),
        key=lambda label: (not label.isdecimal(), int(label) if label.isdecimal() else 0, label),
    )


def folder_texts(folder: Path) -> dict[str, ParallelText]:
    texts: dict[str, ParallelText] = {}
    for split in SPLIT_NAMES:
        texts[split] = folder_text(folder, split, like=texts.get("train"))
    return texts


def folder_text(folder: Path, split: str, *, like: ParallelText | None) -> ParallelText:
    """One split of a folder. Raises DataError as `labelled_corpus` does."""
    names = SPLIT_NAMES[split]
    path = next(
        (path for name in names for ending in ENDINGS if (path := folder / f"{name}{ending}").is_file()), None
    )
    if path is None:
        present = ", ".join(sorted(file.name for file in folder.iterdir())[:12]) or "nothing"
        expected = " or ".join(f"{name}.tsv" for name in names)
        raise DataError(
            f"{folder} has no {split} text: expected {expected}, or .jsonl, plain or .gz; found {present}"
        )
    return read_labelled(path, like=like)


def other_labelled(place: str, *, like: ParallelText) -> tuple[str, ParallelText]:
    """Name and test examples of another text for a model that was trained on `like`: one file, a folder with
    a test split, or hf:NAME.

    Raises DataError where there is none, or its labels or its number of sentences an example are not those of
    `like`."""
    path = Path(place)
    if place.startswith(HUB):
        found = labelled_corpus(place)
        examples = zip(found.test.sources, found.test.targets, strict=True)
        numbered = ((f"{place}, test, example {i}", example) for i, example in enumerate(examples))
        return found.name, checked(numbered, like, place, 0)
    if place.endswith(ENDINGS):
        return f"{path.resolve().parent.name}-{path.name.split('.')[0]}", read_labelled(path, like=like)
    if path.is_dir():
        return path.resolve().name, folder_text(path, "test", like=like)
    raise DataError(
        f"no labelled text at {place}: expected a file of label TAB sentence (.tsv) or .jsonl, plain or .gz, "
        "a folder with test.tsv or "
        f"test.jsonl, or {HUB}NAME for the package datasets"
    )


def read_labelled(path: str | Path, *, like: ParallelText | None = None) -> ParallelText:
    """The examples of one file; empty lines are left out and counted. like: the training text, whose labels
    alone may occur.

    Raises DataError, naming the line, at one without a label or a sentence, with an unknown label, or with
    two sentences where others, or those of `like`, have one."""
    path = Path(path)
    lines = read_lines(path)
    if not path.name.endswith(ENDINGS):
        raise DataError(f"{path}: expected a file whose name ends in {', '.join(ENDINGS)}")
    examples = json_examples(path, lines) if ".jsonl" in path.name else tab_examples(path, lines)
    return checked(
        ((f"{path}, line {number}", example) for number, example in examples),
        like,
        str(path),
        lines.count(""),
    )


def tab_examples(path: Path, lines: Sequence[str]) -> Iterator[tuple[int, Example]]:
    """(number, example) of every line that is not empty."""
    header = lines[0].split("\t") if lines else []
    columns = header if LABEL in header else None
    for number, line in enumerate(lines, start=1):
        if not line or (columns and number == 1):
            continue
        fields = line.split("\t")
        if columns is not None:
            if len(fields) != len(columns):
                raise DataError(
                    f"{path}, line {number}: expected {len(columns)} columns, as line 1 names, got "
                    f"{len(fields)}"
                )
            yield number, example_of(dict(zip(columns, fields, strict=True)), f"{path}, line {number}")
        elif len(fields) not in (2, 3):
            raise DataError(
                f"{path}, line {number}: expected label TAB sentence, or label TAB sentence TAB sentence, "
                f"got {len(fields)} "
                f"column{'s' * (len(fields) > 1)}: {shortened(line)}"
            )
        else:
            yield (
                number,
                example_of(
                    dict(zip((LABEL, "first", "second"), fields, strict=False)), f"{path}, line {number}"
                ),
            )


def json_examples(path: Path, lines: Sequence[str]) -> Iterator[tuple[int, Example]]:
    for number, line in enumerate(lines, start=1):
        if line:
            try:
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number}: not JSON ({error}); expected an object a line"
                ) from None
            if not isinstance(content, dict):
                raise DataError(
                    f'{path}, line {number}: expected an object such as {{"label": 1, "sentence": "..."}}, '
                    f"got {shortened(content)}"
                )
            yield number, example_of(content, f"{path}, line {number}")


def example_of(fields: Mapping[str, Any], where: str) -> Example:
    """The source line and the label of named fields. Raises DataError unless there is a label, and one or two
    sentences."""
    label, sentences = (
        fields.get(LABEL),
        [value for name, value in fields.items() if name not in (LABEL, *NUMBERS)],
    )
    if isinstance(label, bool) or not isinstance(label, str | int) or not str(label).strip():
        raise DataError(
            f"{where}: expected a `label`, a name or a whole number, got {shortened(label)}; the fields are "
            f"{', '.join(fields)}"
        )
    if len(sentences) not in (1, 2) or not all(
        isinstance(sentence, str) and sentence.strip() for sentence in sentences
    ):
        names = ", ".join(name for name in fields if name != LABEL) or "none"
        raise DataError(
            f"{where}: expected one or two sentences beside the label, none of them empty; got the fields "
            f"{names}"
        )
    return "\t".join(" ".join(sentence.split()) for sentence in sentences), str(label).strip()


def checked(
    examples: Iterable[tuple[str, Example]], like: ParallelText | None, name: str, empty: int
) -> ParallelText:
    """The examples, each with where it stands, as a text."""
    known = None if like is None else set(like.targets)
    sources: list[str] = []
    labels: list[str] = []
    for where, (source, label) in examples:
        if known is not None and label not in known:
            raise DataError(
                f"{where}: the label {label!r} is none of the training text, which has "
                f"{', '.join(sorted(known)[:12])}"
            )
        first = sources[0] if sources else source if like is None else like.sources[0]
        if ("\t" in source) != ("\t" in first):
            others = "the first example" if sources else "the training text"
            raise DataError(
                f"{where}: has {source.count(chr(9)) + 1} sentence(s), {others} has {first.count(chr(9)) + 1}"
            )
        sources.append(source)
        labels.append(label)
    if not sources:
        raise DataError(f"{name} has no examples; expected a label and a sentence a line")
    return ParallelText(sources, labels, {"empty": empty} if empty else {})


def hub_texts(name: str) -> dict[str, ParallelText]:
    """The splits of NAME or NAME:SUBSET, read by the package `datasets`. Raises DataError where it is not
    installed or cannot read them."""
    place, _, subset = name.partition(":")
    found = load_hub(place, subset)
    texts: dict[str, ParallelText] = {}
    for split, names in HUB_SPLITS.items():
        own = next((each for each in names if each in found), None)
        if own is None:
            raise DataError(f"{HUB}{name} has no split {' or '.join(names)}; it has {', '.join(found)}")
        words = getattr(found[own].features.get(LABEL), "names", None)  # of numbered labels
        examples = []
        for number, row in enumerate(found[own]):
            where = f"{HUB}{name}, {own}, example {number}"
            label = row.get(LABEL)
            if label == -1:
                raise DataError(
                    f"{where}: its labels are hidden (-1); give a folder of files whose test set has labels"
                )
            examples.append(
                (
                    where,
                    example_of(
                        {**row, LABEL: words[label] if words and isinstance(label, int) else label}, where
                    ),
                )
            )
        texts[split] = checked(examples, texts.get("train"), f"{HUB}{name}, {own}", 0)
    return texts
