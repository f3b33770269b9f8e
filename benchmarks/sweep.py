"""Several finished runs on one base, read as one comparison: the same test set, references and search, a run for each lambda."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runfolder.folder import RunFolder

GATED = ("l0-soft", "l0", "greedy", "greedy-finetuned")
WITHIN = 1.0  # BLEU of the reference that a chosen lambda may lose
_ABSOLUTE = re.compile(r"(?<![\w.:/])(?:/|[A-Za-z]:\\)\w")

Heads = dict[tuple[str, int], list[bool]]  # (kind, layer) -> open, head by head


@dataclass
class Sweep:
    """rows: (lambda or None for a base, row), in the order of the table."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # run name -> its result.json
    bases: dict[str, dict[str, Any]] = field(default_factory=dict)  # base, base-continued -> row
    gated: dict[float, dict[str, dict[str, Any]]] = field(default_factory=dict)  # lambda -> system -> row
    heads: dict[float, Heads] = field(default_factory=dict)
    made_by: dict[float, str] = field(default_factory=dict)  # lambda -> run name

    @property
    def rows(self) -> list[tuple[float | None, dict[str, Any]]]:
        plain: list[tuple[float | None, dict[str, Any]]] = [(None, row) for row in self.bases.values()]
        return plain + [(lam, rows[system]) for lam, rows in self.gated.items() for system in GATED if system in rows]

    @property
    def l0(self) -> dict[float, dict[str, Any]]:
        """lambda -> the binarised model's row, smallest lambda first."""
        return {lam: rows["l0"] for lam, rows in self.gated.items()}

    @property
    def reference(self) -> str:
        return str(next(iter(self.l0.values()))["reference"])

    def of(self, system: str) -> list[dict[str, Any]]:
        """A gated system's rows, fewest open heads first."""
        return sorted((rows[system] for rows in self.gated.values() if system in rows), key=lambda row: row["heads_open"])

    def chosen(self) -> float:
        """The lambda of fewest open heads whose l0 lies within 1 BLEU of the reference; if none does, of the best l0."""
        near = [lam for lam, row in self.l0.items() if row["bleu_difference"] >= -WITHIN]
        if near:
            return min(near, key=lambda lam: self.l0[lam]["heads_open"])
        return max(self.l0, key=lambda lam: self.l0[lam]["bleu"])


def read_sweep(paths: Sequence[Path]) -> Sweep:
    """The runs as one. Raises ValueError at a run that is not finished, a lambda that comes twice, or runs that cannot be compared."""
    sweep = Sweep()
    gated: dict[float, tuple[RunFolder, dict[str, dict[str, Any]]]] = {}
    plain: list[dict[str, Any]] = []
    for path in paths:
        folder = RunFolder.open(path)
        result = folder.read_json("result.json")
        if not result.get("finished"):
            raise ValueError(f"{path} is not finished; the command in its command.txt with --resume continues it")
        sweep.results[folder.path.resolve().name] = result
        config = folder.config()
        if config.get("gate") != "l0":
            plain += result["rows"]
            continue
        lam = float(config["lambda"])
        if lam in gated:
            raise ValueError(f"{gated[lam][0].path} and {path} both have lambda {lam:g}; a picture shows one run of each")
        gated[lam] = (folder, {row["system"]: row for row in result["rows"]})
    if not gated:
        raise ValueError("none of the runs has gates; name at least one run of fit.py --gate l0")
    for lam, (folder, rows) in sorted(gated.items()):
        sweep.heads[lam] = open_heads(folder)
        sweep.made_by[lam] = folder.path.resolve().name
        sweep.gated[lam] = {system: rows[system] for system in GATED if system in rows}
        for system in ("base", "base-continued"):
            if system in rows:
                sweep.bases.setdefault(system, rows[system])
    check_comparable([*plain, *(row for _, rows in gated.values() for row in rows.values())], sweep)
    return sweep


def check_comparable(rows: Iterable[dict[str, Any]], sweep: Sweep) -> None:
    """Raises ValueError unless all rows were made with one search, test set and signature, and those of a base are the same everywhere."""
    first = made_with(next(iter(sweep.bases.values())))
    for row in rows:
        for key, value in made_with(row).items():
            if value != first[key]:
                raise ValueError(f"runs cannot be compared: {key} of {row['system']} is {value}, elsewhere {first[key]}")
        base = sweep.bases.get(row["system"])
        if base is not None and row["bleu"] != base["bleu"]:
            both = f"{row['system']} has BLEU {row['bleu']:.2f} and {base['bleu']:.2f}"
            raise ValueError(f"runs have different bases: {both}; name runs of one base")
    references = {row["reference"] for row in sweep.l0.values()}
    if len(references) > 1:
        raise ValueError(f"runs are compared with different references: {', '.join(sorted(references))}")


def made_with(row: dict[str, Any]) -> dict[str, Any]:
    """What rows must share; how many sentences were translated at once changes no translation."""
    evaluation = row["evaluation"]
    search = {name: value for name, value in evaluation["search"].items() if name != "batch_tokens"}
    return {"evaluation": evaluation | {"search": search}, "bleu_signature": row["bleu_signature"], "heads_total": row["heads_total"]}


def open_heads(folder: RunFolder) -> Heads:
    """Every head of the run's l0 system, open or not; sites without gates are open."""
    model, sites = folder.config()["model"], folder.read_json("gates.json")["sites"]
    layers = {"enc-self": model["encoder_layers"], "dec-self": model["decoder_layers"], "cross": model["decoder_layers"]}
    found: Heads = {}
    for kind, count in layers.items():
        for layer in range(count):
            gates = sites.get(f"{'encoder' if kind == 'enc-self' else 'decoder'}.{layer}.{kind}")
            found[kind, layer] = [bool(gate["open"]) for gate in gates] if gates else [True] * model["heads"]
    return found


def write_copies(sweep: Sweep, folder: Path) -> int:
    """Each run's result.json as <run>.json; returns how many. Raises ValueError at one that names a path of this machine."""
    for name, result in sweep.results.items():
        text = json.dumps(result, indent=1, ensure_ascii=False)
        words = [*shlex.split(result["command"]), result["data"].get("description", "")]
        for word in words:
            if _ABSOLUTE.search(word):
                raise ValueError(f"result.json of {name} names a place on this machine ({word!r}); run it with relative paths")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return len(sweep.results)


def write_table(sweep: Sweep, path: Path, *, title: str) -> None:
    """All rows in Markdown, with signatures and what made each run below."""
    kinds = list(next(iter(sweep.bases.values()))["heads_by_kind"])
    head = ["system", "λ", "open heads", *kinds, "BLEU", "95%", "chrF", f"BLEU against {sweep.reference}", "95%", "p", "parameters"]
    lines = [f"# {title}", "", "| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(cells(lam, row, kinds, sweep.reference)) + " |" for lam, row in sweep.rows]
    first = next(iter(sweep.bases.values()))
    search, sentences = first["evaluation"]["search"], first["evaluation"]["sentences"]
    result = sweep.results[next(iter(sweep.made_by.values()))]
    description = result["data"].get("description", "")
    lines += [
        "",
        f"{description}. {sentences:,} sentences, beam {search['beam']}, length penalty {search['length_penalty']:g}. "
        "Intervals and p-values by paired bootstrap. Parameters are those of the whole model, closed heads included.",
        "",
        f"- BLEU `{first['bleu_signature']}`",
        f"- chrF `{first['chrf_signature']}`",
        "",
        "| run | command | commit | seed | device | threads | precision | versions | date |",
        "|---|---|---|--:|---|--:|---|---|---|",
    ]
    for name, made in sweep.results.items():
        versions = ", ".join(f"{package} {number}" for package, number in made["versions"].items())
        facts = [name, f"`{made['command']}`", made["commit"], made["seed"], made["device"], made["threads"], made["precision"], versions]
        lines.append("| " + " | ".join(str(fact) for fact in [*facts, made["date"]]) + " |")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def cells(lam: float | None, row: dict[str, Any], kinds: Sequence[str], reference: str) -> list[str]:
    low, high = row["bleu_ci95"]
    texts = [row["system"], "" if lam is None else f"{lam:g}", f"{row['heads_open']}/{row['heads_total']}"]
    texts += [str(row["heads_by_kind"][kind]) for kind in kinds]
    texts += [f"{row['bleu']:.2f}", f"{low:.1f} to {high:.1f}", f"{row['chrf']:.2f}"]
    if row["system"] == reference:
        texts += ["reference", "", ""]
    else:
        low, high = row["bleu_difference_ci95"]
        texts += [f"{row['bleu_difference']:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{row['p_value_vs_reference']:.3f}"]
    return [*texts, f"{row['parameters']:,}"]
