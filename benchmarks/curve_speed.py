"""How much faster does a trained model translate without the heads that a curve closed first?

    python prune.py RUN --by gradient --kinds enc-self --step 0.25
    python -m benchmarks.curve_speed --run RUN --curve gradient-step0.25-enc-self

For each step of the curve the closed heads are removed from the weights, and the models, the whole one among
them, translate the same test sentences greedily, in turns, in batches of --batch. What a step costs in BLEU
is in the curve. Shorter translations take less time too, so target pieces stand beside the seconds;
multiply-adds are counted for translations as long as their sources.
"""

import argparse
import copy
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import Answer, Benchmark, count_flag
from headgates.report.speed.measure import (
    alternate,
    median_and_range,
    median_text,
    range_text,
    ratio_by_round,
)

if TYPE_CHECKING:
    from headgates.models.translator import Translator
    from headgates.workbench.folder import RunFolder


def steps_of(folder: "RunFolder", curve: str) -> list[dict[str, Any]]:
    """The curve's rows that close heads but leave some of its kinds. Raises ValueError if it is not there, or
    has several seeds."""
    from headgates.workbench.table import read_table

    if not (folder / f"curves/{curve}-order.json").is_file():
        there = ", ".join(sorted(path.stem for path in (folder / "curves").glob("*.csv"))) or "none"
        raise ValueError(
            f"{folder.path} has no order of a curve {curve!r}; its curves: {there}; python prune.py draws one"
        )
    return [row for row in read_table(folder, f"curves/{curve}.csv") if 0 < row["closed_share"] < 1]


def without_first(translator: "Translator", order: Any, count: int) -> "Translator":
    """A copy without the first `count` heads of the order, a HeadMap of places from 0."""
    from headgates.gates import remove
    from headgates.models.translator import Translator

    model = copy.deepcopy(translator.model)
    remove(model, order.map(lambda places: (places >= 0) & (places < count)))
    return Translator(model.eval(), translator.source_vocab, translator.target_vocab, translator.search)


def answer(options: argparse.Namespace) -> Answer:
    from headgates.gates import HeadMap
    from headgates.models.multiply_adds import decoding, saved_share
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.source import open_source, run_corpus

    folder = RunFolder.open(options.run)
    steps = steps_of(folder, options.curve)
    whole = open_source(folder.path, device="cpu").translator
    lines = list(run_corpus(folder, options.data_dir).test.sources)[: options.sentences]
    batches = [lines[i : i + options.batch] for i in range(0, len(lines), options.batch)]
    order = HeadMap.load(folder / f"curves/{options.curve}-order.json")
    systems = {"whole": whole} | {
        f"{row['heads_closed']} heads removed": without_first(whole, order, row["heads_closed"])
        for row in steps
    }
    pieces: dict[str, int] = {}

    def translate(name: str) -> None:
        found = [best[0] for batch in batches for best in systems[name].translate_n_best(batch, beam=1)]
        pieces[name] = sum(translation.tokens for translation in found)

    seconds = alternate({name: partial(translate, name) for name in systems}, rounds=options.rounds)
    lengths = [1 + len(ids) for ids in whole.encode(lines)]
    counts = [
        [decoding(system.model, source=n, steps=[n], beam=1) for n in lengths] for system in systems.values()
    ]
    parts = [{part: sum(each[part] for each in system) for part in system[0]} for system in counts]
    measured = []
    for (name, system), row, less in zip(list(systems.items())[1:], steps, parts[1:], strict=True):
        cost = {
            key: row[f"test_bleu{key}"]
            for key in ("", "_difference", "_difference_low", "_difference_high", "_p_value")
        }
        facts = {
            "closed_share": row["closed_share"],
            "heads_closed": row["heads_closed"],
            "test_bleu": cost.pop(""),
        }
        facts |= {f"test_bleu{key}": value for key, value in cost.items()}
        facts |= {
            "parameters": sum(weight.numel() for weight in system.model.parameters()),
            "target_pieces": pieces[name],
        }
        speed = {
            "whole_over_removed": ratio_by_round(seconds["whole"], seconds[name]),
            "saved_share": saved_share(parts[0], less),
        }
        measured.append({**facts, **speed, "seconds": median_and_range(seconds[name])})
    numbers = {
        "run": folder.path.resolve().name,
        "curve": options.curve,
        "sentences": len(lines),
        "batch": options.batch,
        "rounds": options.rounds,
        "whole": {
            "parameters": sum(weight.numel() for weight in whole.model.parameters()),
            "target_pieces": pieces["whole"],
            "seconds": median_and_range(seconds["whole"]),
        },
        "measured": measured,
    }
    header = [
        "heads closed",
        "test BLEU",
        "times as fast",
        "lowest to highest",
        "multiply-adds saved",
        "target pieces",
    ]
    rows = [
        [
            f"{each['heads_closed']} ({each['closed_share']:.0%})",
            f"{each['test_bleu']:.2f} ({each['test_bleu_difference']:+.2f})",
            median_text(each["whole_over_removed"], 3),
            range_text(each["whole_over_removed"], 3),
            f"{each['saved_share']:.1%}",
            each["target_pieces"],
        ]
        for each in measured
    ]
    return Answer(
        numbers, header, rows, f"{numbers['run']}: {len(lines)} sentences, greedy, batches of {options.batch}"
    )


main = Benchmark(
    "curve_speed",
    "the heads that a curve closes first, removed: times as fast as the whole model, greedy search",
    __doc__,
    [
        ("--run", {"required": True, "help": "run folder on which prune.py drew the curve"}),
        (
            "--curve",
            {"required": True, "help": "its name in the run folder's curves/, of an order without seeds"},
        ),
        (
            "--data-dir",
            {"default": None, "help": "folder with local copies of named corpora (default: the run's own)"},
        ),
        count_flag("--sentences", 64, "of the test set, the first ones"),
        count_flag("--batch", 16, "sentences translated at once"),
        count_flag("--rounds", 5, "timed runs of each"),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
