"""What results/ holds, as the tests of the text read it."""

import csv
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
MAIN, TOY = "multi30k-en-de", "toy-en-de"
STUDENT = "marian-enpt"
STUDENT_CURVE = f"{STUDENT}/curves/gradient-step0.25-enc-self"


def read(path: str) -> Any:
    text = (RESULTS / path).read_text(encoding="utf-8")
    return json.loads(text) if path.endswith(".json") else list(csv.DictReader(text.splitlines()))


def runs(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """(lambda or number of heads, system) -> row of result.json."""
    paths = {
        re.search(r"-l0(?:-target)?-([\d.]+)-s", path.name)[1]: path
        for path in sorted((RESULTS / folder).glob("*-l0-*.json"))
    }
    return {
        (lam, row["system"]): row
        for lam, path in paths.items()
        for row in read(f"{folder}/{path.name}")["rows"]
    }


def loss(row: dict[str, Any]) -> float:
    """The validation loss of the weights that were kept, in nats."""
    return (
        float(row["stage"]["losses"][row["stage"]["best_epoch"]]) + 1e-9
    )  # recorded with five digits: a half is rounded up


def below_one(number: float, digits: int = 2) -> str:
    """.07 for 0.07."""
    return f"{number:.{digits}f}".removeprefix("0")


def size(difference: float, digits: int) -> str:
    return f"{abs(difference):.{digits}f}"


def compared_points(folder: str) -> dict[tuple[str, int], dict[str, float]]:
    """(row of a score or base, open heads) -> its scores, of the points without training."""
    names = {
        "bleu": "bleu",
        "chrf": "chrf",
        "difference": "difference",
        "low": "difference_low",
        "high": "difference_high",
    }
    rows = [row for row in read(f"{folder}/compare.csv") if row["epochs"] == "0"]
    return {
        (row["system"], int(row["heads_open"])): {short: float(row[name]) for short, name in names.items()}
        for row in rows
    }


def lead_of(made: dict[str, Any], heads: int) -> tuple[float, float]:
    """The 95% of obs-stream minus greedy-stream, which must be the two best, as the summary of the comparison
    gives it."""
    (line,) = (line for line in made["summary"] if line.startswith(f"At {heads} heads without training"))
    first, second = re.findall(r"(\S+) (?:has the highest score|with [\d.]+ BLEU: a)", line)
    found = re.search(r"a (?:lead|tie), [+-][\d.]+ \(([+-][\d.]+) to ([+-][\d.]+)\)", line)
    assert {first, second} == {"obs-stream", "greedy-stream"}
    assert found is not None
    low, high = float(found[1]), float(found[2])
    return (low, high) if first == "obs-stream" else (-high, -low)
