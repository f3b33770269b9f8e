"""The claims of Michel et al. 2019 on translation models, C1 to C8, each with the rule by which a run
supports it; claims_of_gates.py has the others.

A rule is two conditions, written before the numbers were seen (except for C8: the early epochs of one run had
been seen). A claim holds if both are met, holds in part if one is, and does not hold here otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.records import Lead, LeadKey, Point, Roles
from headgates.analysis.significance import LEVEL
from headgates.workbench.ablation import significance_counts
from headgates.workbench.table import Row


@dataclass
class Findings:
    """What was recorded of one base, above all the tables that prune.py and fit.py --dynamics wrote to its
    folder. A table is empty if its command was not run."""

    name: str
    metric: str = "bleu"  # that decides, as columns name it
    title: str = "BLEU"
    curves: dict[str, list[Row]] = field(
        default_factory=dict
    )  # gradient, ablation, ...; gradient-cross: that kind alone
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each curve: its fingerprint
    chosen: dict[str, Row] = field(
        default_factory=dict
    )  # of each curve: how far validation lets it go, and what that gives on test
    one: list[Row] = field(default_factory=list)
    all_but_one: list[Row] = field(default_factory=list)
    transfer: dict[str, dict[str, Any]] = field(default_factory=dict)  # test set -> correlations
    dynamics: list[Row] = field(default_factory=list)
    files: dict[str, str] = field(
        default_factory=dict
    )  # of each curve, and one, all-but-one, transfer-..., dynamics: what made it
    speed: Mapping[str, Any] = field(default_factory=dict)  # report.json of the speed report
    points: Sequence[Point] = ()  # with heads closed, learned or by a score
    leads: Mapping[LeadKey, Lead] = field(default_factory=dict)  # of one point over another
    encoder_only: Sequence[Point] = ()  # points whose decoder was frozen
    scratch: Sequence[tuple[Point, Point]] = ()  # learned gates, and the same heads on random weights
    roles: Roles | None = None


class Verdict:
    """Whether a claim holds. conditions: each one's description with its numbers, and whether it is met."""

    def __init__(self, *conditions: tuple[str, bool]):
        self.conditions = conditions

    @property
    def summary(self) -> str:
        met = sum(is_met for _, is_met in self.conditions)
        return "holds" if met == len(self.conditions) else "holds in part" if met else "does not hold here"

    def __str__(self) -> str:
        return f"**{self.summary}**: " + "; ".join(description for description, _ in self.conditions)


@dataclass(frozen=True)
class Claim:
    number: str
    text: str
    paper: str
    rule: str
    judge: Callable[[Findings], Verdict | None]  # None: not run


# shown beside the two-sided p-value, which decides
OTHER_TESTS = {
    "by sacreBLEU's p": "p_sacrebleu",
    "by lost half samples, the authors' test,": "p_half_samples",
}


def at_share(rows: Sequence[Row], share: float, column: str) -> float:
    """The mean over seeds of a column at the step whose closed share is nearest."""
    nearest = min((row["closed_share"] for row in rows), key=lambda value: abs(value - share))
    return float(np.mean([row[column] for row in rows if row["closed_share"] == nearest]))


def few_heads_matter(findings: Findings) -> Verdict | None:
    counts = significance_counts(findings.one, f"{findings.metric}_difference")["raw"]
    if "enc-self" not in counts:
        return None
    encoder, heads = counts["enc-self"], counts["all"]
    known = {test: column for test, column in OTHER_TESTS.items() if column in findings.one[0]}
    others = ", ".join(
        f"{test} {sum(row[column] < LEVEL for row in findings.one)}" for test, column in known.items()
    )
    in_all = f"{heads['significant']} of all {heads['tested']} heads are{f' ({others})' if others else ''}"
    return Verdict(
        (
            f"{encoder['significant']} of {encoder['tested']} encoder heads are significant",
            encoder["significant"] <= encoder["tested"] / 8,
        ),
        (in_all, heads["significant"] <= heads["tested"] / 8),
    )


def some_removals_improve(findings: Findings) -> Verdict | None:
    if not findings.one:
        return None
    counts = significance_counts(findings.one, f"{findings.metric}_difference")
    raw, holm = (counts[adjusted]["all"]["improve"] for adjusted in ("raw", "holm"))
    return Verdict(
        (f"{raw} removals improve {findings.title} at raw p < .01", raw > 0), (f"{holm} after Holm", holm > 0)
    )


def one_head_is_enough(findings: Findings) -> Verdict | None:
    rows = findings.all_but_one
    if not rows:
        return None
    harmless = [row for row in rows if row["p_value"] >= LEVEL or row["bleu_difference"] > 0]
    worst = min(rows, key=lambda row: row["bleu_difference"])
    last = max((row for row in rows if row["kind"] == "cross"), key=lambda row: row["layer"])
    return Verdict(
        (f"{len(harmless)} of {len(rows)} layers lose nothing significant", len(harmless) > len(rows) / 2),
        (
            f"{worst['site']} loses most ({worst['bleu_difference']:+.2f}), last cross {last['bleu_difference']:+.2f}",
            worst is last,
        ),
    )


def domains_agree(findings: Findings) -> Verdict | None:
    if not findings.transfer:
        return None
    values = {name: correlations["all"]["pearson"] for name, correlations in findings.transfer.items()}
    return Verdict(
        *(
            (f"r = {pair[0]:.2f} (p {pair[1]:.1g}) with {name}", pair[0] > 0.5)
            if pair
            else (f"no correlation with {name}", False)
            for name, pair in values.items()
        )
    )


def some_then_sharp(findings: Findings) -> Verdict | None:
    rows = findings.curves.get("gradient")
    if not rows:
        return None
    early, half = at_share(rows, 0.2, "test_bleu_p_value"), at_share(rows, 0.6, "test_bleu")
    whole, loss = at_share(rows, 0.0, "test_bleu"), at_share(rows, 0.2, "test_bleu_difference")
    return Verdict(
        (f"20% closed: {loss:+.2f} BLEU, p {early:.3f}", early >= LEVEL or loss >= 0),
        (f"60% closed: {half:.1f} of {whole:.1f} BLEU", half < whole / 2),
    )


def gradient_as_good_as_ablation(findings: Findings) -> Verdict | None:
    if "gradient" not in findings.curves or "ablation" not in findings.curves:
        return None
    ours, theirs = (
        {
            row["heads_closed"]: row["test_bleu"]
            for row in findings.curves[name]
            if 0 < row["closed_share"] < 1
        }
        for name in ("gradient", "ablation")
    )
    shared = sorted(ours.keys() & theirs.keys())
    gap = float(np.mean([ours[n] - theirs[n] for n in shared]))
    wins = sum(ours[n] >= theirs[n] for n in shared)
    gradient, ablation = (findings.settings.get(name, {}) for name in ("gradient", "ablation"))
    amounts = f"{gradient.get('sentences') or 'all'} training, {ablation.get('valid', {}).get('sentences', 'all')} validation pairs"
    return Verdict(
        (f"gradient less ablation (from {amounts}): {gap:+.2f} BLEU, mean of {len(shared)} steps", gap >= 0),
        (f"gradient is as good or better at {wins} of them", wins >= len(shared) / 2),
    )


def cross_needs_most(findings: Findings) -> Verdict | None:
    kinds = {kind: findings.curves.get(f"gradient-{kind}") for kind in ("enc-self", "dec-self", "cross")}
    if not all(kinds.values()):
        return None
    lost = {kind: at_share(rows, 0.6, "test_bleu_difference") for kind, rows in kinds.items() if rows}
    lost_at_80 = {kind: at_share(rows, 0.8, "test_bleu_difference") for kind, rows in kinds.items() if rows}

    def losses_text(values: Mapping[str, float]) -> str:
        return ", ".join(f"{kind} {value:+.1f}" for kind, value in values.items())

    return Verdict(
        (f"60% of one kind closed: {losses_text(lost)}", lost["cross"] == min(lost.values())),
        (f"80%: {losses_text(lost_at_80)}", lost_at_80["cross"] == min(lost_at_80.values())),
    )


def decided_early(findings: Findings) -> Verdict | None:
    if not findings.dynamics:
        return None
    epochs = sorted({row["epoch"] for row in findings.dynamics})

    def relative(epoch: int) -> tuple[list[float], list[float]]:
        rows = [
            row
            for row in findings.dynamics
            if row["epoch"] == epoch and row["valid_bleu_relative"] is not None
        ]
        return [row["closed_share"] for row in rows], [row["valid_bleu_relative"] for row in rows]

    fits = []
    for epoch in epochs[:2]:
        x, y = relative(epoch)
        fits.append(float(np.corrcoef(x, y)[0, 1] ** 2) if len(x) > 2 else 0.0)
    late = {epoch: dict(zip(*relative(epoch), strict=True)).get(0.4, 0.0) for epoch in epochs if epoch >= 10}
    shown = ", ".join(f"epoch {epoch} {value:.0%}" for epoch, value in late.items())
    first = " and ".join(f"{fit:.2f} in epoch {epoch}" for epoch, fit in zip(epochs[:2], fits, strict=True))
    return Verdict(
        (f"linear fit of loss to share closed: R² {first}", min(fits) >= 0.9),
        (
            f"BLEU kept with 40% closed: {shown or 'no epoch from 10 on'}",
            bool(late) and min(late.values()) >= 0.85,
        ),
    )


CLAIMS = [
    Claim(
        "C1",
        "removing one head alone rarely matters",
        "8 of 96 encoder heads significant at p < .01",
        "at most one head in eight is significant (raw p < .01), of the encoder's and of all",
        few_heads_matter,
    ),
    Claim(
        "C2",
        "some single removals improve BLEU",
        "half of those eight",
        "at least one head is better removed, raw and after Holm",
        some_removals_improve,
    ),
    Claim(
        "C3",
        "most layers work with one head, the last cross layer does not",
        "-13.56 BLEU in the last cross layer, -1.55 at most elsewhere",
        "over half of the layers lose nothing significant (raw p >= .01) with their best head alone, and the last cross layer loses most",
        one_head_is_enough,
    ),
    Claim(
        "C4",
        "heads that matter in one domain matter in another",
        "r = .56 (newstest2013, MTNT)",
        "r > .5 with each set",
        domains_agree,
    ),
    Claim(
        "C5",
        "some 20% of the heads go without noticeable loss, then quality falls sharply",
        "up to 20% on WMT, sharp fall at about 60%",
        "20% closed lose nothing significant (p >= .01), 60% closed lose more than half of BLEU",
        some_then_sharp,
    ),
    Claim(
        "C6",
        "gradient order is as good as the order by measured ablation",
        "the ablation order is worse and slower",
        "no lower mean BLEU over the curve's steps, and no lower BLEU at half of them",
        gradient_as_good_as_ablation,
    ),
    Claim(
        "C7",
        "cross attention needs its heads most",
        "more than 60% of the cross heads pruned is catastrophic; self-attention with 20% of its heads keeps some 30 of 36 BLEU",
        "of the three kinds pruned alone, cross loses most at 60% and at 80%",
        cross_needs_most,
    ),
    Claim(
        "C8",
        "importance is decided early",
        "loss linear in the share pruned in epochs 1 and 2; from epoch 10, 40% can go at 85 to 90% of BLEU",
        "R² >= .9 of a straight line in the first two epochs recorded; at least 85% of BLEU with 40% closed in every epoch from 10 on",
        decided_early,
    ),
]
