"""Tables of ablations, each difference with an interval and a p-value.   Michel et al. 2019, section 3 (tables 1, 2 and 5).

    one           every head removed alone: ablation/one.{csv,json,npz}
    all-but-one   every layer reduced to its best single head: ablation/all-but-one.{csv,json}, the statistics in two .npz

A difference is the ablated model's BLEU less the whole model's: negative where the head matters. The .csv holds the rows, the .json what
they were made from and their summary, the .npz each sentence's statistics (pruning/ablated_stats.py).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gates import HeadMap, HeadSite
from gates.headmap import KINDS, check_kinds
from models.progress import Report
from models.translator import Translator
from pruning.ablated_stats import Measured, Text, identity, measure
from pruning.significance import SEED, Scored, compare_many, holm
from runfolder.folder import RunFolder
from runfolder.table import Row, read_table, write_table

LEVEL = 0.01  # of significance, the paper's


class Pruned(Protocol):
    """What the tables need of `pruning.subject.Subject`: the dense model, its base run's folder, its texts, and the facts of this run."""

    @property
    def folder(self) -> RunFolder: ...
    @property
    def translator(self) -> Translator: ...
    @property
    def valid(self) -> tuple[list[str], list[str]]: ...
    @property
    def test(self) -> tuple[list[str], list[str]]: ...
    @property
    def facts(self) -> dict[str, Any]: ...


def least_resamples(tests: int) -> int:
    """So many that the smallest possible p-value, Holm-adjusted for all tests, stays below LEVEL."""
    return max(10_000, 200 * tests)


def chosen_sites(translator: Translator, kinds: Sequence[str] | None) -> list[HeadSite]:
    """The model's sites of these kinds. Raises ValueError if it has none."""
    sites = [site for site in sorted(translator.sites) if site.kind in check_kinds(kinds)]
    if not sites:
        raise ValueError(
            f"the model has no heads of kind {', '.join(check_kinds(kinds))}; it has {', '.join(site.name for site in translator.sites)}"
        )
    return sites


def table_name(table: str, kinds: Sequence[str] | None, beam: int) -> str:
    """The table's file name: what differs from all kinds and greedy search is part of it."""
    chosen = check_kinds(kinds)
    return "-".join([table, *(chosen if chosen != KINDS else ()), *([f"beam{beam}"] if beam > 1 else ())])


# ---------------------------------------------------------------- one head


def ablate_one(
    subject: Pruned,
    *,
    kinds: Sequence[str] | None,
    resamples: int | None = None,
    also: tuple[str, Text] | None = None,
    fresh: bool = False,
    report: Report = print,
) -> list[Row]:
    """Every head of the kinds removed alone: a row a head, in the order of sites and heads, and the files `ablation/one`.

    On the test set; or on another, `also`: its name and lines, whose files have the name in theirs. resamples: of the bootstrap, by default
    `least_resamples` of the heads. A finished table of the same settings is read, an interrupted one goes on after its last whole kind.
    Raises ValueError where a table of that name was made from something else, unless `fresh`."""
    translator = subject.translator
    sites = chosen_sites(translator, kinds)
    ablations = [only(site, head, closed=True) for site in sites for head in range(site.heads)]
    resamples = resamples or least_resamples(len(ablations))
    name = "ablation/" + table_name("one" if also is None else f"one-on-{also[0]}", kinds, translator.search.beam)
    text = subject.test if also is None else also[1]

    def make() -> tuple[list[Row], dict[str, Any]]:
        found = measure(translator, text, ablations, folder=subject.folder, name=name, fresh=fresh, report=report)
        rows = one_rows(sites, found, resamples)
        summary = {
            "base": {"bleu": found.base.bleu, "chrf": found.base.chrf},
            "signatures": found.base.signatures,
            "changed_share": float(np.mean(found.changed_share)),
            "significant": significant(rows),
        }
        return rows, summary

    made_of = {
        **identity(translator, text, ablations),
        "kinds": list(check_kinds(kinds)),
        "sentences": len(text[0]),
        "split": "test" if also is None else also[0],
        "resamples": resamples,
        "bootstrap_seed": SEED,
    }
    return kept_table(subject, name, made_of, make, fresh=fresh, report=report)


def only(site: HeadSite, head: int, *, closed: bool) -> HeadMap:
    """The mask that closes this head of the site alone, or all its others."""
    row = torch.full((site.heads,), not closed)
    row[head] = closed
    return HeadMap({site: row})


def one_rows(sites: Sequence[HeadSite], found: Measured, resamples: int) -> list[Row]:
    heads = [(site, head) for site in sites for head in range(site.heads)]
    compared = compare_many(found.systems, found.base, resamples=resamples)
    adjusted = holm([each["bleu_p_value"] for each in compared])
    return [
        {
            "site": site.name,
            "kind": site.kind,
            "layer": site.layer,
            "head": head,
            **scores(system, found.base, each),
            "p_value_holm": p_holm,
            "changed_share": share,
        }
        for (site, head), system, each, p_holm, share in zip(heads, found.systems, compared, adjusted, found.changed_share, strict=True)
    ]


def scores(system: Scored, base: Scored, compared: dict[str, Any]) -> Row:
    """BLEU and chrF of an ablation beside the whole model's; `compared`: of `compare_many`."""
    low, high = compared["bleu_difference_ci95"]
    return {
        "bleu": system.bleu,
        "bleu_difference": compared["bleu_difference"],
        "difference_low": low,
        "difference_high": high,
        "chrf": system.chrf,
        "chrf_difference": system.chrf - base.chrf,
        "p_value": compared["bleu_p_value"],
    }


def significant(rows: Sequence[Row]) -> dict[str, Any]:
    """How many rows differ significantly at LEVEL, and how many of them are better without: raw and Holm-adjusted, in all and by kind."""
    out: dict[str, Any] = {"level": LEVEL}
    for label, column in (("raw", "p_value"), ("holm", "p_value_holm")):
        counts = {}
        for kind in ("all", *dict.fromkeys(row["kind"] for row in rows)):
            mine = [row for row in rows if kind in ("all", row["kind"])]
            passed = [row for row in mine if row[column] < LEVEL]
            improve = sum(row["bleu_difference"] > 0 for row in passed)
            counts[kind] = {"tested": len(mine), "significant": len(passed), "improve": improve}
        out[label] = counts
    return out


# ---------------------------------------------------------------- all heads of a layer but one


def ablate_all_but_one(
    subject: Pruned, *, kinds: Sequence[str] | None, resamples: int | None = None, fresh: bool = False, report: Report = print
) -> list[Row]:
    """Every layer of the kinds reduced to its best head, the other layers whole: a row a layer, and the files `ablation/all-but-one`.

    The head is the one with the highest validation BLEU; what it makes of the test set is reported. The columns `on_test_...` hold the
    head with the highest test BLEU, as the paper's table 2 does: selection on test, which flatters. resamples, files and errors are as
    for `ablate_one`."""
    translator = subject.translator
    sites = chosen_sites(translator, kinds)
    ablations = [only(site, head, closed=False) for site in sites for head in range(site.heads)]
    resamples = resamples or least_resamples(2 * len(sites))
    name = "ablation/" + table_name("all-but-one", kinds, translator.search.beam)
    texts = {"valid": subject.valid, "test": subject.test}

    def make() -> tuple[list[Row], dict[str, Any]]:
        found = {
            split: measure(translator, text, ablations, folder=subject.folder, name=f"{name}-{split}", fresh=fresh, report=report)
            for split, text in texts.items()
        }
        rows = all_but_one_rows(sites, found["valid"], found["test"], resamples)
        summary = {
            "on_test": "the columns on_test_...: the head with the highest test BLEU, which is selection on test (the paper's table 2)",
            "base": {split: {"bleu": each.base.bleu, "chrf": each.base.chrf} for split, each in found.items()},
            "signatures": found["test"].base.signatures,
            "changed_share": {split: float(np.mean(each.changed_share)) for split, each in found.items()},
            "significant": significant(rows),
            "bleu_of_every_head": {
                split: HeadMap(by_site(sites, [system.bleu for system in each.systems])).to_json() for split, each in found.items()
            },
        }
        return rows, summary

    both = {split: identity(translator, text, ablations) for split, text in texts.items()}
    made_of = {
        **both["test"],
        "valid_text": both["valid"]["text"],
        "kinds": list(check_kinds(kinds)),
        "sentences": {split: len(text[0]) for split, text in texts.items()},
        "resamples": resamples,
        "bootstrap_seed": SEED,
    }
    return kept_table(subject, name, made_of, make, fresh=fresh, report=report)


def by_site(sites: Sequence[HeadSite], values: Sequence[float]) -> dict[HeadSite, list[float]]:
    """Values of all heads, site after site, as a list for each site."""
    out, begin = {}, 0
    for site in sites:
        out[site] = list(values[begin : begin + site.heads])
        begin += site.heads
    return out


def best_heads(sites: Sequence[HeadSite], found: Measured) -> NDArray[np.int64]:
    """The head of each site that alone leaves the highest BLEU; the first of equals."""
    return np.array([np.argmax(bleu) for bleu in by_site(sites, [system.bleu for system in found.systems]).values()])


def all_but_one_rows(sites: Sequence[HeadSite], valid: Measured, test: Measured, resamples: int) -> list[Row]:
    first = np.cumsum([0, *(site.heads for site in sites)])[:-1]  # number of each site's first head
    best_on_valid, best_on_test = best_heads(sites, valid), best_heads(sites, test)
    on_valid, on_test = (first + best_on_valid).tolist(), (first + best_on_test).tolist()  # numbers of the ablations
    compared = compare_many([test.systems[number] for number in on_valid + on_test], test.base, resamples=resamples)
    adjusted = holm([each["bleu_p_value"] for each in compared[: len(sites)]])
    rows = []
    for i, site in enumerate(sites):
        flattered = compared[len(sites) + i]
        rows.append(
            {
                "site": site.name,
                "kind": site.kind,
                "layer": site.layer,
                "head": int(best_on_valid[i]),
                "valid_bleu": valid.systems[on_valid[i]].bleu,
                "valid_bleu_difference": valid.systems[on_valid[i]].bleu - valid.base.bleu,
                **scores(test.systems[on_valid[i]], test.base, compared[i]),
                "p_value_holm": adjusted[i],
                "on_test_head": int(best_on_test[i]),
                "on_test_bleu": test.systems[on_test[i]].bleu,
                "on_test_bleu_difference": flattered["bleu_difference"],
                "on_test_p_value": flattered["bleu_p_value"],
            }
        )
    return rows


# ---------------------------------------------------------------- tables on disk


def kept_table(
    subject: Pruned,
    name: str,
    made_of: dict[str, Any],
    make: Callable[[], tuple[list[Row], dict[str, Any]]],
    *,
    fresh: bool,
    report: Report,
) -> list[Row]:
    """The rows of `name`.csv if `name`.json says that they were made of the same; else what `make` gives (rows, summary), written to both.

    Raises ValueError if they were made of something else, unless `fresh`."""
    folder = subject.folder
    if (folder / f"{name}.json").is_file() and not fresh:
        theirs = folder.read_json(f"{name}.json").get("made_of", {})
        if other := [key for key in made_of if theirs.get(key) != made_of[key]]:
            raise ValueError(f"{folder / name}.csv is of other {' and '.join(other)} than this command; --fresh makes it anew")
        report(f"{name}: made already with the same settings (--fresh repeats it)")
        return read_table(folder, f"{name}.csv")
    (folder / f"{name}.json").unlink(missing_ok=True)  # it vouches for the .csv, so it goes first and comes last
    rows, summary = make()
    write_table(folder, f"{name}.csv", rows)
    folder.write_json(f"{name}.json", {"rows": len(rows), **summary, "made_of": made_of, **subject.facts})
    return rows
