"""Fill the tables of the pages from the files in results/.

    python -m benchmarks.records            # writes the tables anew; --check says which ones differ

A table lies between `<!-- table NAME -->` and `<!-- end -->`. TABLES makes each from its files; the prose
around it repeats no digit, so it stays true when a digit changes."""

import argparse
import csv
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from statistics import fmean, median
from typing import Any

from benchmarks.benchmark import ROOT
from benchmarks.peers_table import HEADER, peer_rows
from benchmarks.planted import USUAL_RELATIONS, selector_table
from headgates.lab.measure import spread_text
from headgates.records.table import markdown_table

RESULTS = ROOT / "results"
MARKED = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES = [
    str(path.relative_to(ROOT))
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *RESULTS.glob("*.md")])
    if MARKED.search(path.read_text(encoding="utf-8"))
]
LARGE_RUNS = {  # a part of a run's name -> what the table of speeds calls it
    "plan-2.2x": "planned, 2.2 asked",
    "plan-2.5x": "planned, 2.5 asked",
    "plan-5x": "planned, 5 asked",
    "five-1": "planned, 5 asked, today's configuration",
    "l0-2.5x": "learned gates, 2.5 asked",
    "uniform-2.5x": "a smaller model from random weights",
    "unpruned": "unpruned, trained as long",
}
ENDS: dict[str, Callable[[Iterable[float]], float]] = {"median": median, "lowest": min, "highest": max}
SHOWN_LISTS = (0, 10, 50)
WHOLE_SET = 1000  # lines of flickr 2017
LATER_NAMES = {"l0-target": "l0"}  # of selectors in older lines
COUNTS = (36, 18, 9)  # heads of Multi30k's 72
FileRow = Mapping[str, Any]
Cell = Callable[[Any], str]
Table = tuple[list[str], list[list[str]]]  # head and rows


def made_table(rows: Iterable[Any], columns: Mapping[str, Cell]) -> Table:
    return [*columns], [[cell(row) for cell in columns.values()] for row in rows]


def record_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text("utf-8").splitlines()]


def number_cell(name: str, form: str = ".2f") -> Cell:
    return lambda row: f"{row[name]:{form}}" if name in row else ""


REFITTED = ", out+ffn+v refitted"
BEST = "compare-multi30k-best"  # after the training that loses least
SECOND = "compare-tatoeba-teacher"
TRAINED_AS_LONG = "unpruned, trained as long"
Size = int | str  # the open heads, or the speed that was asked for
Groups = dict[tuple[str, Size], dict[str, Any]]  # by method and size


def first_table() -> Table:
    """Which heads stay, then BLEU at each number of them, on two test sets: README's table."""
    sets = both_sets(BEST)
    methods = {
        "chosen by importance (Michel et al. 2019)": "importance",
        "chosen by optimal brain surgery (`obs`)": "obs",
        "chosen by learned gates (Voita et al. 2019)": "learned gates",
    }
    unpruned = on_both(sets, (TRAINED_AS_LONG, 72))
    rows = [["all 72, trained as long", unpruned, unpruned]]
    rows += [[text, *(on_both(sets, (each, heads)) for heads in (18, 9))] for text, each in methods.items()]
    return ["which heads stay", "18 of 72 heads", "9"], rows


def best_table() -> Table:
    """Method, heads and epochs, then BLEU and chrF on two test sets, after the training that loses least."""
    sets = both_sets(BEST)
    rows = [
        [
            method,
            f"{heads}",
            f"{group['epochs']}",
            *(on_both(sets, (method, heads), metric) for metric in ("bleu", "chrf")),
        ]
        for (method, heads), group in sets[0].items()
        if method != "unpruned"
    ]
    return ["which heads stay", "heads", "epochs", "BLEU, 2016 / 2017", "chrF, 2016 / 2017"], rows


def second_table() -> Table:
    """The second pair: BLEU and chrF on its test set, of heads and of speeds."""
    rows = []
    for folder, base in ((SECOND, "128, 3 + 3"), (SECOND.replace("tatoeba", "tatoeba-256"), "256, 6 + 6")):
        for (method, _), group in teacher_groups(folder).items():
            asked = group.get("asked", "").replace(", without a shortlist", "")
            scores = [f"{group[metric]:.2f}" for metric in ("bleu", "chrf")]
            rows.append([base, method, asked, f"{group['heads']:.0f}", f"{group['seeds']}", *scores])
    return ["base", "which parts stay", "asked", "heads", "seeds", "BLEU", "chrF"], rows


def both_sets(folder: str) -> list[Groups]:
    """`teacher_groups` of a comparison on flickr 2016, and on 2017."""
    return [teacher_groups(f"{folder}{place}") for place in ("", "/flickr-2017")]


def teacher_groups(folder: str) -> Groups:
    """The columns of each group of models that learned from a teacher."""
    groups = json.loads((RESULTS / folder / "compare.json").read_text("utf-8"))["groups"]
    methods = {group["method"] for group in groups}

    def short(method: str) -> str:
        """Without the refit that all have, unless it tells two apart."""
        plain = str(method).replace(REFITTED, "")
        return method if plain != method and plain in methods else plain

    def size(group: dict[str, Any]) -> Size:
        """Models for two speeds may have as many heads."""
        asked = str(group.get("asked", ""))
        return asked if "times the speed" in asked else round(group["heads"])

    return {(short(group["method"]), size(group)): group for group in groups}


def on_both(sets: Iterable[Groups], key: tuple[str, Size], metric: str = "bleu") -> str:
    """A group's scores on `both_sets`."""
    return " / ".join(f"{found[key][metric]:.2f}" for found in sets if key in found) or "not run"


def teacher_table() -> Table:
    """Choice, then BLEU and chrF on two test sets for each number of heads."""
    sets = both_sets("compare-multi30k-teacher")
    methods = list(dict.fromkeys(method for method, heads in sets[0] if heads == COUNTS[0]))
    rows = []
    for method in [TRAINED_AS_LONG, *methods]:
        counts = (*COUNTS, 6) if method in methods else (72,) * 4
        cells = (on_both(sets, (method, heads), metric) for heads in counts for metric in ("bleu", "chrf"))
        rows.append([method, *cells])
    head = [f"{count} of 72{metric}" for count in (*COUNTS, 6) for metric in ("", ", chrF")]
    return ["which heads stay", *head], rows


def large_table(folder: str = "compare-large-teacher") -> Table:
    """Models of a large base for a speed: BLEU and chrF on two test sets."""
    sets = both_sets(folder)
    head = ["which parts stay", "asked", "seeds", "BLEU, 2016 / 2017", "chrF, 2016 / 2017", "parameters"]
    return head, [
        [
            key[0],
            group.get("asked", "").replace(" the speed", ""),
            f"{group['seeds']}",
            *(on_both(sets, key, metric) for metric in ("bleu", "chrf")),
            f"{group['parameters']:,.0f}",
        ]
        for key, group in sets[0].items()
    ]


def timed_table() -> Table:
    """The speeds of these models by int8, with and without a shortlist; BLEU and chrF of what was timed where
    that was the whole test set."""
    groups = defaultdict(list)
    for record in record_lines("batches"):
        for row in record["measured"]:
            if row["list"] not in SHOWN_LISTS or row["run"].startswith("toy-"):
                continue
            name = next(label for part, label in LARGE_RUNS.items() if part in row["run"])
            groups[name, row["batch"], row["list"]].append((record["lines"], row))
    rows = []
    for (name, batch, best), found in sorted(groups.items()):
        each = [row["measured"] for _, row in found]
        times = {end: of(one[end] for one in each) for end, of in ENDS.items()}
        by_run = {row["run"]: row["scores"] for lines, row in found if lines == WHOLE_SET}
        scores = by_run.values()
        means = [
            f"{fmean(one[metric] for one in scores):.2f}" if scores else "" for metric in ("bleu", "chrf")
        ]
        seeds = len({row["run"] for _, row in found})
        rows.append([name, f"{batch}", f"{best or 'none'}", spread_text(times), f"{seeds}", *means])
    return ["model", "batch", "pieces listed", "times as fast", "seeds", "BLEU", "chrF"], rows


def curve_table() -> Table:
    """How many times as fast one of these models is, for each shortlist and beam, by batch."""
    found = {
        (row["list"], row["beam"], row["batch"]): row["measured"]
        for record in record_lines("batch_curves")
        for row in record["measured"]
    }
    batches = sorted({batch for *_, batch in found})
    rows = [
        [f"{best or 'none'}", f"{beam}"] + [spread_text(found[best, beam, batch]) for batch in batches]
        for best, beam in sorted({(best, beam) for best, beam, _ in found})
    ]
    return ["pieces listed", "beam", *(f"batch {batch}" for batch in batches)], rows


def measured_table() -> Table:
    """question, against, answer, file of each benchmark: its newest line, for costs each pass's newest."""
    newest = {each["what"]: each["ratio"] for record in record_lines("costs") for each in record["measured"]}
    rows = [(name, asked, peer, answer(record_lines(name)[-1])) for name, asked, peer, answer in QUESTIONS]
    for what, text in COSTS.items():
        ratios = "; ".join(f"{name}: {spread_text(ratio)}" for name, ratio in newest[what].items())
        rows.append(("costs", text, "a plain pass", ratios))
    return made_table(
        rows,
        {
            "question": itemgetter(1),
            "against": itemgetter(2),
            "median (lowest to highest)": itemgetter(3),
            "file": lambda row: f"[{row[0]}]({row[0]}.jsonl)",
        },
    )


def peers_table() -> Table:
    """What benchmarks/peers.py measured: by one thread, by several, and on machines other than the first."""
    records = record_lines("peers")
    rows = []
    for record in records:
        threads = f", {record['threads']} threads" * (record["threads"] > 1)
        device = f", {record['device'].split(',')[0]}" * (record["device"] != records[0]["device"])
        rows += [[f"{name}{threads}{device}", *cells] for name, *cells in peer_rows(record["measured"])]
    return HEADER, sorted(rows, key=lambda row: not row[0].startswith("training"))


def planted() -> Table:
    """What every selector of headgates found, by the newest line that has a planting."""
    newest: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in record_lines("planted"):
        found = defaultdict(list)
        for row in line["rows"]:
            name = LATER_NAMES.get(row["selector"], row["selector"])
            row = {"relations": USUAL_RELATIONS, **row, "selector": name}
            if ":" not in name:
                found[name, row["decoys"], row["relations"]].append(row)
        newest |= found
    return selector_table([row for rows in newest.values() for row in rows])


def any_model() -> Table:
    """Every model at the first speed asked for, of Torch-Pruning's four the best on the validation part."""

    def shown(row: FileRow) -> bool:
        of_four = ", " in row["what"] and "refit" not in row["what"]
        return not row["curve"] and (row["best"] or not of_four)

    def name(row: FileRow) -> str:
        what = "the even cut's shape, new weights" if row["what"] == "new" else row["what"]
        return f"Torch-Pruning ({what})" if row["best"] else what

    def apart(prefix: str) -> Cell:
        def cell(row: FileRow) -> str:
            if f"{prefix}difference" not in row:
                return ""
            value, low, high = (row[f"{prefix}difference{end}"] for end in ("", "_low", "_high"))
            return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"

        return cell

    columns: dict[str, Cell] = {
        "model": itemgetter("base"),
        "made smaller by": name,
        "times as fast": lambda row: "{speed:.2f} ({speed_lowest:.2f} to {speed_highest:.2f})".format_map(
            row
        ),
        "accuracy": number_cell("accuracy", ".3f"),
        "test loss": number_cell("loss", ".3f"),
        "above headgates, 95%": apart(""),
        "trained: loss": number_cell("trained_loss", ".3f"),
        "trained: above headgates, 95%": apart("trained_"),
    }
    return made_table(
        (row for record in record_lines("any_model") for row in record["rows"] if shown(row)), columns
    )


def own_models() -> Table:
    """Test losses without training, a line for each way, a column for each model."""
    labels = {"unpruned": "unpruned", "headgates": "`hg.prune(..., speedup=2)`", "even cut": "an even cut"}
    best = "the best of Torch-Pruning's four"
    losses: dict[str, dict[str, str]] = {name: {} for name in [*labels.values(), best]}
    for record in record_lines("any_model"):
        for row in record["rows"]:
            name = best if row.get("best") else labels.get(row["what"])
            if name is not None and not row["curve"]:
                losses[name][row["base"]] = f"{row['loss']:.3f}"
    models = [*losses["unpruned"]]
    return ["", *models], [[name, *(own[model] for model in models)] for name, own in losses.items()]


def any_model_bases() -> Table:
    """How long each model was trained, and how far the loss of its validation part fell in the last fifth."""
    rows = [row for record in record_lines("any_model") for row in record["rows"] if "steps" in row]

    def fall(row: FileRow) -> str:
        before, after = row["valid_losses"][-2:] or (None, None)
        return f"{before - after:.3f}" if before else ""

    columns: dict[str, Cell] = {
        "model": itemgetter("base"),
        "steps": number_cell("steps", ","),
        "validation loss": lambda row: f"{row['valid_losses'][-1]:.3f}" if row["valid_losses"] else "",
        "fall over the last fifth": fall,
    }
    return made_table(rows, columns)


def causal_table() -> Table:
    """How many heads causal gates give each label, and what closing those of the mean costs, together and
    one by one, in nats a sentence."""
    rows = []
    for place, base in {
        "toy-example": "toy example",
        "multi30k-en-de": "Multi30k",
        "marian-enpt": "student",
    }.items():
        with (RESULTS / f"causes-{place}" / "causal-labels.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                in_one = f"{row['fewest']} to {row['most']}"
                costs = [f"{float(row[how]):.2f}" for how in ("together", "singly")]
                if row["in_any_seed"] != "0":
                    rows.append(
                        [base, row["label"], in_one, row["in_every_seed"], row["in_any_seed"], *costs]
                    )
    head = ["base", "label", "heads in one seed", "in every seed", "in any seed"]
    return [*head, "closed together, nats a sentence", "sum of single effects"], rows


def costly_heads(record: FileRow, scores: str = "effect") -> list[str]:
    """Heads and what each costs or carries in nats, the most first."""
    values = [
        (value, f"{site}.{i}")
        for site, row in record["head_maps"][scores].items()
        for i, value in enumerate(row)
    ]
    return [f"{head}, {value:.2f}" for value, head in sorted(values, reverse=True)]


def contrast_records() -> dict[str, FileRow]:
    """What `analyze --contrast` found, by the contrast's name."""
    paths = sorted((RESULTS / "contrasts").glob("*.json"), reverse=True)
    records = [json.loads(path.read_text("utf-8")) for path in paths]
    return {record["facts"]["name"]: record for record in records}


def contrasts_table() -> Table:
    """A line for each contrast of the toy example and of Multi30k."""
    rows = []
    for name, record in contrast_records().items():
        if name.startswith("toy-multi"):
            continue
        facts, effects = record["facts"], costly_heads(record)
        found = [f"{facts['right']:.0%}", f"{facts['clean']:.2f}", f"{facts['none']:.2f}"]
        most = [
            f"`{name}`",
            effects[0],
            costly_heads(record, "patch")[0],
            f"{len(facts['named'])} of {len(effects)}",
        ]
        tested = [
            f"{facts[how]['value']:.2f} / {facts[how]['random']:.2f}" if facts["named"] else ""
            for how in ("without", "alone")
        ]
        rows.append([*most, *found, f"{facts['held_out_clean']:.2f}" if tested[0] else "", *tested])
    head = ["contrast", "closing costs most", "patched carries most", "named", "right", "m", "no heads"]
    return [*head, "m, tested", "without", "alone"], rows


def language_table() -> Table:
    """The heads that two contrasts of one model of two languages need most."""
    found = {f"`{name}`": each for name, each in contrast_records().items() if name.startswith("toy-multi")}
    return [*found], [
        list(row) for row in zip(*(costly_heads(each)[:5] for each in found.values()), strict=True)
    ]


COSTS = {
    "gates": "a training step with gates: times as long",
    "importance": "importance of all heads: times as long",
    "relevance": "relevance of all heads: times as long",
    "refit": "a refit with half of the heads closed: times as long",
}
MEMORY = ("bounded", "as torch leaves it")
QUESTIONS: list[tuple[str, str, str, Callable[[dict[str, Any]], str]]] = [
    ("translate_peer", "translate.py by CTranslate2, 1,000 lines, one thread: times as fast",
     "a program that calls CTranslate2 itself",
     lambda record: "; ".join(f"{row['compute_type']}, beam {row['beam']}: {spread_text(row['ratio'])}"
                              for row in record["measurements"])),
    ("memory", "training in bf16 on a CPU: CPU time of bounded memory", "memory as torch leaves it",
     lambda record: f"{spread_text(record['ratio'])}; peak "
     + " against ".join(f"{record['measured'][each]['peak_mb']:,} MB" for each in MEMORY)),
    ("big_corpus", "steps on a corpus of 10 million pairs: times as long", "text in memory",
     lambda record: f"{spread_text(record['throughput']['slower'])}; "
     f"{record['private_mb_above_model']['second']:.0f} MB above the model"),
    ("fuzz", "damaged and hostile files that our readers are given", "one clear error each",
     lambda record: "; ".join(f"{name}: {count:,}" for name, count in record["all"].items())),
]  # fmt: skip

TABLES: dict[str, Callable[[], Table]] = {
    "first": first_table,
    "large": large_table,
    "faster": partial(large_table, "compare-large-speeds"),
    "timed": timed_table,
    "teacher": teacher_table,
    "best": best_table,
    "curve": curve_table,
    "second": second_table,
    "causal": causal_table,
    "contrasts": contrasts_table,
    "language": language_table,
    "measured": measured_table,
    "peers": peers_table,
    "planted": planted,
    "any-model": any_model,
    "own": own_models,
    "any-model-bases": any_model_bases,
}


def filled_page(page: str) -> str:
    """A page's text with its tables made anew. Raises ValueError for a table that TABLES does not name."""

    def fill(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise ValueError(f"no table {match[2]!r}; add it to TABLES in benchmarks/records.py")
        left = {"measured": 4, "peers": 5, "causal": 2, "contrasts": 4, "language": 2}.get(
            match[2], 1
        )  # columns of words
        return match[1] + "\n".join(markdown_table(*TABLES[match[2]](), left)) + match[3]

    return MARKED.sub(fill, page)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.records", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a table differs")
    check, stale = parser.parse_args().check, []
    for name in PAGES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if (new := filled_page(text)) != text:
            stale.append(name)
            if not check:
                path.write_text(new, encoding="utf-8")
    print(f"{'differ from their files' if check else 'written'}: {', '.join(stale) or 'none'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
