"""What `analyze --contrast` found, on the terminal and for the page: the heads that a contrast needs, and
whether some of them are necessary and enough."""

from typing import Any

from headgates.analysis.results import AnalysisResult
from headgates.records.table import TableRow
from headgates.report.table import interval_text, show

TERMINAL_HEADS = 10  # heads on the terminal
EFFECT_COLUMNS = {  # of a head's row -> in words
    "effect": "closing it costs",
    "patch": "patched",
    "direct": "directly",
    "into": "into",
}


def contrast_table(result: AnalysisResult) -> None:
    """Print what the heads do for the contrast in sentences, then those that it needs most."""
    facts, rows = result.facts, effect_rows(result)
    known = [column for column in EFFECT_COLUMNS if column in rows[0]]
    cells = [
        [
            f"{row['site']}.{row['head']}",
            f"{row['effect']:+.2f}",
            interval_text((row["effect_low"], row["effect_high"])),
            f"{row['effect_p_value']:.4f}",
            f"{row['effect_p_value_holm']:.4f}",
            *(f"{row[column]:+.2f}" for column in known[1:]),
        ]
        for row in rows[:TERMINAL_HEADS]
    ]
    title, *sentences = contrast_sentences(facts)
    print(title)
    words = [facts["into"] if column == "into" else EFFECT_COLUMNS[column] for column in known[1:]]
    columns = ["head", EFFECT_COLUMNS["effect"], "95%", "p", "p (Holm)", *words]
    show(f"the {len(cells)} heads that {facts['name']} needs most, in nats", columns, cells)
    for sentence in sentences:
        print(sentence)


def effect_rows(result: AnalysisResult) -> list[TableRow]:
    """The rows of the heads, those first whose closing costs most."""
    return sorted(result.tables[f"contrast-{result.facts['slug']}"], key=lambda row: -row["effect"])


def contrast_sentences(facts: dict[str, Any]) -> list[str]:
    """What all heads do together, and what the named ones do alone."""
    said = [
        f"{facts['name']}: the right output is {facts['clean']:.2f} nats more likely than the wrong one, on "
        f"average over {facts['contrasts']} contrasts ({facts['right']:.0%} right); with all heads closed "
        f"{facts['none']:.2f}."
    ]
    if facts.get("units", facts["contrasts"]) < facts["contrasts"]:
        said.append(
            f"For p and intervals the {facts['contrasts']} contrasts count as {facts['units']}: those that "
            "differ in the same words the same way round share one luck. Give some the other way round to "
            "have more."
        )
    if "patched" in facts:
        said.append(
            f"Patched: {facts['patched']} contrasts whose sources have as many pieces; with the corrupted "
            f"source {facts['corrupted']:.2f}."
        )
    if "held_out" not in facts:
        return [*said, "No set of heads was compared with random ones: none, or all, were named."]
    without, alone, names = facts["without"], facts["alone"], facts["named"]
    return [
        *said,
        f"Necessary and enough? On {facts['held_out']} contrasts that did not name them "
        f"({facts['held_out_clean']:.2f}): without {plural(len(names), 'head')} {without['value']:.2f}, "
        f"without random ones of the same layers {without['random']:.2f} (they do more than "
        f"{without['percentile']:.0%} of 100 random sets); with them alone {alone['value']:.2f}, with random "
        f"ones {alone['random']:.2f} (more than {alone['percentile']:.0%}). The heads: {', '.join(names)}.",
    ]


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def contrast_data(result: AnalysisResult) -> dict[str, Any]:
    """For the page: the sentences, and the rows of all heads, those first whose closing costs most."""
    facts = result.facts
    title, *sentences = contrast_sentences(facts)
    return {
        "name": facts["name"],
        "title": title,
        "sentences": sentences,
        "into": facts.get("into"),
        "rows": effect_rows(result),
    }
