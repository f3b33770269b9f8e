"""What `analyze.py` found, on the terminal."""

from collections.abc import Mapping, Sequence

from analysis.analysed_model import AnalysedModel
from analysis.analyses import AnalysisResult
from analysis.correlations import BASE_LABEL
from analysis.roles import Role
from gates import KINDS, HeadMap, HeadSite
from report.terminal import columns, show
from runfolder.table import Row

SIDES = ("specialised", "others")  # the columns of the test


def heads_table(analysed: AnalysedModel, roles: Sequence[Role], scores: Mapping[str, HeadMap], sites: Sequence[HeadSite]) -> None:
    """Heads by kind: those with a role, with their scores; the others are counted."""
    title = f"{analysed.folder.path}, {analysed.system}: heads and their roles"
    table = columns(title, ["head"], [*scores, *(["open in"] if analysed.gate_runs and analysed.is_base else []), "score", "baseline"])
    table.add_column("role", overflow="fold")
    for kind in KINDS:
        mine = [site for site in sites if site.kind == kind]
        with_role = {(role.site, role.head) for role in roles if role.site.kind == kind}
        for site in mine:
            for head in range(site.heads):
                own = [role for role in roles if (role.site, role.head) == (site, head)]
                for number, role in enumerate(own):
                    first = [f"{site.name}.{head}", *(cell(each, site, head) for each in scores.values()), *open_in(analysed, site, head)]
                    table.add_row(*(first if number == 0 else [""] * len(first)), f"{role.score:.2f}", f"{role.baseline:.2f}", role.role)
        total = sum(site.heads for site in mine)
        if total:
            blank = [""] * (len(table.columns) - 2)
            table.add_row(kind, *blank, f"{total - len(with_role)} of {total} heads without a role", end_section=True)
    show(table)


def nearest_table(nearest: Sequence[Role]) -> None:
    """The head that is nearest to each family of roles: how far a model without such heads is from having one."""
    if not nearest:
        return
    table = columns("the best head of each family", ["family", "head", "role"], ["score", "baseline", "needed", "reached"])
    for role in nearest:
        numbers = [f"{value:.2f}" for value in (role.score, role.baseline, role.needed)]
        table.add_row(role.family, f"{role.site.name}.{role.head}", role.role, *numbers, "yes" if role.missing <= 0 else "no")
    show(table)


def cell(head_map: HeadMap, site: HeadSite, head: int) -> str:
    return f"{head_map[site][head]:.2f}" if site in head_map else ""


def open_in(analysed: AnalysedModel, site: HeadSite, head: int) -> list[str]:
    """In how many of the runs that gate it the head is open."""
    if not analysed.gate_runs or not analysed.is_base:
        return []
    rows = [run.open[site] for run in analysed.gate_runs if site in run.open]
    return [f"{sum(bool(row[head]) for row in rows)}/{len(rows)}" if rows else ""]


def syntax_table(results: Mapping[str, AnalysisResult]) -> None:
    """The best head of each relation, as the paper's Table 1."""
    if "syntax" not in results:
        return
    relations = ["label", "direction", "best head"]
    table = columns("relations and the head that finds them best", relations, ["accuracy", "best offset", "gain 95%", "words"])
    for row in results["syntax"].tables["syntax-best"]:
        if row["accuracy"] is None:
            table.add_row(row["label"], row["direction"], "none asked", "", "", "", "0")
            continue
        offset, gain = f"{row['baseline']:.2f} ({row['offset']:+d})", f"{row['gain_low']:+.2f} to {row['gain_high']:+.2f}"
        best = f"{row['site']}.{row['head']}"
        table.add_row(row["label"], row["direction"], best, f"{row['accuracy']:.2f}", offset, gain, f"{row['n']:,}")
    show(table)


def correlations_table(rows: Sequence[Row]) -> None:
    if not rows:
        return
    table = columns("how scores go together: Spearman's rho (p)", ["scores"], list(dict.fromkeys(row["kind"] for row in rows)))
    for pair in dict.fromkeys((row["first"], row["second"]) for row in rows):
        mine = [row for row in rows if (row["first"], row["second"]) == pair]
        words = ["none" if row["spearman"] is None else f"{row['spearman']:+.2f} ({row['p_value']:.2g})" for row in mine]
        table.add_row(" and ".join(pair), *words)
    show(table)


def survival_table(rows: Sequence[Row], tests: Sequence[Row]) -> None:
    """Open heads of each role in each run, then the test."""
    if not rows:
        return
    whole = [row for row in rows if row["kind"] == "all"]
    roles = list(dict.fromkeys(row["role"] for row in whole))
    table = columns("heads left open, by their roles in the base (a head may have several)", ["run"], ["open", *roles])
    for run in dict.fromkeys(row["run"] for row in whole):
        mine = {row["role"]: row for row in whole if row["run"] == run}
        table.add_row(run, str(mine[roles[0]]["heads_open"]), *(str(mine[role]["heads"]) for role in roles), end_section=run == BASE_LABEL)
    show(table)
    table = columns("do heads with a role survive longer?", ["kind", "labels dealt out within"], ["with a role", "without", "p"])
    for row in tests:
        lives = [f"{row[f'lifetime_{side}']:.2f} ({row[side]})" if row["difference"] is not None else f"({row[side]})" for side in SIDES]
        table.add_row(row["kind"], row["within"], *lives, "none" if row["p_value"] is None else f"{row['p_value']:.3g}")
    show(table)
