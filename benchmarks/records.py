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
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.planted import HEADER, summary
from headgates.configs.speed_methods import SPEED_METHODS
from headgates.configs.systems import label
from headgates.workbench.table import markdown_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
CHOICES = "compare-multi30k-choices"
PAGES = ("README.md", "results/README.md", "results/measured.md", "results/planted.md", "docs/speed.md")
MARKED = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
COUNTS = (36, 18, 9)  # heads of Multi30k's 72
Table = tuple[list[str], list[list[str]]]  # head and rows


def read_rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def difference(row: dict[str, str], prefix: str = "") -> str:
    """-0.60 (-1.49 to +0.25), or `reference` for the row that the others are compared with."""
    names = [f"{prefix}difference{end}" for end in ("", "_low", "_high")]
    value, low, high = (float(row[name]) for name in names)
    return "reference" if value == low == high == 0 else f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def systems(name: str, wanted: Sequence[str]) -> Table:
    """The wanted systems of a table of fit.py; of several lambdas that keep the same heads, the first."""
    found = []
    for row in read_rows(name):
        idle = row["system"].startswith("importance") and row["heads_open"] == row["heads_total"]
        if row["system"] in wanted and not idle:
            kinds = [row[kind] for kind in ("enc-self", "dec-self", "cross")]
            heads = f"{row['heads_open']}/{row['heads_total']}"
            scores = [f"{float(row[metric]):.2f}" for metric in ("bleu", "chrf")]
            found.append([label(row["system"]), row["lambda"], heads, *kinds, *scores, difference(row)])
    head = ["system", "λ", "heads", "enc-self", "dec-self", "cross", "BLEU", "chrF", "BLEU difference, 95%"]
    priced = any(row[1] for row in found)  # else the column of lambda is empty
    return head[:1] + head[2 - priced :], [row[:1] + row[2 - priced :] for row in found]


Points = dict[tuple[str, int], list[dict[str, str]]]


def points(folder: str, trained: bool) -> Points:
    """(method, open heads) -> the rows of a comparison, one for each seed."""
    found = defaultdict(list)
    for row in read_rows(f"{folder}/compare.csv"):
        if (row["epochs"] != "0") == trained and not row["method"].startswith("base"):
            method = ":".join(filter(None, (row["method"], row["reconstruct"])))
            found[method, round(float(row["heads_asked"]))].append(row)
    return found


def trained(
    folder: str, cells: Callable[[list[dict[str, str]]], list[str]], total: int, counts: Sequence[int]
) -> Table:
    """A line for each method: two cells of its rows at each number of heads."""
    found = points(folder, trained=True)
    head = ["method", *(f"{count} of {total}{end}" for count in counts for end in ("", " chrF"))]
    methods = dict.fromkeys(method for method, _ in found)
    return head, [
        [method, *(cell for heads in counts for cell in cells(found[method, heads]))] for method in methods
    ]


SETS = {"flickr 2016": "", "flickr 2017": "/flickr-2017", "Tatoeba": "/tatoeba", "noisy": "/noisy"}


def further(counts: Sequence[int] = (36, 9)) -> Table:
    """A line for each method: BLEU at each number of heads on each test set, the one of the runs first."""
    found = {name: points(f"{CHOICES}{folder}", trained=True) for name, folder in SETS.items()}
    methods = dict.fromkeys(method for method, _ in found["flickr 2016"])
    head = ["method", *(f"{heads}: {name}" for heads in counts for name in SETS)]
    return head, [
        [method, *(mean(found[name][method, heads]) for heads in counts for name in SETS)]
        for method in methods
    ]


def searched() -> Table:
    """The choices of one seed, and the best that a search found."""
    (row,) = [json.loads(line) for line in (RESULTS / "choices.jsonl").read_text("utf-8").splitlines()]
    keys = ("searched_half", "other_half", "trained_loss")
    head = [
        "choice of 9 heads",
        "refitted loss, searched half",
        "other half",
        "trained: loss",
        "BLEU",
        "shared",
    ]
    return head, [
        [name, *(f"{found[key]:.3f}" for key in keys), f"{found['test']:.2f}", f"{found['shared']:.2f}"]
        for name, found in row["choices"].items()
    ]


def bleu_and_chrf(rows: Sequence[dict[str, str]]) -> list[str]:
    """BLEU (lowest to highest seed) and chrF."""
    bleu = [float(row["bleu"]) for row in rows]
    seeds = f" ({min(bleu):.2f} to {max(bleu):.2f})" if len(rows) > 1 else ""
    return [mean(rows) + seeds, mean(rows, "chrf")]


def difference_and_chrf(rows: Sequence[dict[str, str]]) -> list[str]:
    return [difference(rows[0]), mean(rows, "chrf")]


SPEEDS = "compare-multi30k-256-*/compare.json"
TRAINED_ON = {"base-continued", *(name for name, method in SPEED_METHODS.items() if method.prunes)}


def speed_groups() -> list[tuple[str, float, dict[str, Any]]]:
    """Method, speed (1 of an unpruned model) and numbers of every model for a speed and so much training,
    that of most seeds."""
    groups: dict[tuple[float, int, int], dict[str, Any]] = {}
    order = ["base", "base-continued", *SPEED_METHODS]
    for path in RESULTS.glob(SPEEDS):
        for group in json.loads(path.read_text("utf-8"))["groups"]:
            key = group.get("speedup", 1.0), order.index(group["method"]), group["epochs"]
            groups[key] = max(group, groups.get(key, group), key=itemgetter("seeds"))
    return [(groups[key]["method"], key[0], groups[key]) for key in sorted(groups)]


def fast() -> Table:
    """The models for a speed in few words, of each method those of the longest training."""
    head = ["what you do", "times as fast, int8", "by own search", "parameters", "BLEU", "chrF"]
    rows, longest = [], dict[str, int]()
    for method, _, group in speed_groups():
        longest[method] = max(group["epochs"], longest.get(method, 0))
    for method, speedup, group in speed_groups():
        if method == "base-continued" or group["epochs"] < longest[method]:
            continue
        name = f"{SPEED_METHODS[method].label}, {speedup:g} asked" if speedup > 1 else label(method)
        fast = [f"{group[f'{runtime}_measured']:.2f}" if speedup > 1 else "" for runtime in ("int8", "torch")]
        size = f"{group['parameters'] / 1e6:.1f} million"
        rows.append([name, *fast, size, f"{group['value']:.2f}", f"{group['chrf']:.2f}"])
    return head, rows


def speeds() -> Table:
    """Every model for a speed, the unpruned ones first: how fast it is, and how good."""
    head = [
        "method",
        "asked",
        "epochs",
        "predicted",
        "int8",
        "own search",
        "seeds",
        "BLEU",
        "difference, 95%",
        "chrF",
        "BLEU, int8",
        "parameters",
        "seconds: choice, training",
    ]
    rows = []
    for method, speedup, group in speed_groups():
        measured = [
            f"{group[name]:.2f}" for name in ("predicted", "int8_measured", "torch_measured") if name in group
        ]
        reference = "difference" not in group
        rows.append(
            [
                SPEED_METHODS[method].label if method in SPEED_METHODS else label(method),
                "" if reference else f"{speedup:g}",
                f"{group['epochs']}" if method in TRAINED_ON else "",
                *(measured or ["", "", ""]),
                f"{group['seeds']}",
                f"{group['value']:.2f}",
                "" if reference else difference({name: str(value) for name, value in group.items()}),
                f"{group['chrf']:.2f}",
                f"{group['int8_bleu']:.2f}" if "int8_bleu" in group else "",
                f"{group['parameters']:,.0f}",
                "" if reference else f"{group.get('choice_seconds', 0):.0f}, {group['training_seconds']:.0f}",
            ]
        )
    return head, rows


def untrained() -> Table:
    """order, then BLEU for each number of heads and refit."""
    found = points("compare-multi30k-en-de", trained=False)
    orders = dict.fromkeys(method for method, _ in found if (f"{method}:out+ffn", 36) in found)
    places = [(heads, refit) for heads in COUNTS for refit in ("zero", "out+ffn", "out+ffn+v")]
    rows = [
        [order, *(mean(found[f"{order}:{refit}".removesuffix(":zero"), heads]) for heads, refit in places)]
        for order in orders
    ]
    return ["order", *(f"{heads}: {refit}" for heads, refit in places)], rows


def first() -> Table:
    """What is done to the model, then BLEU for each number of heads: README's first table."""
    closed, refitted = points("compare-multi30k-en-de", trained=False), points(CHOICES, trained=True)
    wanted = [
        ("close heads by importance (Michel et al.)", closed, "importance"),
        ("the same, and refit the weights that stay", closed, "importance:out+ffn+v"),
        ("the order of optimal brain surgery, refitted", closed, "obs:out+ffn+v"),
        ("importance, refitted, then one epoch of training", refitted, "importance:out+ffn+v"),
        ("random heads, refitted, then one epoch", refitted, "random:out+ffn+v"),
        ("learned gates, refitted, then one epoch", refitted, "l0-target"),
        ("the same, gates started by importance", refitted, "l0-started"),
    ]
    rows = [[text, *(mean(found[method, heads]) for heads in COUNTS)] for text, found, method in wanted]
    return ["what you do", "36 of 72 heads", "18", "9"], rows


def mean(rows: Sequence[dict[str, str]], metric: str = "bleu") -> str:
    return f"{fmean(float(row[metric]) for row in rows):.2f}"


def student() -> Table:
    found = [
        [
            f"{row['heads_closed']} of 48",
            f"{float(row['test_bleu']):.2f}",
            difference(row, "test_bleu_"),
            f"{float(row['test_bleu_p_value']):.3f}",
        ]
        for row in read_rows("marian-enpt/curves/importance-step0.25-enc-self.csv")
        if 0 < int(row["heads_closed"]) < 48
    ]
    return ["encoder heads closed", "test BLEU", "difference, 95%", "p"], found


def lines_of(name: str) -> list[dict[str, Any]]:
    text = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def measured() -> Table:
    """question, against, answer, file of each benchmark: its newest line, for costs each pass's newest."""
    newest: dict[str, Any] = {}
    for record in lines_of("costs"):
        newest |= {each["what"]: each["ratio"] for each in record["measured"]}
    rows = [
        (text, "a plain pass", "; ".join(f"{name}: {spread(ratio)}" for name, ratio in newest[what].items()))
        for what, text in COSTS.items()
    ]
    answers = [
        [question, against, answer(lines_of(name)[-1]), f"[{name}]({name}.jsonl)"]
        for name, question, against, answer in QUESTIONS
    ]
    head = ["question", "against", "median (lowest to highest)", "file"]
    return head, [*answers, *([*row, "[costs](costs.jsonl)"] for row in rows)]


def planted() -> Table:
    """What every selector found: the newest line of all of them, and later ones of one by name."""
    rows: list[dict[str, Any]] = []
    for line in lines_of("planted"):
        if line["score"] is None:
            rows = line["rows"]
        elif ":" not in line["score"]:
            rows = [row for row in rows if row["selector"] != line["score"]] + line["rows"]
    return HEADER, summary(rows)


def spread(ratio: dict[str, Any]) -> str:
    return f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"


def decoding(record: dict[str, Any]) -> str:
    rows = [row for each_width in record["measurements"] for row in each_width["rows"]]
    texts = []
    for peer in rows[0]["over"]:
        medians = [row["over"][peer]["median"] for row in rows]
        texts.append(f"{peer}: {min(medians):.2f} to {max(medians):.2f}")
    return "; ".join(texts)


COSTS = {
    "gates": "a training step with gates: times as long",
    "importance": "importance of all heads: times as long",
    "relevance": "relevance of all heads: times as long",
    "refit": "a refit with half of the heads closed: times as long",
}
MEMORY = ("bounded", "as torch leaves it")
QUESTIONS: list[tuple[str, str, str, Callable[[dict[str, Any]], str]]] = [
    ("training_peers", "training: times as fast", "Hugging Face's Marian in bf16, same weights and batches",
     lambda record: "; ".join(f"{row['d_model']}: {spread(row['ratio'])}" for row in record["measurements"])),
    ("decoding_peers", "search in fp32 on one thread: times as fast, medians of 12 settings",
     "Hugging Face's generate, CTranslate2, CTranslate2 in int8", decoding),
    ("translate_peer", "translate.py by CTranslate2, 1,000 lines, one thread: times as fast",
     "a program that calls CTranslate2 itself",
     lambda record: "; ".join(f"{row['compute_type']}, beam {row['beam']}: {spread(row['ratio'])}"
                              for row in record["measurements"])),
    ("memory", "training in bf16 on a CPU: CPU time of bounded memory", "memory as torch leaves it",
     lambda record: f"{spread(record['ratio'])}; peak "
     + " against ".join(f"{record['measured'][each]['peak_mb']:,} MB" for each in MEMORY)),
    ("big_corpus", "steps on a corpus of 10 million pairs: times as long", "text in memory",
     lambda record: f"{spread(record['throughput']['slower'])}; "
     f"{record['private_mb_above_model']['second']:.0f} MB above the model"),
    ("fuzz", "damaged and hostile files that our readers are given", "one clear error each",
     lambda record: "; ".join(f"{name}: {count:,}" for name, count in record["all"].items())),
]  # fmt: skip

MADE = ("base", "base-continued", "l0", "importance", "importance:trained")
TOY = ("base", "base-continued", "l0-target", "importance", "importance:out+ffn+v:trained")
TABLES: dict[str, Callable[[], Table]] = {
    "first": first,
    "toy": lambda: systems("toy-en-de.csv", TOY),
    "multi30k": lambda: systems("multi30k-en-de.csv", MADE),
    "untrained": untrained,
    "trained": lambda: trained("compare-multi30k-en-de-trained", bleu_and_chrf, 72, COUNTS),
    "further": further,
    "searched": searched,
    "choices": lambda: trained(CHOICES, bleu_and_chrf, 72, (*COUNTS, 6)),
    "trained-tatoeba": lambda: trained("compare-tatoeba-en-fr", bleu_and_chrf, 72, COUNTS),
    "encoder": lambda: trained("compare-encoder-only", difference_and_chrf, 24, (12, 5, 2)),
    "student": student,
    "measured": measured,
    "planted": planted,
    "speeds": speeds,
    "fast": fast,
}


def filled(page: str) -> str:
    """A page's text with its tables made anew. Raises ValueError for a table that TABLES does not name."""

    def fill(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise ValueError(f"no table {match[2]!r}; add it to TABLES in benchmarks/records.py")
        left = 4 if match[2] == "measured" else 1  # columns of words
        return match[1] + "\n".join(markdown_table(*TABLES[match[2]](), left)) + match[3]

    return MARKED.sub(fill, page)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.records", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a table differs")
    check, stale = parser.parse_args().check, []
    for name in PAGES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            stale.append(name)
            if not check:
                path.write_text(new, encoding="utf-8")
    print(f"{'differ from their files' if check else 'written'}: {', '.join(stale) or 'none'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
