"""What the analyses of a model say together: roles, correlations of scores, and which roles survive; each a
table in `analysis/<system>/`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from headgates.analysis.results import AnalysisResult
from headgates.analysis.roles import Role, best_of_families, families_asked, find_roles
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.correlations import correlation_rows, known_scores, survival_rows
from headgates.gates import HeadMap, HeadSite
from headgates.records.table import TableRow, write_table


@dataclass(frozen=True)
class Findings:
    """asked: the sites of whose heads a role was looked for; nearest: of each family of roles the head that
    is nearest to it; scores: of heads, by name; causes, contrast: of --causes and --contrast; the rest are
    rows of tables."""

    asked: Collection[HeadSite] = ()
    roles: list[Role] = field(default_factory=list)
    nearest: list[Role] = field(default_factory=list)
    scores: Mapping[str, HeadMap] = field(default_factory=dict)
    correlations: list[TableRow] = field(default_factory=list)
    survival: list[TableRow] = field(default_factory=list)
    tests: list[TableRow] = field(default_factory=list)
    causes: AnalysisResult | None = None
    contrast: AnalysisResult | None = None


def find(analysed: AnalysedModel, results: Mapping[str, AnalysisResult]) -> Findings:
    """The findings, whose tables are written."""
    roles, nearest = find_roles(results, analysed.closed), best_of_families(results, analysed.closed)
    scores = known_scores(analysed, results)
    found = Findings(
        {site for sites in families_asked(results).values() for site in sites},
        roles,
        nearest,
        scores,
        correlation_rows(scores),
        *survival_rows(analysed, results, roles),
        causes=results.get("causes"),
        contrast=results.get("contrast"),
    )
    tables: dict[str, list[TableRow]] = {}  # of what was looked for: those of earlier analyses stay
    if found.asked:
        before = {"before": None} if analysed.before else {}
        for name, some in (("roles", roles), ("nearest", nearest)):
            tables[name] = [
                role.row() | {each: analysed.before.get((role.site.name, role.head)) for each in before}
                for role in some
            ]
    if found.correlations:
        tables["correlations"] = found.correlations
    if found.survival:
        tables |= {"survival": found.survival, "survival-test": found.tests}
    for name, rows in tables.items():
        write_table(analysed.folder, f"{analysed.results_folder}/{name}.csv", rows)
    return found
