"""Sentences, or pairs of sentences, with a label each: files of lines, or a data set of the package
`datasets`.

    1<TAB>a stirring , funny film                             TSV: label, sentence
    yes<TAB>A man sleeps.<TAB>Somebody sleeps.                TSV: label and two sentences
    sentence<TAB>label                                        a first line that names `label` says the columns
    {"label": 1, "premise": "...", "hypothesis": "..."}       JSONL: `label`, and one or two fields of text

In a Corpus a source line is the sentence, or both with a tab between them, and the target line is the
label."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headgates.configs.fields import shortened
from headgates.data.hub import HUB, hub_name, load_hub
from headgates.data.parallel import named_split, split_parts
from headgates.data.rows import row_ending, tab_rows
from headgates.data.splits import Corpus
from headgates.data.text import DataError, ParallelText
from headgates.data.text_file import json_lines, read_lines

LABEL_FIELD = "label"
NUMBER_FIELDS = ("idx", "index", "id")  # fields that only number the examples
TAB_COLUMNS = (LABEL_FIELD, "first", "second")  # of a .tsv file that does not name its own
LABELLED_ENDINGS = (".tsv", ".jsonl")
LabelledRow = tuple[str, Mapping[str, Any]]  # where it stands, and its fields


def labelled_corpus(place: str | None) -> Corpus:
    """The corpus of a folder with {train,valid,test}.tsv or .jsonl, plain, .gz or .zst (valid may be called
    val or dev), or of hf:NAME.

    Raises DataError where a split is missing, an example is not as above, or validation or test have a label
    that training lacks."""
    train = split_text(place, "train", like=None)
    valid, test = (split_text(place, split, like=train) for split in ("valid", "test"))
    if len(labels := labels_of(train)) < 2:
        raise DataError(
            f"the training text of {place} has {len(labels)} label, {labels[0]!r}; expected at least two to "
            "tell apart"
        )
    name = place_name(str(place))
    return Corpus(train, valid, test, name, f"labelled sentences of {name}")


def place_name(place: str) -> str:
    """What a text is called in the names of files and runs."""
    return hub_name(place.removeprefix(HUB)) if place.startswith(HUB) else Path(place).resolve().name


def labels_of(text: ParallelText) -> list[str]:
    """The labels of a text, each once: numbers by size, others by name."""
    numbers = {label for label in text.targets if label.isdecimal()}
    return sorted(numbers, key=lambda label: (int(label), label)) + sorted(set(text.targets) - numbers)


def split_text(place: str | None, split: str, *, like: ParallelText | None) -> ParallelText:
    """One split of a folder, or of hf:NAME or hf:NAME:SUBSET, read by the package `datasets`. Raises
    DataError as `labelled_corpus` does, and where that package is not installed or cannot read it."""
    if place is not None and place.startswith(HUB):
        name, _, subset = place.removeprefix(HUB).partition(":")
        rows, where = named_split(load_hub(name, subset), split, place), f"{place}, {split}"
        return checked_examples(hub_rows(rows, where), like, where)
    if place is None or not Path(place).is_dir():
        raise DataError(
            f"no labelled text at {place}: expected a folder of train, valid and test as .tsv (label TAB "
            f"sentence) or .jsonl, plain, .gz or .zst, or {HUB}NAME for the package datasets"
        )
    files = named_split(split_parts(Path(place), LABELLED_ENDINGS), split, place)
    return read_labelled(*files, like=like)


def other_labelled(place: str, *, like: ParallelText) -> tuple[str, ParallelText]:
    """Name and test examples of another text for a model that was trained on `like`: one file, a folder with
    a test split, or hf:NAME.

    Raises DataError where there is none, or its labels or its number of sentences an example are not those of
    `like`."""
    path = Path(place)
    if row_ending(path) in LABELLED_ENDINGS:
        return f"{path.resolve().parent.name}-{path.name.split('.')[0]}", read_labelled(path, like=like)
    return place_name(place), split_text(place, "test", like=like)


def read_labelled(*paths: Path, like: ParallelText | None = None) -> ParallelText:
    """The examples of some files; empty lines are left out and counted. like: the training text, whose labels
    alone may occur.

    Raises DataError, naming the line, at one without a label or a sentence, with an unknown label, or with
    two sentences where others, or those of `like`, have one."""
    rows, empty = list[LabelledRow](), 0
    for path in paths:
        empty += read_lines(path).count("")
        tabs = row_ending(path) == ".tsv"
        own = tab_rows(path, TAB_COLUMNS, headers=((LABEL_FIELD,),)) if tabs else json_lines(path)
        rows += [(f"{path}, line {number}", row) for number, row in own]
    return checked_examples(rows, like, str(paths[0]), empty=empty)


def hub_rows(rows: Any, place: str) -> Iterator[LabelledRow]:
    """The rows of a split of a data set, with the names of labels that it numbers."""
    names = getattr(rows.features.get(LABEL_FIELD), "names", None)
    for number, row in enumerate(rows):
        where, label = f"{place}, example {number}", row.get(LABEL_FIELD)
        if label == -1:
            raise DataError(
                f"{where}: its labels are hidden (-1); give a folder of files whose test set has labels"
            )
        yield where, {**row, LABEL_FIELD: names[label] if names and isinstance(label, int) else label}


def checked_examples(
    rows: Iterable[LabelledRow], like: ParallelText | None, place: str, empty: int = 0
) -> ParallelText:
    """The examples as a text: source lines and labels. Two sentences stand in the order of the first row, or
    of `like`, by their names. Raises DataError unless each has a label, of those of `like`, and as many
    sentences as the first, of these names."""
    known = None if like is None else set(like.targets)
    count = None if like is None else like.sources[0].count("\t") + 1
    columns = () if like is None else like.columns
    sources, labels = list[str](), list[str]()
    for where, fields in rows:
        label = fields.get(LABEL_FIELD)
        names = tuple(name for name in fields if name not in (LABEL_FIELD, *NUMBER_FIELDS))
        columns = columns or names
        if {*names} == {*columns}:
            names = columns
        elif len(names) == len(columns) == 2 and {*TAB_COLUMNS}.isdisjoint((*names, *columns)):
            raise DataError(
                f"{where}: has the sentences {' and '.join(map(str, names))}, other examples have "
                f"{' and '.join(columns)}, so which is the first is not known; give them the same names"
            )
        sentences = [fields[name] for name in names]
        said = [" ".join(each.split()) for each in sentences if isinstance(each, str)]
        named = isinstance(label, str | int) and not isinstance(label, bool) and str(label).strip()
        if not named or len(said) < len(sentences) or not all(said) or len(said) not in (1, 2):
            raise DataError(
                f"{where}: expected a `label`, a name or a whole number, and one or two sentences, none "
                f"of them empty; got {shortened(fields)}"
            )
        count = len(said) if count is None else count
        if len(said) != count:
            raise DataError(f"{where}: has {len(said)} sentence(s), other examples have {count}")
        if known is not None and named not in known:
            raise DataError(
                f"{where}: the label {named!r} is none of the training text, which has "
                f"{', '.join(sorted(known)[:12])}"
            )
        sources.append("\t".join(said))
        labels.append(named)
    if not sources:
        raise DataError(f"{place} has no examples; expected a label and a sentence a line")
    return ParallelText(sources, labels, {"empty": empty} if empty else {}, columns=columns)
