"""What a comparison says, in plain words written from its numbers: who is best where, what learning, closing
and training add.

A lead is called one where the 95% interval of the paired difference leaves 0 out, else it is a tie. The best
of several methods is chosen on the lines that it is measured on, which flatters it a little; the last
sentence says so.
"""

from collections.abc import Sequence
from statistics import mean

from headgates.configs.scores import ZERO
from headgates.report.compare_groups import Compared, Difference, Group
from headgates.report.table import interval_text


def summary(compared: Compared, *, metric: str) -> list[str]:
    """The sentences of a comparison. metric: its title, such as BLEU."""
    sentences = []
    for epochs in compared.all_epochs:
        sentences += [best_at(compared, epochs, heads, metric) for heads in compared.counts_asked(epochs)]
        sentences += [
            learned_against_posthoc(compared, epochs, heads, metric)
            for heads in compared.counts_asked(epochs)
        ]
        sentences += [
            steered(group, compared, metric)
            for group in compared.groups
            if group.epochs == epochs and group.lam is not None
        ]
        sentences += [ranked(compared, epochs)]
    sentences += closings(compared, metric)
    sentences += training(compared, metric)
    sentences.append(caution(compared))
    return [sentence for sentence in sentences if sentence]


def trained(epochs: int) -> str:
    return (
        "without training"
        if not epochs
        else f"with {epochs} {'epoch' if epochs == 1 else 'epochs'} of training"
    )


def score(group: Group, metric: str) -> str:
    """94.20 BLEU, with the range of the seeds where there are several."""
    text = f"{group.mean:.2f} {metric}"
    if len(group.points) == 1:
        return text
    return f"{text} ({len(group.points)} seeds, {group.range[0]:.2f} to {group.range[1]:.2f})"


def gap(difference: Difference) -> str:
    return f"{difference.value:+.2f} ({interval_text(difference.interval)})"


def words(difference: Difference, what: str, other: str) -> str:
    """`what` against `other`: ahead, behind or a tie, with the paired difference."""
    verdict = {
        "ahead": f"{what} is ahead of {other}",
        "behind": f"{what} is behind {other}",
        "tie": f"{what} and {other} are a tie",
    }
    return f"{verdict[difference.verdict]}, {gap(difference)}"


def best_at(compared: Compared, epochs: int, heads: int, metric: str) -> str:
    """The best method at a number of heads, against the reference and against the next."""
    best, *others = compared.at(epochs, heads)
    reference = compared.reference(epochs)
    against = f"{gap(best.minus(reference))} against {reference.label}"
    text = f"At {heads} heads {trained(epochs)} {best.label} is the best, {score(best, metric)}, {against}"
    if not others:
        return text + "."
    difference = best.minus(others[0])
    next_one = f"next is {others[0].label} with {score(others[0], metric)}"
    return f"{text}; {next_one}: {'a lead' if difference.verdict == 'ahead' else 'a tie'}, {gap(difference)}."


def learned_against_posthoc(compared: Compared, epochs: int, heads: int, metric: str) -> str:
    """The best learned gates against the best choice by a score with the same training; empty where one of
    them is missing."""
    groups = compared.at(epochs, heads)
    learned, scores = ([group for group in groups if group.learned is kind] for kind in (True, False))
    if not learned or not scores:
        return ""
    what, other = f"learned gates ({learned[0].label})", f"the best score ({scores[0].label})"
    return f"At {heads} heads {trained(epochs)}: {words(learned[0].minus(scores[0]), what, other)}."


def steered(group: Group, compared: Compared, metric: str) -> str:
    """A group that lambda steers: where it fell."""
    opened = [point.row.heads_open for point in group.points]
    fell = f"{opened[0]}" if len(set(opened)) == 1 else f"{min(opened)} to {max(opened)}"
    reference = compared.reference(group.epochs)
    against = f"{gap(group.minus(reference))} against {reference.label}"
    result = f"{score(group, metric)}, {against}; it was told no number, and has no rank"
    return f"{group.label} at λ {group.lam:g} {trained(group.epochs)} leaves {fell} heads open: {result}."


def ranked(compared: Compared, epochs: int) -> str:
    ranks = compared.ranks(epochs)
    if len(ranks) < 2:
        return ""
    return (
        f"Mean rank {trained(epochs)}: {', '.join(f'{label} {rank:.2f}' for label, rank in ranks.items())}."
    )


def closings(compared: Compared, metric: str) -> list[str]:
    """What each closing adds to zero, over all pairs of points that differ in it alone."""
    sentences = []
    for closing in dict.fromkeys(group.closing for group in compared.groups if group.closing != ZERO):
        for epochs in compared.all_epochs:
            pairs = [
                (group, other)
                for group in compared.groups
                for other in compared.at(epochs, group.asked or 0)
                if group.closing == closing
                and group.epochs == epochs
                and (other.method, other.closing) == (group.method, ZERO)
            ]
            if pairs:
                sentences.append(f"{closing} in place of {ZERO}, {trained(epochs)}: {added(pairs, metric)}.")
    return sentences


def training(compared: Compared, metric: str) -> list[str]:
    """What training adds to a choice by a score, over all pairs of points that differ in it alone."""
    first, *longer = compared.all_epochs or [0]
    sentences = []
    for epochs in longer if first == 0 else []:
        pairs = [
            (group, other)
            for group in compared.groups
            for other in compared.at(0, group.asked or 0)
            if group.epochs == epochs and other.label == group.label
        ]
        if pairs:
            reference = compared.continued.get(epochs)
            whole = (
                f"; the base itself changes by {gap(reference.minus(compared.base))}"
                if reference is not None
                else ""
            )
            sentences.append(
                f"{trained(epochs).removeprefix('with ').capitalize()} adds {added(pairs, metric)}{whole}."
            )
    return sentences


def added(pairs: Sequence[tuple[Group, Group]], metric: str) -> str:
    """The mean gain of the first over the second of each pair, its range, and how many are leads."""
    differences = [group.minus(other) for group, other in pairs]
    gains = [difference.value for difference in differences]
    if len(gains) == 1:
        (group, _), (one,) = pairs[0], differences
        at = f"{group.label} at {group.asked} heads, {called(one)}"
        return f"{one.value:+.2f} {metric} ({interval_text(one.interval)}; {at})"
    found = [called(difference) for difference in differences]
    names = [name for name in ("better", "a tie", "worse") if name in found]
    counted = ", ".join(f"{found.count(name)} {name.removeprefix('a ')}" for name in names)
    gained = f"{mean(gains):+.2f} {metric} on average over {len(gains)} pairs of points"
    return f"{gained} ({min(gains):+.2f} to {max(gains):+.2f}; {counted})"


def called(difference: Difference) -> str:
    return {"ahead": "better", "behind": "worse", "tie": "a tie"}[difference.verdict]


def caution(compared: Compared) -> str:
    """What the numbers cannot say."""
    seeds = max(len(group.points) for group in compared.groups) if compared.groups else 1
    luck = (
        "One seed says nothing of the luck of training. " if seeds == 1 and any(compared.all_epochs) else ""
    )
    chosen = "the best of several is chosen on the lines it is measured on, which flatters it"
    return f"{luck}Intervals are of test sentences and not adjusted for how many there are; {chosen}."
