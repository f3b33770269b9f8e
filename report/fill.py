"""The page of a run, `report.html`, and what it is drawn from, `analysis/base/cards.json`.

Every command that has something new writes it: `fit` and `prune` smaller models, comparisons and a first look
at the heads, `analyze` roles, relevance and sentences. Folders are read again each
time, and of analyses that a command did not make, what earlier ones of the same weights found stays: pages
gain, and lose nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgates.analysis.results import AnalysisResult
from headgates.configs.analyses import MOST_EXAMPLES, Analyses
from headgates.configs.program import command_line
from headgates.data import Corpus
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.findings import Findings, find
from headgates.explain.first_look import look_at_heads, price_heads
from headgates.models.progress import Report
from headgates.records.folder import RunFolder
from headgates.report.cards import CardsRecord, kept_cards, write_cards
from headgates.report.output_lines import output_lines
from headgates.report.page import write_page
from headgates.report.report_data import FOUND_TABLES, report_data
from headgates.report.table import is_unlearned, own_speed, result_sentence

PAGE = "report.html"
CARD_NUMBERS = ("confidence", "lrp_share", "lrp_signed", "entropy", "offsets")  # of analyses, on a card


def update_pages(
    run: RunFolder,
    report: Report,
    *,
    data_dir: str | None = None,
    corpus: Corpus | None = None,
    look: int = 0,
    beside: Sequence[RunFolder] = (),
) -> list[Path]:
    """Write the pages of a finished run, of its base, and of the runs `beside` it on that base; each shows
    all finished runs of the base. Returns their paths.

    data_dir, corpus: those of the calling command, so that the text need not be found and read again. look:
    first make what the base lacks of the analyses that take seconds, on so many validation sentences. A page
    that cannot be made is reported and raises nothing: a training that has ended must not fail for it."""
    try:
        config = Analyses(siblings=True, data_dir=data_dir, sentences=look)
        analysed = AnalysedModel.open([str(run.path)], config, lambda text: None, corpus=corpus)
        results: Mapping[str, AnalysisResult] = {}
        if look:
            results = first_look(analysed, report)
        found = find(analysed, results) if results else Findings()
        return write_pages(analysed, page_data(analysed, results, found), [run, analysed.base, *beside])
    except (ValueError, OSError) as error:
        report(f"no report page: {error}")
        return []


def first_look(analysed: AnalysedModel, report: Report) -> Mapping[str, AnalysisResult]:
    """Make what the base lacks of the analyses that take seconds. What cannot be made of this model or text
    is reported and left out. Returns the results of what analyze does, unless it did that before."""
    results: Mapping[str, AnalysisResult] = {}
    try:
        price_heads(analysed)
        if not last_cards(analysed):
            results = look_at_heads(analysed, report)
    except ValueError as error:
        report(f"left out of the report page: {error}")
    return results


def write_pages(analysed: AnalysedModel, data: dict[str, Any], runs: Sequence[RunFolder]) -> list[Path]:
    """Write the page to each of these folders once and return the paths; the page of a run opens with its own
    heads, and that of a model that has not learned its task has no finding as a title."""
    folders = {run.path.resolve(): run for run in runs}
    of_system = [] if analysed.is_base else ["--system", analysed.system]
    for path, run in folders.items():
        own = {
            "run": path.name,
            "opens_with": path.name,
            "result": result_sentence(run),
            "speed": own_speed(run),
            "commands": {
                "analyze": command_line("analyze", run.path, *of_system),
                "explore": command_line("explore", run.path),
            },
        }
        write_page({**data, **own, "unlearned": is_unlearned(run)}, run / PAGE)
    return [run / PAGE for run in folders.values()]


def page_data(
    analysed: AnalysedModel, results: Mapping[str, AnalysisResult], found: Findings
) -> dict[str, Any]:
    """What the folders hold now and these results, and of earlier analyses what these do not say; new results
    are kept for the next page."""
    last = last_cards(analysed)
    data = report_data(analysed, results, found, with_examples=bool(results) or not last)
    if set(analysed.config.attention) != set(analysed.shown_kinds):
        for name in FOUND_TABLES:  # "all" of some kinds is not that of the page
            data[name] = [row for row in data[name] if row["kind"] != "all"]
        if last:  # nor do they take the place of what is there of all
            data |= {name: None for name in ("sentences", "causes") if last.get(name)}
            there = {each["name"] for each in last.get("contrasts") or []}
            data["contrasts"] = [each for each in data["contrasts"] if each["name"] not in there]
            for part in ("read", "facts"):
                own, before = data["settings"][part], last["settings"][part]
                data["settings"][part] = {name: each for name, each in own.items() if name not in before}
    if last:
        gain(data, last)
    if results:
        write_cards(analysed.folder, analysed.cards_folder, data)
    return {**data, "lines": output_lines(analysed)}


def gain(data: dict[str, Any], last: CardsRecord) -> None:
    """Give the data what they lack of the last ones, of the same weights. Roles of a family that was looked
    for again are the new ones; the reader's own sentences stay."""
    cards = {(card["site"], card["head"]): card for card in last["heads"]}
    for card in data["heads"]:
        old = cards.get((card["site"], card["head"]))
        if old is None:
            continue
        card |= {name: v for name, v in old.items() if name in CARD_NUMBERS and card[name] in (None, [])}
        kept = [role for role in old["roles"] if role["family"] not in card["asked"]]
        card["roles"] = sorted([*card["roles"], *kept], key=lambda role: role["baseline"] - role["score"])
        card["asked"] = list(dict.fromkeys([*card["asked"], *old["asked"]]))
    settings, before = data["settings"], last["settings"]
    settings |= {part: {**before[part], **settings[part]} for part in ("read", "facts")}
    sources = [example["source"] for example in data["examples"]]
    own = [example for example in data["examples"] if example["own"]]
    own += [example for example in last["examples"] if example["own"] and example["source"] not in sources]
    of_text = [[each for each in given["examples"] if not each["own"]] for given in (data, last)]
    data["examples"] = [*own[:MOST_EXAMPLES], *(of_text[0] or of_text[1])]
    data["sentences"] = data["sentences"] or last.get("sentences", [])
    data["causes"] = data["causes"] or last.get("causes")
    by_name = {each["name"]: each for each in [*(last.get("contrasts") or []), *data["contrasts"]]}
    data["contrasts"] = list(by_name.values())
    for name in FOUND_TABLES:
        rows: list[dict[str, Any]] = last[name]
        if name != "correlations":  # of a kind, these are made of all its runs at once
            rows = [row for row in rows if row["kind"] not in {own["kind"] for own in data[name]}]
        data[name] = list({row_words(row): row for row in [*rows, *data[name]]}.values())


def row_words(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What a row of a table is about: all of it that is no number."""
    return tuple(value for value in row.values() if isinstance(value, str))


def last_cards(analysed: AnalysedModel) -> CardsRecord | None:
    """The cards that analyze wrote of these weights, none where all is made again."""
    if analysed.config.fresh:
        return None
    return kept_cards(analysed.folder, analysed.cards_folder, analysed.weights)
