"""What a comparison says, in plain words written from its numbers: who is best where, what learning, closing
and training add.

A lead is called one where p, of sentences and seeds, is below 0.05; else it is a tie. Between recipes of one
seed neither is said. The best of several methods is the one with the lowest loss on validation; where that is
not known, it is chosen on the lines that it is measured on, and the last sentence says so.

At a size two differences are asked about, of the best method from the highest of the others on the test set,
and of learned gates from the best of the others, and p is adjusted for those. Picking both from many needs
no further correction: a method that is ahead of the highest is ahead of all, which happens by chance less
often than a lead over one rival. Among two to nine methods that are the same, with three seeds of alike or
unlike variance, at most 5% of comparisons called anything but a tie.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from headgates.configs.closing import ZERO
from headgates.report.compare_groups import (
    UNKNOWN,
    Compared,
    ComparedBudget,
    Difference,
    Group,
    GroupPair,
    together,
)
from headgates.report.table import interval_text


def summary(compared: Compared, *, metric: str) -> list[str]:
    """The sentences of a comparison; of a base that learned nothing, that alone. metric: its title, such as
    BLEU."""
    if compared.unlearned:
        return [f"{compared.unlearned}."]
    sentences = []
    for epochs in compared.shown_epochs:
        sizes = compared.sizes(epochs)
        asked = {size: asked_at(compared.at(epochs, size)) for size in sizes}
        sentences += [best_at(compared, epochs, size, asked[size], metric) for size in sizes]
        sentences += [learned_against_others(epochs, size, asked[size]) for size in sizes]
        unsized = [group for group in compared.groups if group.epochs == epochs and group.size is None]
        sentences += [of_no_size(group, compared, metric) for group in unsized]
        if len(ranks := compared.ranks(epochs)) > 1:
            ranked = ", ".join(f"{label} {rank:.2f}" for label, rank in ranks.items())
            sentences.append(f"Mean rank {trained(epochs)}: {ranked}.")
    sentences += [*closings(compared, metric), *training(compared, metric)]
    sentences += [*same_training(compared), caution(compared)]
    return [sentence for sentence in sentences if sentence]


def trained(epochs: int) -> str:
    words = "1 epoch" if epochs == 1 else f"{epochs} epochs"
    return f"with {words} of training" if epochs else "without training"


def score_text(group: Group, metric: str) -> str:
    """94.20 BLEU, with the range of the seeds where there are several."""
    text = f"{group.mean:.2f} {metric}"
    if len(group.rows) == 1:
        return text
    return f"{text} ({len(group.rows)} seeds, {interval_text(group.range, '.2f')})"


def gap(difference: Difference) -> str:
    return f"{difference.value:+.2f} ({interval_text(difference.interval)})"


def by_validation(groups: Sequence[Group]) -> list[Group]:
    """The groups, the best on validation first; the best on the test set where a loss is not known."""
    if any(group.loss is None for group in groups):
        return list(groups)
    return sorted(groups, key=lambda group: (group.loss, group.label))


def asked_at(groups: Sequence[Group]) -> dict[GroupPair, Difference]:
    """What the sentences compare at a size: the best method with the highest of the others, and the best
    learned gates with the best of the others. groups: the highest first."""
    best, *others = by_validation(groups)
    pairs = [(best, next(group for group in groups if group is not best))] if others else []
    learned, not_learned = (
        [group for group in (best, *others) if group.learned is kind] for kind in (True, False)
    )
    return together([*pairs, *zip(learned[:1], not_learned[:1], strict=False)])


def best_at(
    compared: Compared,
    epochs: int,
    size: ComparedBudget,
    asked: Mapping[GroupPair, Difference],
    metric: str,
) -> str:
    """The best method at a size, against the reference and against the highest of the others."""
    best = by_validation(compared.at(epochs, size))[0]
    reference = compared.reference(epochs)
    against = f"{gap(best.minus(reference))} against {reference.label}"
    how = "" if best.loss is None else " on validation"
    where = f"At {size.words}, {trained(epochs)},"
    if not asked:
        return f"{where} {best.label} has {score_text(best, metric)}, {against}."
    text = f"{where} {best.label} is the best{how}, {score_text(best, metric)}, {against}"
    (_, other), difference = next(iter(asked.items()))
    words = {"ahead": "a lead", "tie": "a tie", "behind": "which is ahead on the test set"}
    words[UNKNOWN] = UNKNOWN
    next_one = f"the highest of the others is {other.label} with {score_text(other, metric)}"
    return f"{text}; {next_one}: {words[difference.verdict]}, {gap(difference)}."


def learned_against_others(epochs: int, size: ComparedBudget, asked: Mapping[GroupPair, Difference]) -> str:
    """The best learned gates against the best other choice with the same training, and how many of their
    heads are the same; empty where one of them is missing."""
    for (group, other), difference in reversed(list(asked.items())):  # `asked_at` puts this pair last
        if group.learned and not other.learned:
            overlap = group.overlap(other)
            same = "" if overlap is None else f"; their open heads overlap by {overlap:.2f} (Jaccard)"
            return (
                f"At {size.words}, {trained(epochs)}, {group.label} against {other.label}, the best of the "
                f"others: {difference.verdict}, {gap(difference)}{same}."
            )
    return ""


def of_no_size(group: Group, compared: Compared, metric: str) -> str:
    """Where a group fell whose budget leaves any number of heads, such as a price."""
    opened = sorted({row.result.heads_open for row in group.rows})
    fell = " to ".join(map(str, dict.fromkeys((opened[0], opened[-1]))))
    reference, neurons = compared.reference(group.epochs), group.first.neurons_open
    beside = "" if neurons is None else f" and {neurons:,} neurons (the first seed)"
    name = f"{group.label} ({group.recipe.budget.words})"
    return (
        f"{name} {trained(group.epochs)} leaves {fell} heads{beside} open: "
        f"{score_text(group, metric)}, {gap(group.minus(reference))} against {reference.label}; no size was "
        "asked for, so it has no rank."
    )


def closings(compared: Compared, metric: str) -> list[str]:
    """What each closing adds to zero, over all pairs of groups that differ in it alone."""
    pairs = pairs_with(compared, closed_output=ZERO, refit=None)
    return [
        f"{closing} in place of {ZERO}, {trained(epochs)}: {added_text(mine, metric)}."
        for closing in dict.fromkeys(group.recipe.closing for group in compared.groups)
        for epochs in compared.all_epochs
        if (mine := [pair for pair in pairs if (pair[0].epochs, pair[0].recipe.closing) == (epochs, closing)])
    ]


def training(compared: Compared, metric: str) -> list[str]:
    """What training adds to a choice by a score, over all pairs of groups that differ in it alone."""
    sentences = []
    for epochs in filter(None, compared.all_epochs):
        pairs = [pair for pair in pairs_with(compared, epochs=0) if pair[0].epochs == epochs]
        if pairs:
            base = compared.continued.get(epochs)
            itself = f"; the base itself changes by {gap(base.minus(compared.base))}" if base else ""
            words = trained(epochs).removeprefix("with ").capitalize()
            sentences.append(f"{words} adds {added_text(pairs, metric)}{itself}.")
    return sentences


def pairs_with(compared: Compared, **changes: Any) -> list[GroupPair]:
    """The groups whose recipes these changes make those of others, each with that other."""
    return [
        (group, other)
        for group, other in product(compared.groups, compared.groups)
        if group is not other and replace(group.recipe, seed=other.recipe.seed, **changes) == other.recipe
    ]


def added_text(pairs: Sequence[GroupPair], metric: str) -> str:
    """The mean gain of the first over the second of each pair, its range, and how many are leads."""
    differences = list(together(pairs).values())
    gains = [difference.value for difference in differences]
    words = {"ahead": "better", "tie": "tie", "behind": "worse", UNKNOWN: "of one seed"}
    found = Counter(words[difference.verdict] for difference in differences)
    counted = ", ".join(f"{found[name]} {name}" for name in words.values() if found[name])
    ends = f"{min(gains):+.2f} to {max(gains):+.2f}"
    over = f"on average over {len(gains)} pairs of rows"
    if len(pairs) == 1:
        ends, over = interval_text(differences[0].interval), f"for {pairs[0][0].label}"
    return f"{fmean(gains):+.2f} {metric} {over} ({ends}; {counted})"


def same_training(compared: Compared) -> list[str]:
    """What the rows that are trained have in common, and what they have not."""
    sentences = []
    for epochs in filter(None, compared.all_epochs):
        groups = [group for group in compared.groups if group.epochs == epochs]
        stages = [row.result.stage for group in groups for row in group.rows]
        steps = {stage["steps"] if stage else 0 for stage in stages}
        if len(groups) > 1 and len(steps) == 1 and 0 not in steps:
            learned = [group for group in groups if group.learned]
            within = [group.label for group in learned if not group.seconds_of("choice")]
            but = f"; {', '.join(dict.fromkeys(within))} choose their heads within them" if within else ""
            costs = "what choosing and refits took beside is in the columns of seconds"
            sentences.append(f"Every row {trained(epochs)} has the same {steps.pop():,} steps{but}; {costs}.")
    return sentences


def caution(compared: Compared) -> str:
    """What the numbers count, and what they cannot say."""
    text = (
        "Intervals count the luck of test sentences and, where a method has seeds, of seeds, on this base. "
    )
    if max((len(group.rows) for group in compared.groups), default=1) == 1 and any(compared.all_epochs):
        text = (
            "One seed says nothing of the luck of training: intervals are of test sentences alone, and no "
            "lead is called. "
        )
    if len(compared.groups) == 1:
        return text.strip()
    text += (
        "A lead has p below .05, adjusted for the differences that these sentences compare at one size (Holm)"
    )
    if any(group.loss is None for group in compared.groups):
        text += "; the best of several is chosen on the lines it is measured on, which flatters it"
    return text + "."
