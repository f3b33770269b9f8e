"""What each system makes of a sample of test lines, for the page: source, reference and every output.

    {"total": test lines, "src": language, "tgt": language, "systems": [...],
     "lines": [{"number", "source", "reference", "outputs", "of"}]}

outputs: the different ones of a line; of: for each system which of them is its own. The sample is drawn by a
fixed seed; it has MOST_LINES lines, or as many as hold MOST_BYTES.
"""

import random
from collections.abc import Iterator
from typing import Any

from headgates.data.text import digest_lines
from headgates.explain.analysed_model import AnalysedModel
from headgates.models.progress import say
from headgates.records.folder import RunFolder, lines_in_file
from headgates.records.row import BASE, ResultRow

MOST_LINES = 300
MOST_BYTES = 300_000
LINES_SEED = 1


def output_lines(analysed: AnalysedModel) -> dict[str, Any] | None:
    """The content of "lines" of the page's data; None where no system's outputs of the test text are there,
    or the page is about a text of its own."""
    if analysed.config.text is not None:
        return None
    test = analysed.source.lines("test", analysed.source.config.get("test_sentences", 0))
    evaluation = {"sentences": len(test[0]), "test_digest": digest_lines(*test)}
    systems, outputs = list[dict[str, Any]](), list[list[str]]()
    for folder in [analysed.base, *(run.folder for run in analysed.shown_runs)]:
        for row in own_rows(folder, analysed.base):
            if any(row.evaluation.get(name) != value for name, value in evaluation.items()):
                continue
            found = kept_outputs(folder, row.system)
            again = row.is_base and found in outputs
            if found is not None and len(found) == len(test[0]) and not again:
                systems.append(said_of(folder, row))
                outputs.append(found)
    if not systems:
        return None
    lines: list[dict[str, Any]] = []
    room = MOST_BYTES
    for number in random.Random(LINES_SEED).sample(range(len(test[0])), min(MOST_LINES, len(test[0]))):
        own = [each[number] for each in outputs]
        different = list(dict.fromkeys(own))
        texts = [test[0][number], test[1][number], *different]
        room -= sum(len(text.encode(errors="replace")) for text in texts) + 60 + 3 * len(own)
        if room < 0 and lines:
            break
        line = {"number": number, "source": texts[0], "reference": texts[1], "outputs": different}
        lines.append({**line, "of": [different.index(each) for each in own]})
    lines.sort(key=lambda line: line["number"])
    languages = {name: analysed.source.config.get(name) for name in ("src", "tgt")}
    return {"total": len(test[0]), **languages, "systems": systems, "lines": lines}


def own_rows(folder: RunFolder, base: RunFolder) -> Iterator[ResultRow]:
    """The rows of a run without the base's, which its own run has."""
    for row in folder.rows():
        borrowed = folder.path != base.path and row.system == BASE
        if not borrowed:
            yield row


def kept_outputs(folder: RunFolder, system: str) -> list[str] | None:
    """None where they are gone, or no text, which is said."""
    path = folder / f"hypotheses/{system}.txt"
    try:
        return lines_in_file(path) if path.is_file() else None
    except UnicodeDecodeError:
        say(f"left out of the page: {path} is not UTF-8")
        return None


def said_of(folder: RunFolder, row: ResultRow) -> dict[str, Any]:
    return {
        "run": folder.path.resolve().name,
        "system": row.system,
        "label": row.recipe.title if row.recipe and not row.is_base else row.label,
        "own": row.system == folder.own_system(),
        "heads_open": row.heads_open,
        "heads_total": row.heads_total,
        "value": row.main.value,
    }
