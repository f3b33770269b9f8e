"""The results of `analyze` as tables on the terminal."""

from collections.abc import Mapping, Sequence

from headgates.analysis.results import AnalysisResult
from headgates.analysis.roles import Role
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.findings import Findings
from headgates.gates import KINDS, HeadSite
from headgates.records.table import TableRow
from headgates.report.table import interval_text, show

TESTED_GROUPS = ("specialised", "others")  # the columns of the test


def heads_table(analysed: AnalysedModel, found: Findings, sites: Sequence[HeadSite]) -> None:
    """Print the heads that have a role, by kind, with their scores; heads without a role are counted."""
    scores = found.scores
    gated = ["open in"] * (analysed.is_base and bool(analysed.made_runs))
    columns = ["head", "role", *scores, *gated, "score", "baseline"]
    rows = []
    for kind in KINDS:
        places = [(site, head) for site in sites if site.kind == kind for head in range(site.heads)]
        without_role = len(places)
        for site, head in places:
            numbers = [
                f"{scores[name][site][head]:.2f}" if site in scores[name] else "" for name in scores
            ] + [open_in(analysed, site, head) for _ in gated]
            name = full_name(analysed, site, head)
            for role in found.roles:
                if (role.site, role.head) == (site, head):
                    without_role -= bool(name)
                    rows.append([name, role.role, *numbers, f"{role.score:.2f}", f"{role.baseline:.2f}"])
                    name, numbers = "", [""] * len(numbers)  # only the first of its roles names the head
        if places:
            counted = f"{without_role} of {len(places)} heads without a role"
            if not {site for site, _ in places} & {*found.asked}:
                counted = "no role was looked for"
            rows.append([kind, counted, *[""] * (len(columns) - 2)])
    brackets = " (in brackets: what they were called before others went)" * bool(analysed.before)
    title = f"{analysed.folder.path}, {analysed.system}: heads and their roles{brackets}"
    show(title, columns, rows, words=2)


def full_name(analysed: AnalysedModel, site: HeadSite, head: int) -> str:
    """A head's name, and in brackets that which it had before others of its layer, or layers, went."""
    before = analysed.before.get((site.name, head))
    return f"{site.name}.{head}" + (f" ({before})" if before else "")


def open_in(analysed: AnalysedModel, site: HeadSite, head: int) -> str:
    """In how many of the runs that gate the head it is open."""
    rows = [run.gated[site] for run in analysed.made_runs if site in run.gated]
    return f"{sum(bool(row[head]) for row in rows)}/{len(rows)}" if rows else ""


def nearest_table(analysed: AnalysedModel, nearest: Sequence[Role]) -> None:
    """Print for each family of roles the head that is nearest to it; a model may have no such head at all."""
    rows = []
    for role in nearest:
        numbers = [f"{value:.2f}" for value in (role.score, role.baseline, role.needed)]
        reached = "yes" if role.missing <= 0 else "no"
        head = full_name(analysed, role.site, role.head)
        rows.append([role.family, head, role.role, *numbers, reached])
    columns = ["family", "head", "role", "score", "baseline", "needed", "reached"]
    show("the best head of each family", columns, rows, words=3)


def syntax_table(results: Mapping[str, AnalysisResult]) -> None:
    """Print the best head of each relation, as Table 1 of Voita et al. 2019."""
    rows = []
    for row in results["syntax"].tables["syntax-best"] if "syntax" in results else ():
        if row["accuracy"] is None:  # no word of the text has this relation
            continue
        offset = f"{row['baseline']:.2f} ({row['offset']:+d})"
        gain = interval_text((row["gain_low"], row["gain_high"]))
        cells = [f"{row['site']}.{row['head']}", f"{row['accuracy']:.2f}", offset, gain, f"{row['n']:,}"]
        rows.append([row["label"], row["direction"], *cells])
    columns = ["label", "direction", "best head", "accuracy", "best offset", "gain 95%", "words"]
    show("relations and the head that finds them best", columns, rows, words=3)


def correlations_table(rows: Sequence[TableRow]) -> None:
    """Print how the heads' scores correlate: a row for each pair of scores, a column for each kind of
    attention."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        of_pair = cells.setdefault(f"{row['first']} and {row['second']}", {})
        of_pair[row["kind"]] = f"{row['spearman']:+.2f} ({row['p_value']:.2g})"
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    lines = [[pair, *(each.get(kind, "") for kind in kinds)] for pair, each in cells.items()]
    show("how scores go together: Spearman's rho (p)", ["scores", *kinds], lines)


def survival_table(rows: Sequence[TableRow], tests: Sequence[TableRow]) -> None:
    """Print the open heads of each role in each run, then the test of whether heads with a role survive
    longer."""
    by_run: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["kind"] == "all":
            line = by_run.setdefault(row["run"], {"run": row["run"], "open": str(row["heads_open"])})
            line[row["role"]] = str(row["heads"])
    columns = list(next(iter(by_run.values()), {}))
    title = "heads left open, by their roles in the base (a head may have several)"
    show(title, columns, [list(line.values()) for line in by_run.values()])
    test_rows = []
    for row in tests:
        lives = [f"{row[f'lifetime_{side}']:.2f} ({row[side]})" for side in TESTED_GROUPS]
        test_rows.append([row["kind"], row["within"], *lives, f"{row['p_value']:.3g}"])
    columns = ["kind", "labels dealt out within", "with a role", "without", "p"]
    show("do heads with a role survive longer?", columns, test_rows, words=2)
