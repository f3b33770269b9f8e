"""The comparison of a run's systems on the terminal."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console

from headgates.report.terminal import WIDTH, columns, interval_text, show
from headgates.tasks import task_of
from headgates.workbench.convergence import EPOCHS
from headgates.workbench.folder import RunFolder
from headgates.workbench.row import ResultRow

WIDE = 120  # columns of a terminal, from which on there is room for all
UNLEARNED = 1.0  # of a metric out of 100: a reference below it has not learned its task


def comparison_table(run: RunFolder) -> None:
    """Print the rows of a run's result.json as a table, then the signature of the metric, and what the
    numbers cannot say."""
    rows, config = run.rows(), run.config()
    first, *others = (metric.title for metric in task_of(config).metrics)
    reference = str(run.read_json("result.json")["reference"])
    kinds = list(rows[0].heads_by_kind)
    console = Console()
    wide = (console.width if console.is_terminal else WIDTH) >= WIDE
    if wide:
        figures = ["heads", *kinds, first, "95%", *others, "difference", "95%", "p"]
    else:
        figures = ["heads", "+".join(kind[0] for kind in kinds), first, *others, "diff.", "95%", "p"]
    if any(row.main.p_mcnemar is not None for row in rows):
        figures.append("McNemar")
    title = f"{run.path}: test set, differences against {reference}"
    table = columns(title, ["system"], figures, (cells(row, kinds, reference, wide=wide) for row in rows))
    if not wide:
        # lines between the columns would take a third of the width
        table.box, table.pad_edge, table.collapse_padding = SIMPLE_HEAD, False, True
    show(table)
    print(rows[0].main.signature)
    for line in warnings_of(rows, config, reference):
        print(line)


def cells(row: ResultRow, kinds: list[str], reference: str, *, wide: bool) -> list[str]:
    """The cells of one system; in a narrow table the kinds share a cell. Its difference is left out where it
    is the reference, or was compared with none."""
    main, *others = row.measures.values()
    by_kind = [str(row.heads_by_kind[kind]) for kind in kinds]
    first = [
        row.system,
        f"{row.heads_open}/{row.heads_total}",
        *(by_kind if wide else ["+".join(by_kind)]),
        f"{main.value:.2f}",
    ]
    first += [interval_text(main.ci95, ".1f")] * wide + [f"{measure.value:.2f}" for measure in others]
    if row.system == reference or main.difference is None:
        return [
            *first,
            "ref." if not wide else "reference",
            "",
            "",
            *([""] if main.p_mcnemar is not None else []),
        ]
    p_values = [
        "" if main.p_value is None else f"{main.p_value:.3f}",
        *([] if main.p_mcnemar is None else [f"{main.p_mcnemar:.3f}"]),
    ]
    return [
        *first,
        f"{main.difference:+.2f}",
        interval_text(main.difference_ci95, "+.2f" if wide else "+.1f"),
        *p_values,
    ]


def warnings_of(rows: list[ResultRow], config: dict[str, Any], reference: str) -> list[str]:
    """What a reader of the table must know: a reference that learned nothing, a warm-up longer than its
    stage, bases not converged."""
    lines = []
    value = next(row.main.value for row in rows if row.system == reference)
    if value < UNLEARNED:
        lines.append(
            f"{reference} scores {value:.2f}: it has not learned the task, so the differences say nothing; train it for longer"
        )
    for row in rows:
        stage = row.stage or {}
        group = "train" if row.system == "base" else "finetune"
        warm_up, steps = config.get(group, {}).get("warmup_steps", 0), stage.get("steps")
        if steps is not None and warm_up >= steps:
            flag = f"--{group}.warmup-steps {warm_up}"
            lines.append(
                f"{row.system}: the learning rate never reached its peak ({flag}, and {steps} steps); lower it or train for longer"
            )
        if row.is_base and stage:
            if stage["converged"] is None or len(stage["losses"]) <= EPOCHS:
                count = len(stage["losses"])
                epochs = f"{count} epochs are" if count > 1 else "1 epoch is"
                lines.append(f"{row.system}: {epochs} too few to say whether it is converged")
            elif not stage["converged"]:
                fell = f"its validation loss still fell by 0.5% over the last {EPOCHS} epochs"
                lines.append(f"{row.system} is not converged: {fell}; train it for longer")
    return lines
