"""The bases of docs/findings.md: what results/ holds of each, which claims it is asked, and the command for
what was not run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bert_sst2 import encoder_claims
from benchmarks.claims import CLAIMS, Claim, Findings
from benchmarks.claims_of_gates import GATE_CLAIMS
from benchmarks.michel import read_tables
from benchmarks.records import Point, read_comparison, read_results, read_roles
from headgates.workbench.folder import RunFolder

CHANCE = 50.0  # % of SST-2's sentences right by guessing
ONE_TAIL = "recorded before p was two-sided: its p counts one tail, about half of the two-sided one"
FILES: dict[str, tuple[str, ...]] = {
    "C1": ("one",),
    "C2": ("one",),
    "C3": ("all-but-one",),
    "C5": ("gradient",),
}
FILES |= {
    "C8": ("dynamics",),
    "C6": ("gradient", "ablation"),
    "C7": ("gradient-enc-self", "gradient-dec-self", "gradient-cross"),
}
OF_POINTS = ("C11", "C13", "C17", "C18")
OF_ROLES = {
    "C14": ("correlations.csv", "lrp.json", "confidence.json"),
    "C15": ("survival-test.csv", "lrp.json"),
    "C16": ("syntax-best.csv", "syntax.json", "rare.json"),
}


def all_claims() -> dict[str, Claim]:
    """C1 to C18, on a translation model."""
    speed = encoder_claims(CHANCE)[-1]
    return {claim.number: claim for claim in (*CLAIMS, speed, *GATE_CLAIMS)}


@dataclass
class Base:
    """A base, with the claims that are asked of it. missing: claim -> what to type for its record, as
    Markdown; records: claim -> the files behind it, whose JSON holds their commands; notes: claim -> what
    must be known to read its numbers."""

    title: str
    about: str
    findings: Findings
    claims: Mapping[str, Claim]
    missing: Mapping[str, str] = field(default_factory=dict)
    records: dict[str, list[Path]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def asked(numbers: Iterable[str]) -> dict[str, Claim]:
    claims = all_claims()
    return {number: claims[number] for number in numbers}


def numbered(first: int, last: int) -> list[str]:
    return [f"C{number}" for number in range(first, last + 1)]


def table_records(findings: Findings, folder: Path) -> dict[str, list[Path]]:
    """Of C1 to C8, what made the tables of prune.py."""
    files = findings.files.items()
    found = {
        number: [folder / file for label, file in files if label in labels]
        for number, labels in FILES.items()
    }
    return found | {"C4": [folder / file for label, file in files if label.startswith("transfer-")]}


def add_points(base: Base, results: Sequence[Path], comparison: Path) -> None:
    """The points of copies of result.json and of a comparison."""
    compared, leads = read_comparison(comparison)
    own, scratch = read_results(results)
    base.findings.points, base.findings.leads = [*own, *compared], leads
    base.findings.scratch = [*base.findings.scratch, *scratch]
    trained = [comparison / "compare.json"] if any(point.epochs for point in compared) else []
    gated = sorted(path for path in results if "-none-" not in path.stem)
    base.records |= {number: [*trained, *gated] for number in OF_POINTS}


def add_scratch(base: Base, results: Sequence[Path]) -> None:
    _, scratch = read_results(results)
    base.findings.scratch = [*base.findings.scratch, *scratch]
    base.records["C12"] = sorted(results)


def add_roles(base: Base, folder: Path) -> None:
    base.findings.roles = read_roles(folder)
    base.records |= {
        number: [folder / name for name in names if (folder / name).is_file()]
        for number, names in OF_ROLES.items()
    }


def add_speed(base: Base, report: Path) -> None:
    if report.is_file():
        base.findings.speed = RunFolder(report.parent).read_json(report.name)
        base.records["C9"] = [report]


def multi30k(results: Path) -> Base:
    name = "multi30k-en-de-none-s1"
    folder, earlier = results / f"michel/{name}", results / f"michel-one-tail/{name}"
    base = Base(
        "Multi30k en-de",
        "2.4 million parameters, 72 heads, converged; 1,000 test sentences",
        read_tables(RunFolder(folder)),
        asked(numbered(1, 18)),
        missing={
            "C10": f"`python compare.py runs/{name} --methods l0-target,greedy --heads 12,5,2 --kinds enc-self --finetune 3 --fit FILE"
            " --name encoder-only`, with `freeze_decoder: true` in FILE",
            "C12": f"`python fit.py --config configs/multi30k.yaml --base runs/{name} --gate l0 --heads 18 --from-scratch true`",
            "C18": f"`python compare.py runs/{name} --methods l0-target,subset,greedy --heads 36,18,9 --finetune 3 --seeds 3"
            " --name multi30k-en-de-trained`",
        },
    )
    base.records = table_records(base.findings, folder)
    if not base.findings.dynamics:
        found = read_tables(RunFolder(earlier))
        base.findings.dynamics, base.records["C8"] = found.dynamics, table_records(found, earlier)["C8"]
        epochs = ",".join(map(str, dict.fromkeys(row["epoch"] for row in found.dynamics)))
        base.notes["C8"] = (
            f"on an earlier base, whose configuration asked for what `--dynamics {epochs}` asks for today"
        )
    add_speed(base, results / "speed-multi30k-en-de/report.json")
    base.notes["C9"] = "a gated model of an earlier base, on a CPU"
    base.findings.encoder_only, _ = read_comparison(results / "compare-encoder-only")
    base.records["C10"] = [results / "compare-encoder-only/compare.json"]
    add_points(
        base, list((results / "multi30k-en-de").glob("*.json")), results / "compare-multi30k-en-de-trained"
    )
    add_scratch(base, list((results / "from-scratch").glob("multi30k-*.json")))
    add_roles(base, results / "roles-multi30k-en-de/base")
    return base


def tatoeba(results: Path) -> Base:
    name = "tatoeba_en_fr-en-fr-none-s1"
    folder = results / f"michel-one-tail/{name}"
    compared = f"`python compare.py runs/{name} --methods l0-target,subset,greedy,obs --close zero,stream --heads 36,18,9 --finetune 0,3`"
    base = Base(
        "Tatoeba en-fr",
        "the second pair, of the same size, not converged after 41 minutes; C11 to C13, C17 and C18 on a later base",
        read_tables(RunFolder(folder)),
        asked([*numbered(1, 8), *numbered(11, 13), "C17", "C18"]),
        missing=dict.fromkeys(OF_POINTS, compared)
        | {
            "C8": "`python fit.py --config configs/multi30k.yaml --data tatoeba_en_fr --tgt fr --gate none --dynamics 1,2,3,5,8,11,15`",
            "C12": f"`python fit.py --config configs/multi30k.yaml --base runs/{name} --gate l0 --heads 18 --from-scratch true`",
        },
        notes=dict.fromkeys(("C1", "C2", "C3", "C5"), ONE_TAIL),
    )
    base.records = table_records(base.findings, folder)
    add_points(base, [], results / "compare-tatoeba-en-fr")
    add_scratch(base, list((results / "from-scratch").glob("tatoeba*.json")))
    return base


def sst2(results: Path) -> Base:
    name = "sst2_sentences-all-MiniLM-L6-v2"
    folder = results / f"bert-sst2/{name}-none-s1"
    claims = {claim.number: claim for claim in encoder_claims(CHANCE)} | asked(["C17"])
    base = Base(
        "MiniLM on SST-2",
        "an encoder fine-tuned on sentences, 72 heads; the paper's BERT",
        read_tables(RunFolder(folder), "accuracy", "accuracy"),
        claims,
    )
    base.records = table_records(base.findings, folder)
    add_speed(base, folder / "speed/report.json")
    add_points(base, list((results / "bert-sst2").glob(f"{name}-l0-*/result.json")), results / "compare-sst2")
    return base


def student(results: Path) -> Base:
    base = Base(
        "en-pt student",
        "a production student of Marian, 48 encoder and 16 cross heads; nothing was trained; 500 test sentences",
        read_tables(RunFolder(results / "marian-enpt")),
        asked(["C1", "C2", "C16"]),
    )
    base.records = table_records(base.findings, results / "marian-enpt")
    base.findings.encoder_only = curve_points(base.findings)
    add_roles(base, results / "marian-enpt/roles")
    return base


def curve_points(findings: Findings) -> list[Point]:
    """The steps of the encoder's own curve, whose models were not trained."""
    rows = findings.curves.get("gradient-enc-self", [])
    return [
        Point(
            method="greedy",
            learned=False,
            epochs=0,
            heads=row["heads_open"],
            total=row["heads_total"],
            value=row["test_bleu"],
            difference=row["test_bleu_difference"],
            interval=(row["test_bleu_difference_low"], row["test_bleu_difference_high"]),
            by_kind={"enc-self": row["enc-self"]},
            kinds={"enc-self": rows[0]["enc-self"]},
        )
        for row in rows[1:]
    ]


def toy(results: Path) -> Base:
    name = "toy-en-de-none-s1"
    compared = (
        f"`python compare.py runs/{name} --methods l0-target,subset,greedy --heads 36,24,12 --finetune 0,3`"
    )
    base = Base(
        "toy en-de",
        "the built-in language pair of `make fit`, 48 heads; no real text, and the second pair where Tatoeba has no record",
        Findings(name),
        asked(["C11", *numbered(13, 18)]),
        missing={
            "C15": f"`python analyze.py runs/{name} --siblings`, beside gated runs on it",
            "C18": compared,
        },
    )
    add_points(base, list((results / "toy-en-de").glob("*.json")), results / "compare-toy-en-de")
    add_roles(base, results / "roles-toy-en-de")
    base.notes |= dict.fromkeys(OF_ROLES, "on an earlier toy base")
    return base


def read_bases(results: Path) -> list[Base]:
    """All bases, the reference first. Raises ValueError where a record is broken."""
    return [read(results) for read in (multi30k, tatoeba, sst2, student, toy)]
