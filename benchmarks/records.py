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
from pathlib import Path
from typing import Any

from headgates.workbench.table import markdown_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
VALUES = "compare-multi30k-en-de-values"
PAGES = ("README.md", "results/README.md", "docs/measured.md")
MARKED = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Cells = list[list[str]]


def read_rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def difference(row: dict[str, str], prefix: str = "") -> str:
    """-0.60 (-1.49 to +0.25), or `reference` for the row that the others are compared with."""
    names = [f"{prefix}difference{end}" for end in ("", "_low", "_high")]
    value, low, high = (float(row[name]) for name in names)
    return "reference" if value == low == high == 0 else f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def systems(name: str, wanted: Sequence[str]) -> Cells:
    """The wanted systems of a table of fit.py; of several lambdas that keep the same heads, the first."""
    found = []
    for row in read_rows(name):
        idle = row["system"].startswith("importance") and row["heads_open"] == row["heads_total"]
        if row["system"] in wanted and not idle:
            kinds = [row[kind] for kind in ("enc-self", "dec-self", "cross")]
            heads = f"{row['heads_open']}/{row['heads_total']}"
            scores = [f"{float(row[metric]):.2f}" for metric in ("bleu", "chrf")]
            found.append([row["system"], row["lambda"], heads, *kinds, *scores, difference(row)])
    return found


def points(folder: str, trained: bool) -> dict[tuple[str, int], list[dict[str, str]]]:
    """(method, open heads) -> the rows of a comparison, one for each seed."""
    found = defaultdict(list)
    for row in read_rows(f"{folder}/compare.csv"):
        if (row["epochs"] != "0") == trained and not row["method"].startswith("base"):
            found[
                ":".join(filter(None, (row["method"], row["reconstruct"]))), round(float(row["heads_asked"]))
            ].append(row)
    return found


def trained(folder: str) -> Cells:
    """method, then for each number of heads BLEU (lowest to highest seed) and chrF."""
    found = points(folder, trained=True)
    counts = sorted({heads for _, heads in found}, reverse=True)
    cells = []
    for method in dict.fromkeys(method for method, _ in found):
        line = [method]
        for heads in counts:
            rows = found[method, heads]
            bleu = [float(row["bleu"]) for row in rows]
            seeds = f" ({min(bleu):.2f} to {max(bleu):.2f})" if len(rows) > 1 else ""
            line += [f"{mean(rows, 'bleu'):.2f}{seeds}", f"{mean(rows, 'chrf'):.2f}"]
        cells.append(line)
    return cells


def untrained(folder: str) -> Cells:
    """order, then BLEU for each number of heads and refit."""
    found = points(folder, trained=False)
    orders = dict.fromkeys(method for method, _ in found if (f"{method}:out+ffn", 36) in found)
    refits = ("", ":out+ffn", ":out+ffn+v")
    return [
        [order]
        + [
            f"{float(found[order + refit, heads][0]['bleu']):.2f}"
            for heads in (36, 18, 9)
            for refit in refits
        ]
        for order in orders
    ]


def first() -> Cells:
    """What is done to the model, then BLEU for each number of heads: README's first table."""
    closed, refitted = points("compare-multi30k-en-de", trained=False), points(VALUES, trained=True)
    wanted = [
        ("close heads by importance (Michel et al.)", closed, "importance"),
        ("the same, and refit the weights that stay", closed, "importance:out+ffn+v"),
        ("the order of optimal brain surgery, refitted", closed, "obs:out+ffn+v"),
        ("importance, refitted, then three epochs", refitted, "importance:out+ffn+v"),
        ("learned gates, three epochs", refitted, "l0-target"),
    ]
    return [
        [text, *(f"{mean(found[method, heads], 'bleu'):.2f}" for heads in (36, 18, 9))]
        for text, found, method in wanted
    ]


def mean(rows: Sequence[dict[str, str]], metric: str) -> float:
    return sum(float(row[metric]) for row in rows) / len(rows)


def encoder() -> Cells:
    found = points("compare-encoder-only", trained=True)
    counts = sorted({heads for _, heads in found}, reverse=True)
    return [
        [method]
        + [
            cell
            for heads in counts
            for row in found[method, heads]
            for cell in (difference(row), f"{float(row['chrf']):.2f}")
        ]
        for method in dict.fromkeys(method for method, _ in found)
    ]


def student() -> Cells:
    rows = read_rows("marian-enpt/curves/importance-step0.25-enc-self.csv")[1:]
    return [
        [
            f"{row['heads_closed']} of 48",
            f"{float(row['test_bleu']):.2f}",
            difference(row, "test_bleu_"),
            f"{float(row['test_bleu_p_value']):.3f}",
        ]
        for row in rows
        if int(row["heads_closed"]) < 48
    ]


def lines_of(name: str) -> list[dict[str, Any]]:
    text = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def measured() -> Cells:
    """question, against, answer, file of each benchmark: its newest line, for costs each pass's newest."""
    newest: dict[str, Any] = {}
    for record in lines_of("costs"):
        newest |= {each["what"]: each["ratio"] for each in record["measured"]}
    rows = [
        (text, "a plain pass", "; ".join(f"{name}: {spread(ratio)}" for name, ratio in newest[what].items()))
        for what, text in COSTS.items()
    ]
    answers = [
        [question, against, answer(lines_of(name)[-1]), f"[{name}](../results/{name}.jsonl)"]
        for name, question, against, answer in QUESTIONS
    ]
    return [*answers, *([*row, "[costs](../results/costs.jsonl)"] for row in rows)]


def spread(ratio: dict[str, Any]) -> str:
    return f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"


def each(rows: Sequence[dict[str, Any]], key: str, *path: str) -> str:
    """The ratio below `path` in each row, after the row's name."""
    texts = []
    for row in rows:
        ratio: Any = row
        for name in path:
            ratio = ratio[name]
        texts.append(f"{row[key]}: {spread(ratio)}")
    return "; ".join(texts)


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
     lambda record: each(record["measurements"], "d_model", "ratio")),
    ("decoding_peers", "search in fp32 on one thread: times as fast, medians of 12 settings",
     "Hugging Face's generate, CTranslate2, CTranslate2 in int8", decoding),
    ("memory", "training in bf16 on a CPU: CPU time of bounded memory", "memory as torch leaves it",
     lambda record: f"{spread(record['ratio'])}; peak "
     + " against ".join(f"{record['measured'][each]['peak_mb']:,} MB" for each in MEMORY)),
    ("big_corpus", "steps on a corpus of 10 million pairs: times as long", "text in memory",
     lambda record: f"{spread(record['throughput']['slower'])}; "
     f"{record['private_mb_above_model']['second']:.0f} MB above the model"),
    ("fuzz", "damaged and hostile files that our readers are given", "one clear error each",
     lambda record: "; ".join(f"{name}: {count:,}" for name, count in record["all"].items())),
]  # fmt: skip

HEADS3 = [f"{count} of 72 {what}".strip() for count in (36, 18, 9) for what in ("", "chrF")]
SYSTEMS = ["system", "λ", "heads", "enc-self", "dec-self", "cross", "BLEU", "chrF", "BLEU difference, 95%"]
MADE = ("base", "base-continued", "l0", "importance", "importance:trained")
TOY = ("base", "base-continued", "l0-target", "importance", "importance:out+ffn+v:trained")
TABLES: dict[str, tuple[list[str], Callable[[], Cells], int]] = {
    "first": (["what you do", "36 of 72 heads", "18", "9"], first, 1),
    "toy": (SYSTEMS, lambda: systems("toy-en-de.csv", TOY), 1),
    "multi30k": (SYSTEMS, lambda: systems("multi30k-en-de.csv", MADE), 1),
    "untrained": (
        [
            "order",
            *(f"{count}: {refit}" for count in (36, 18, 9) for refit in ("zero", "out+ffn", "out+ffn+v")),
        ],
        lambda: untrained("compare-multi30k-en-de"),
        1,
    ),
    "trained": (["method", *HEADS3], lambda: trained("compare-multi30k-en-de-trained"), 1),
    "trained-values": (["method", *HEADS3], lambda: trained(VALUES), 1),
    "trained-tatoeba": (["method", *HEADS3], lambda: trained("compare-tatoeba-en-fr"), 1),
    "encoder": (
        ["method", *(f"{count} of 24 {what}".strip() for count in (12, 5, 2) for what in ("", "chrF"))],
        encoder,
        1,
    ),
    "student": (["encoder heads closed", "test BLEU", "difference, 95%", "p"], student, 1),
    "measured": (["question", "against", "median (lowest to highest)", "file"], measured, 4),
}


def filled(page: str) -> str:
    """A page's text with its tables made anew. Raises ValueError for a table that TABLES does not name."""

    def fill(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise ValueError(f"no table {match[2]!r}; add it to TABLES in benchmarks/records.py")
        head, make, left = TABLES[match[2]]
        return match[1] + "\n".join(markdown_table(head, make(), left)) + match[3]

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
