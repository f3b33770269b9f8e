"""A run whose vocabulary has the pieces that a text needs: fewer rows of the embeddings and of the output
layer, and nothing else.

What stays: the pieces of the text's source lines, of its target lines where it has any, and of the model's
own translations of the source lines; special tokens and languages; and what the tokenizer needs to write any
other text (data/trimming.py). So the text's lines are cut into the same pieces, the encoder computes the
same, and each piece that stays has the logit that it had. Greedy search then finds the same translation of
every line whose translation is of pieces that stay, such as all lines of the text. A wider beam compares
probabilities, which are of fewer pieces now: they are larger by the share of those that are gone, so that a
line may change; how many do is counted.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from headgates.configs.recipe import Pieces, Recipe
from headgates.configs.settings import SearchConfig
from headgates.data.parallel import folder_files, read_pairs, read_split
from headgates.data.text import DataError, ParallelText, digest_lines
from headgates.data.text_file import read_lines
from headgates.lab.lab import Run
from headgates.models.progress import reported, say
from headgates.models.translator import Translator
from headgates.models.trimmed import cut_otherwise, trim_model
from headgates.records.named_paths import no_line_of
from headgates.records.row import BASE, PRUNED
from headgates.records.source import Lines, Source

TRANSLATED_AT_ONCE = 500  # lines that are translated between two looks at the clock


class TrimmedLines(TypedDict):
    """How many lines of a text the smaller vocabulary changes."""

    lines: int
    cut_otherwise: int
    translated_otherwise: int


class TrimmedRecord(TypedDict):
    """pieces: of each side; these, parameters and bytes: before and after."""

    text_digest: str
    pieces: dict[str, list[int]]
    parameters: list[int | None]
    bytes: list[int]
    text: TrimmedLines
    test: TrimmedLines


def trimmed(run: Run, recipe: Recipe) -> TrimmedRecord:
    """Write the model with these pieces alone into the run's folder, add its row, and return what its
    result.json says of it. Raises ValueError where there is no such text, the tokenizer cannot be trimmed,
    or would cut a line of the text in another way."""
    assert isinstance(recipe.budget, Pieces)
    source = run.text.source(run.base)
    whole = source.translator
    sources, targets = read_texts(recipe.budget.texts, source)
    if whole.shortlist is not None:
        say("the shortlist is of pieces that get other numbers, and is left out: make one of the trimmed run")
    say(f"translating the {len(sources):,} lines of the text, whose pieces stay")
    written = translated_ids(whole, sources, whole.search)
    greedy = replace(whole.search, beam=1)  # which writes other pieces
    quickly = translated_ids(whole, sources, greedy) if whole.search.beam > 1 else written
    for file in run.folder.path.glob(run.task.tokenizer_files):
        file.unlink()  # the base's
    less, kept = trim_model(whole, run.folder.path, sources, targets, [*written, *quickly])
    say("translating them with these pieces alone, and the test set with both models")
    again = translated_ids(less, sources, less.search)
    if whole.shortlist is None:
        other = translated_ids(less, sources, greedy) if less.search.beam > 1 else again
        if wrong := sum(a != [kept[1][i] for i in b] for a, b in zip(quickly, other, strict=True)):
            say(f"warning: with these pieces alone {wrong:,} lines are translated otherwise by greedy search")
    weights = run.folder / "best.pt"
    run.task.save_model(weights, less)
    run.evaluation.add(PRUNED, weights, less, None, recipe=recipe)
    both = (whole, less)
    base_outputs, outputs = (run.folder.outputs(system) for system in (BASE, PRUNED))
    return {
        "text_digest": digest_lines(sources, targets),
        "pieces": {
            side: [len(getattr(each, f"{side}_vocab")) for each in both] for side in ("source", "target")
        },
        "parameters": [row.parameters for row in run.evaluation.rows],
        "bytes": [sum(each.nbytes for each in one.model.parameters()) for one in both],
        "text": {
            "lines": len(sources),
            "cut_otherwise": 0,  # or there would be no run
            "translated_otherwise": sum(
                before != [kept[1][i] for i in after] for before, after in zip(written, again, strict=True)
            ),
        },
        "test": {
            "lines": len(outputs),
            "cut_otherwise": cut_otherwise(whole.source_vocab, less.source_vocab, run.text.test[0]),
            "translated_otherwise": sum(one != two for one, two in zip(base_outputs, outputs, strict=True)),
        },
    }


def read_texts(places: Sequence[str], source: Source) -> Lines:
    """The source lines and the target lines, which may be fewer, of files of source lines, pairs of files
    SOURCE:TARGET, and folders with training text in the run's languages. Raises DataError at anything else,
    and where there is no line."""
    sources, targets = list[str](), list[str]()
    for place in places:
        files = [place] if Path(place).exists() else place.split(":")
        if Path(place).is_dir():
            src, tgt = (str(source.config.get(side)) for side in ("src", "tgt"))
            parts = folder_files(Path(place), src=src, tgt=tgt)["train"]
            text = read_split(parts, src, tgt, skip_empty=False)
        elif len(files) == 1:
            text = ParallelText(read_lines(place), [])
        elif len(files) == 2:
            text = read_pairs(*files, skip_empty=False)
        else:
            raise DataError(f"--trim-vocabulary {place}: expected a file, SOURCE:TARGET, or a folder")
        sources, targets = sources + list(text.sources), targets + list(text.targets)
    if not any(sources):
        raise no_line_of(places)
    return sources, targets


def translated_ids(translator: Translator, lines: Sequence[str], search: SearchConfig) -> list[list[int]]:
    """The ids of the best translation of every line, none for an empty one."""
    sources = translator.encode(lines)
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    chunks = (order[start : start + TRANSLATED_AT_ONCE] for start in range(0, len(order), TRANSLATED_AT_ONCE))
    found: list[list[int]] = [[] for _ in sources]
    for chosen in reported(chunks, len(sources), len, what="translated", report=say):
        n_best = translator.n_best([sources[i] for i in chosen], search)
        for i, best in zip(chosen, n_best, strict=True):
            found[i] = list(map(int, best[0].ids)) if best else []
    return found
