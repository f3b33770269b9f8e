"""The comparison of a run's systems on the terminal."""

from rich.console import Console
from rich.table import Table

from runfolder.folder import RunFolder
from runfolder.row import ResultRow
from tasks import task_of


def comparison_table(run: RunFolder) -> None:
    """Print the rows of a run's result.json."""
    rows, metrics = run.rows(), task_of(run.config()).metrics
    reference = str(run.read_json("result.json")["reference"])
    kinds = list(rows[0].heads_by_kind)
    table = Table(title=f"{run.path}: test set, differences against {reference}")
    table.add_column("system")
    first, *others = (metric.title for metric in metrics)
    for name in ("heads", *kinds, first, "95%", *others, "difference", "95%", "p", "sentences/s"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*cells(row, kinds, reference))
    Console(width=None if Console().is_terminal else 140).print(table)
    print(rows[0].main.signature)
    for row in rows:
        if row.is_base and row.stage and not row.stage["converged"]:
            print(f"{row.system} is not converged: its validation loss still fell by 0.5% over the last 4 epochs; train it for longer")


def cells(row: ResultRow, kinds: list[str], reference: str) -> list[str]:
    main, *others = row.measures.values()
    first = [row.system, f"{row.heads_open}/{row.heads_total}", *(str(row.heads_by_kind[kind]) for kind in kinds)]
    first += [f"{main.value:.2f}", span(main.ci95, ".1f"), *(f"{measure.value:.2f}" for measure in others)]
    speed = "" if row.sentences_per_second is None else f"{row.sentences_per_second:.0f}"
    if row.system == reference or main.difference is None:
        return [*first, "reference", "", "", speed]
    p = "" if main.p_value is None else f"{main.p_value:.3f}"
    return [*first, f"{main.difference:+.2f}", span(main.difference_ci95, "+.2f"), p, speed]


def span(interval: tuple[float, float] | None, form: str) -> str:
    return "" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"
