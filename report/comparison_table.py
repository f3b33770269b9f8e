"""The comparison of a run's systems on the terminal."""

from report.terminal import columns, interval_text, show
from runfolder.folder import RunFolder
from runfolder.row import ResultRow
from tasks import task_of


def comparison_table(run: RunFolder) -> None:
    """Print the rows of a run's result.json as a table, then the signature of the metric, and which base is not converged."""
    rows = run.rows()
    first, *others = (metric.title for metric in task_of(run.config()).metrics)
    reference = str(run.read_json("result.json")["reference"])
    kinds = list(rows[0].heads_by_kind)
    figures = ["heads", *kinds, first, "95%", *others, "difference", "95%", "p", "sentences/s"]
    title = f"{run.path}: test set, differences against {reference}"
    show(columns(title, ["system"], figures, (cells(row, kinds, reference) for row in rows)))
    print(rows[0].main.signature)
    for row in rows:
        if row.is_base and row.stage and not row.stage["converged"]:
            print(f"{row.system} is not converged: its validation loss still fell by 0.5% over the last 4 epochs; train it for longer")


def cells(row: ResultRow, kinds: list[str], reference: str) -> list[str]:
    """The cells of one system. Its difference is left out where it is the reference, or was compared with none."""
    main, *others = row.measures.values()
    first = [row.system, f"{row.heads_open}/{row.heads_total}", *(str(row.heads_by_kind[kind]) for kind in kinds)]
    first += [f"{main.value:.2f}", interval_text(main.ci95, ".1f"), *(f"{measure.value:.2f}" for measure in others)]
    speed = "" if row.sentences_per_second is None else f"{row.sentences_per_second:.0f}"
    if row.system == reference or main.difference is None:
        return [*first, "reference", "", "", speed]
    p_value = "" if main.p_value is None else f"{main.p_value:.3f}"
    return [*first, f"{main.difference:+.2f}", interval_text(main.difference_ci95), p_value, speed]
