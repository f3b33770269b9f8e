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
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.peers_table import HEADER, peer_rows
from benchmarks.planted import USUAL_RELATIONS, selector_table
from headgates.lab.measure import spread_text
from headgates.records.table import markdown_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
CHOICES = "compare-multi30k-choices"
MARKED = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES = [
    str(path.relative_to(ROOT))
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *RESULTS.glob("*.md")])
    if MARKED.search(path.read_text(encoding="utf-8"))
]
METHOD_LABELS = {  # what tables call the rows of version 0.2, by the names that the records have
    "base": "unpruned",
    "base-continued": "unpruned, trained as long",
    "l0": "learned gates by λ",
    "l0-target": "learned gates",
    "importance:trained": "importance, trained as long",
    "importance:out+ffn+v:trained": "importance, out+ffn+v refitted, trained as long",
    "plan": "planned",
    "plan-heads": "heads alone, planned",
    "plan-importance": "lowest importance",
    "plan-learned": "learned gates at the speed",
    "uniform": "a smaller model from random weights",
}
LARGE_RUNS = {  # a part of a run's name -> what the table of speeds calls it
    "plan-2.2x": "planned, 2.2 asked",
    "plan-2.5x": "planned, 2.5 asked",
    "plan-5x": "planned, 5 asked",
    "five-1": "planned, 5 asked, default training",
    "l0-2.5x": "learned gates, 2.5 asked",
    "uniform-2.5x": "a smaller model from random weights",
    "unpruned": "unpruned, trained as long",
}
ENDS = ((min, "lowest"), (max, "highest"))
SHOWN_LISTS = (0, 10)
WHOLE_SET = 1000  # lines of flickr 2017
LATER_NAMES = {"l0-target": "l0"}  # of selectors in older lines
COUNTS = (36, 18, 9)  # heads of Multi30k's 72
FileRow = Mapping[str, Any]
Cell = Callable[[Any], str]
Table = tuple[list[str], list[list[str]]]  # head and rows


def made_table(rows: Iterable[Any], columns: Mapping[str, Cell]) -> Table:
    return [*columns], [[cell(row) for cell in columns.values()] for row in rows]


# ---------------------------------------------------------------- files


def result_rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def record_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text("utf-8").splitlines()]


Points = dict[tuple[str, int], list[dict[str, str]]]


def points(folder: str, trained: bool) -> Points:
    """(method, open heads) -> the rows of a comparison, one for each seed."""
    found = defaultdict(list)
    for row in result_rows(f"{folder}/compare.csv"):
        if (row["epochs"] != "0") == trained and not row["method"].startswith("base"):
            method = ":".join(filter(None, (row["method"], row["reconstruct"])))
            found[method, round(float(row["heads_asked"]))].append(row)
    return found


def speed_groups() -> list[dict[str, Any]]:
    """The models of each method for a speed and so much training, those of most seeds."""
    groups: dict[tuple[float, int, int], dict[str, Any]] = {}
    order = [*METHOD_LABELS]
    for path in RESULTS.glob("compare-multi30k-256-*/compare.json"):
        for group in json.loads(path.read_text("utf-8"))["groups"]:
            key = group.get("speedup", 1.0), order.index(group["method"]), group["epochs"]
            groups[key] = max(group, groups.get(key, group), key=itemgetter("seeds"))
    return [groups[key] for key in sorted(groups)]


# ---------------------------------------------------------------- cells


def difference(row: FileRow, prefix: str = "", form: str = "+.2f") -> str:
    """-0.60 (-1.49 to +0.25), or `reference` for the row that the others are compared with."""
    names = [f"{prefix}difference{end}" for end in ("", "_low", "_high")]
    value, low, high = (float(row[name]) for name in names)
    return "reference" if value == low == high == 0 else f"{value:{form}} ({low:{form}} to {high:{form}})"


def number_cell(name: str, form: str = ".2f") -> Cell:
    return lambda row: f"{float(row[name]):{form}}" if name in row else ""


def mean_text(rows: Sequence[FileRow], metric: str = "bleu") -> str:
    return f"{fmean(float(row[metric]) for row in rows):.2f}"


def with_seeds(rows: Sequence[FileRow]) -> str:
    """The mean (lowest to highest seed)."""
    bleu = [float(row["bleu"]) for row in rows]
    return mean_text(rows) + (f" ({min(bleu):.2f} to {max(bleu):.2f})" if len(rows) > 1 else "")


def at(
    found: Points, heads: int, cell: Callable[[Sequence[FileRow]], str] = mean_text, refit: str = ""
) -> Cell:
    """What a cell says of a method with so many heads."""
    return lambda method: cell(found[method + refit, heads])


# ---------------------------------------------------------------- tables


def multi30k() -> Table:
    """The systems of fit.py on Multi30k, without an importance that closes nothing."""
    rows = [
        row
        for row in result_rows("multi30k-en-de.csv")
        if row["system"] in ("base", "base-continued", "l0", "importance", "importance:trained")
        and (row["heads_open"] < row["heads_total"] or not row["system"].startswith("importance"))
    ]
    columns: dict[str, Cell] = {
        "system": lambda row: METHOD_LABELS.get(row["system"], row["system"]),
        "λ": itemgetter("lambda"),
        "heads": lambda row: f"{row['heads_open']}/{row['heads_total']}",
        **{kind: itemgetter(kind) for kind in ("enc-self", "dec-self", "cross")},
        "BLEU": number_cell("bleu"),
        "chrF": number_cell("chrf"),
        "BLEU difference, 95%": difference,
    }
    return made_table(rows, columns)


def trained_table(
    folder: str, total: int, counts: Sequence[int], bleu: Callable[[Sequence[FileRow]], str] = with_seeds
) -> Table:
    """A line for each method: BLEU and chrF at each number of heads."""
    found, columns = points(folder, trained=True), dict[str, Cell](method=str)
    for count in counts:
        columns[f"{count} of {total}"] = at(found, count, bleu)
        columns[f"{count} of {total} chrF"] = at(found, count, lambda rows: mean_text(rows, "chrf"))
    return made_table(dict.fromkeys(method for method, _ in found), columns)


def further() -> Table:
    """A line for each method: BLEU at two numbers of heads on each test set, the one of the runs first."""
    folders = {"flickr 2016": "", "flickr 2017": "/flickr-2017", "Tatoeba": "/tatoeba", "noisy": "/noisy"}
    found = {name: points(f"{CHOICES}{folder}", trained=True) for name, folder in folders.items()}
    columns = {f"{heads}: {name}": at(own, heads) for heads in (36, 9) for name, own in found.items()}
    return made_table(dict.fromkeys(method for method, _ in found["flickr 2016"]), {"method": str, **columns})


def searched() -> Table:
    """The choices of one seed, and the best that a search found."""
    (found,) = record_lines("choices")
    return made_table(
        [{"name": name, **choice} for name, choice in found["choices"].items()],
        {
            "choice of 9 heads": itemgetter("name"),
            "refitted loss, searched half": number_cell("searched_half", ".3f"),
            "other half": number_cell("other_half", ".3f"),
            "trained: loss": number_cell("trained_loss", ".3f"),
            "BLEU": number_cell("test"),
            "shared": number_cell("shared"),
        },
    )


SPEED_COLUMNS: dict[str, Cell] = {
    "method": lambda group: METHOD_LABELS[group["method"]],
    "times as fast: asked": number_cell("speedup", "g"),
    "epochs": lambda group: "" if group["method"] in ("base", "uniform") else f"{group['epochs']}",
    "predicted": number_cell("predicted"),
    "by int8": number_cell("int8_measured"),
    "by own search": number_cell("torch_measured"),
    "seeds": number_cell("seeds", "g"),
    "BLEU": number_cell("value"),
    "difference, 95%": lambda group: difference(group) if "difference" in group else "",
    "chrF": number_cell("chrf"),
    "BLEU, int8": number_cell("int8_bleu"),
    "parameters": number_cell("parameters", ",.0f"),
    "seconds: choice": number_cell("choice_seconds", ".0f"),
    "training": number_cell("training_seconds", ".0f"),
}


def untrained_table() -> Table:
    """order, then BLEU for each number of heads and refit."""
    found = points("compare-multi30k-en-de", trained=False)
    orders = dict.fromkeys(method for method, _ in found if (f"{method}:out+ffn", 36) in found)
    refits = {"zero": "", "out+ffn": ":out+ffn", "out+ffn+v": ":out+ffn+v"}
    columns = {f"{n}: {name}": at(found, n, refit=refit) for n in COUNTS for name, refit in refits.items()}
    return made_table(orders, {"order": str, **columns})


REFITTED = ", out+ffn+v refitted"
BEST = "compare-multi30k-best"  # after the training that loses least
SECOND = "compare-tatoeba-teacher"


def first_table() -> Table:
    """Which heads stay, then BLEU at each number of them, on two test sets: README's table."""
    sets = both_sets(BEST)

    def cell(method: str, heads: int) -> str:
        if (method, heads) not in sets[0]:
            return "not run"
        return " / ".join(f"{found[method, heads]['bleu']:.2f}" for found in sets)

    methods = {
        "chosen by importance (Michel et al. 2019)": f"importance{REFITTED}",
        "chosen by optimal brain surgery (`obs`)": f"obs{REFITTED}",
        "chosen by learned gates (Voita et al. 2019)": "learned gates",
    }
    unpruned = cell("unpruned, trained as long", 72)
    rows = [["all 72, trained as long", unpruned, unpruned]]
    rows += [[text, cell(method, 18), cell(method, 9)] for text, method in methods.items()]
    return ["which heads stay", "18 of 72 heads", "9"], rows


def best_table() -> Table:
    """Method, heads and epochs, then BLEU and chrF on two test sets, after the training that loses least."""
    sets = both_sets(BEST)
    rows = [
        [
            method.replace(REFITTED, ""),
            f"{heads}",
            f"{group['epochs']}",
            *(" / ".join(f"{found[method, heads][name]:.2f}" for found in sets) for name in ("bleu", "chrf")),
        ]
        for (method, heads), group in sets[0].items()
        if method != "unpruned"
    ]
    return ["which heads stay", "heads", "epochs", "BLEU, 2016 / 2017", "chrF, 2016 / 2017"], rows


def second_table() -> Table:
    """The second pair: BLEU and chrF on its test set, of heads and of speeds."""
    rows = []
    for folder, base in ((SECOND, "128, 3 + 3"), (SECOND.replace("tatoeba", "tatoeba-256"), "256, 6 + 6")):
        for (method, heads), group in teacher_groups(folder).items():
            asked = group.get("asked", "").replace(", without a shortlist", "")
            name = method.replace(REFITTED, "")
            rows.append(
                [
                    base,
                    name,
                    asked,
                    f"{heads}",
                    f"{group['seeds']}",
                    f"{group['bleu']:.2f}",
                    f"{group['chrf']:.2f}",
                ]
            )
    return ["base", "which parts stay", "asked", "heads", "seeds", "BLEU", "chrF"], rows


def both_sets(folder: str) -> list[dict[tuple[str, int], dict[str, Any]]]:
    """`teacher_groups` of a comparison on flickr 2016, and on 2017."""
    return [teacher_groups(f"{folder}{place}") for place in ("", "/flickr-2017")]


def teacher_groups(folder: str) -> dict[tuple[str, int], dict[str, Any]]:
    """(method, open heads) -> the columns of its group, of models that learned from a teacher."""
    comparison = json.loads((RESULTS / folder / "compare.json").read_text("utf-8"))
    return {(group["method"], round(group["heads"])): group for group in comparison["groups"]}


def teacher_table() -> Table:
    """Choice, then BLEU and chrF on two test sets for each number of heads."""
    sets = both_sets("compare-multi30k-teacher")

    def pair(method: str, count: int, metric: str) -> str:
        return " / ".join(f"{each[method, count][metric]:.2f}" for each in sets)

    methods = list(dict.fromkeys(method for method, heads in sets[0] if heads == COUNTS[0]))
    rows = []
    for method in ["unpruned, trained as long", *methods]:
        row = [method.replace(REFITTED, "")]
        for count in (*COUNTS, 6):
            heads = count if method in methods else 72
            row += [pair(method, heads, metric) for metric in ("bleu", "chrf")]
        rows.append(row)
    head = [f"{count} of 72{metric}" for count in (*COUNTS, 6) for metric in ("", ", chrF")]
    return ["which heads stay", *head], rows


def large_table() -> Table:
    """Models of the large base for a speed: BLEU and chrF on two test sets."""
    sets = both_sets("compare-large-teacher")
    head = ["which parts stay", "asked", "seeds", "BLEU, 2016 / 2017", "chrF, 2016 / 2017", "parameters"]
    return head, [
        [
            group["method"].replace(REFITTED, ""),
            group.get("asked", "").replace(" the speed", ""),
            f"{group['seeds']}",
            *(" / ".join(f"{found[key][name]:.2f}" for found in sets) for name in ("bleu", "chrf")),
            f"{group['parameters']:,.0f}",
        ]
        for key, group in sets[0].items()
    ]


def timed_table() -> Table:
    """The speeds of these models by int8, with and without a shortlist; BLEU and chrF of what was timed where
    that was the whole test set."""
    groups = defaultdict(list)
    for line in (RESULTS / "batches.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        for row in record["measured"]:
            if row["list"] not in SHOWN_LISTS or row["run"].startswith("toy-"):
                continue
            name = next(label for part, label in LARGE_RUNS.items() if part in row["run"])
            groups[name, row["batch"], row["list"]].append((record["lines"], row))
    rows = []
    for (name, batch, best), found in sorted(groups.items()):
        each = [row["measured"] for _, row in found]
        times = median(one["median"] for one in each), *(f(one[end] for one in each) for f, end in ENDS)
        by_run = {row["run"]: row["scores"] for lines, row in found if lines == WHOLE_SET}
        scores = by_run.values()
        means = (
            (f"{fmean(one[metric] for one in scores):.2f}" for metric in ("bleu", "chrf"))
            if scores
            else ("", "")
        )
        seeds = len({row["run"] for _, row in found})
        speed = "{:.2f} ({:.2f} to {:.2f})".format(*times)
        rows.append([name, f"{batch}", f"{best}" if best else "none", speed, f"{seeds}", *means])
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
        [f"{best}" if best else "none", f"{beam}"]
        + [spread_text(found[best, beam, batch]) for batch in batches]
        for best, beam in sorted({(best, beam) for best, beam, _ in found})
    ]
    return ["pieces listed", "beam", *(f"batch {batch}" for batch in batches)], rows


def student() -> Table:
    rows = result_rows("marian-enpt/curves/importance-step0.25-enc-self.csv")
    return made_table(
        [row for row in rows if 0 < int(row["heads_closed"]) < 48],
        {
            "encoder heads closed": lambda row: f"{row['heads_closed']} of 48",
            "test BLEU": number_cell("test_bleu"),
            "difference, 95%": lambda row: difference(row, "test_bleu_"),
            "p": number_cell("test_bleu_p_value", ".3f"),
        },
    )


def measured_table() -> Table:
    """question, against, answer, file of each benchmark: its newest line, for costs each pass's newest."""
    newest: dict[str, Any] = {}
    for record in record_lines("costs"):
        newest |= {each["what"]: each["ratio"] for each in record["measured"]}
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
    rows = [row for record in record_lines("any_model") for row in record["rows"] if not row["curve"]]
    left_out = {row["what"] for row in rows if ", " in row["what"] and "refit" not in row["what"]}
    rows = [row for row in rows if row["best"] or row["what"] not in left_out]

    def name(row: FileRow) -> str:
        new = "the even cut's shape, new weights"
        return (
            f"Torch-Pruning ({row['what']})" if row["best"] else new if row["what"] == "new" else row["what"]
        )

    def apart(prefix: str) -> Cell:
        return lambda row: difference(row, prefix, "+.3f") if f"{prefix}difference" in row else ""

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
    return made_table(rows, columns)


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
        "steps": lambda row: f"{row['steps']:,}",
        "validation loss": lambda row: f"{row['valid_losses'][-1]:.3f}" if row["valid_losses"] else "",
        "fall over the last fifth": fall,
    }
    return made_table(rows, columns)


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
    "timed": timed_table,
    "teacher": teacher_table,
    "best": best_table,
    "curve": curve_table,
    "second": second_table,
    "multi30k": multi30k,
    "untrained": untrained_table,
    "further": further,
    "searched": searched,
    "choices": lambda: trained_table(CHOICES, 72, (*COUNTS, 6)),
    "trained-tatoeba": lambda: trained_table("compare-tatoeba-en-fr", 72, COUNTS),
    "encoder": lambda: trained_table(
        "compare-encoder-only", 24, (12, 5, 2), lambda rows: difference(rows[0])
    ),
    "student": student,
    "measured": measured_table,
    "peers": peers_table,
    "planted": planted,
    "any-model": any_model,
    "own": own_models,
    "any-model-bases": any_model_bases,
    "speeds": lambda: made_table(speed_groups(), SPEED_COLUMNS),
}


def filled_page(page: str) -> str:
    """A page's text with its tables made anew. Raises ValueError for a table that TABLES does not name."""

    def fill(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise ValueError(f"no table {match[2]!r}; add it to TABLES in benchmarks/records.py")
        left = {"measured": 4, "peers": 5}.get(match[2], 1)  # columns of words
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
