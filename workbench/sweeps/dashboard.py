"""The Weights & Biases workspace of a sweep, by one command: panels over the names that runs log
(configs/metrics.py).

    python sweep.py dashboard ENTITY/PROJECT

Each upload is a new saved view of the project; its runs stay as they are. Without an account `--out FILE`
writes what would be sent.
"""

import hashlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgates.configs.metrics import HISTORY, OF_A_SYSTEM
from headgates.configs.schema import KINDS
from headgates.models.progress import Report, say
from headgates.workbench.folder import RunFolder
from headgates.workbench.sweeps.sweep_file import LETTERS_REFUSED, check_project

try:
    import wandb
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
except ImportError as error:  # said where it matters, in one line
    MISSING = error.name
else:
    MISSING = None

STEP = "step"  # optimiser steps of a stage; W&B's own step counts what was logged
HEAT_MAP = "gates/heatmap"  # a picture for each epoch
TABLES = {  # key: what a row is
    "gates/heads": "a head after an epoch",
    "translations": "a test sentence: source, reference, and what each system makes of it",
    "comparison": "a system: the numbers of the summary, with intervals, p-value and signatures",
}
SWEPT_FIELDS = ("lambda", "seed", "kinds")  # of FitConfig, as sweeps vary them
NAME = "headgates: BLEU against heads"


def make_dashboard(target: str, out: str | None = None, report: Report = say) -> None:
    """Upload the dashboard of `target`, ENTITY/PROJECT, or write it as JSON to the file `out`, which needs
    neither login nor network.

    Raises ValueError at a target that W&B would refuse, without wandb-workspaces or a login, and where W&B
    refuses the upload."""
    workspace = build_workspace(*entity_and_project(target))
    if out is not None:
        RunFolder(Path(out).parent).write_text(Path(out).name, serialised(workspace))
        report(f"dashboard: {out}; without --out it is uploaded to {target}")
        return
    if not logged_in():
        raise ValueError(
            "no login for Weights & Biases found; run `wandb login` first, or give --out FILE to write the dashboard as JSON"
        )
    try:
        workspace.save()
    except Exception as error:  # wandb's kinds have no common base
        raise ValueError(
            f"Weights & Biases did not take the dashboard of {target}: {' '.join(str(error).split())}"
        ) from error
    report(f"dashboard: {workspace.url}")


def logged_in() -> bool:
    """Return whether there are credentials, without asking the user for them and without sending anything."""
    if "prompt" in inspect.signature(wandb.login).parameters:
        return bool(wandb.login(prompt=False, verify=False))
    return bool(wandb.api.api_key)  # wandb before `prompt`


def entity_and_project(target: str) -> tuple[str, str]:
    """Return entity and project. Raises ValueError unless the target is two names that W&B takes, joined by a
    slash."""
    entity, slash, project = target.partition("/")
    if not (entity.strip() and slash and project.strip()) or any(
        letter in entity for letter in LETTERS_REFUSED
    ):
        raise ValueError(
            f"expected ENTITY/PROJECT, such as my-team/headgates (both are in the project's address), got {target!r}"
        )
    check_project(project)
    return entity, project


def build_workspace(entity: str, project: str) -> "ws.Workspace":
    """Return the workspace, not yet saved; the same names give the same workspace, ids included. Raises
    ValueError without the package."""
    if MISSING is not None:
        raise ValueError(
            f"the dashboard needs the package wandb-workspaces ({MISSING} is missing): pip install wandb-workspaces"
        )
    columns = [
        "summary:heads_open",
        "summary:bleu",
        "summary:bleu_difference",
        *(f"config:{name}.value" for name in SWEPT_FIELDS),
    ]
    look: Any = {
        "settings": ws.WorkspaceSettings(max_runs=100),
        "runset_settings": ws.RunsetSettings(pinned_columns=columns),
    }
    workspace = ws.Workspace(entity=entity, project=project, name=NAME, sections=sections(), **look)
    for part in workspace.sections:
        panels: list[Any] = part.panels
        for number, panel in enumerate(panels):  # ids are random otherwise, and no two files alike
            panel._id = hashlib.sha256(f"{part.name} {number}".encode()).hexdigest()[:11]
    return workspace


def sections() -> "list[ws.Section]":
    """The sections of the workspace: first the Pareto front, then what a run logs over time, then its final
    results."""
    heat_map = wr.MediaBrowser(title="gates by layer and head", media_keys=[HEAT_MAP], gallery_axis="step")
    return [
        section("BLEU against heads", front_panels(), columns=2),
        section("Open heads over steps", head_panels(), columns=3),
        section("Loss and validation BLEU", loss_panels(), columns=3),
        section("Heat map of the gates", [heat_map, table("gates/heads")]),
        section("The sweep", [parallel(), wr.ParameterImportancePlot(with_respect_to="bleu")]),
        section("Translations and comparison", [table("translations"), table("comparison")], columns=1),
    ]


def section(name: str, panels: Sequence[Any], *, columns: int = 2) -> "ws.Section":
    layout = ws.SectionLayoutSettings(columns=columns, rows=-(-len(panels) // columns))
    return ws.Section(name=name, panels=list(panels), is_open=True, layout_settings=layout)


def front_panels() -> list[Any]:
    """Panels with a point for each run: of its own system, then of greedy pruning to the same number of
    heads."""
    bleu, _, heads = OF_A_SYSTEM
    return [
        heads_against("heads_open", "bleu", "BLEU against open heads, line: Pareto front", front=True),
        heads_against("heads_open", "bleu_difference", "BLEU minus the reference's, against open heads"),
        *(
            heads_against(
                f"systems/{system}/{heads}",
                f"systems/{system}/{bleu}",
                f"{system}: BLEU against open heads",
                front=True,
            )
            for system in ("greedy", "greedy-finetuned")
        ),
    ]


def heads_against(x: str, y: str, title: str, *, front: bool = False) -> "wr.ScatterPlot":
    """A scatter plot of two numbers of the summary. front: with a line at the highest y so far from the left,
    as the Pareto front steps."""
    return wr.ScatterPlot(
        title=title, x=wr.SummaryMetric(x), y=wr.SummaryMetric(y), running_ymax=front or None
    )


def head_panels() -> "list[wr.LinePlot]":
    """Panels of the open heads, counted (gates more likely open than shut) and expected: of all kinds, then
    of each kind."""
    panels = [lines("open heads, counted and expected", "gates/open_heads", "gates/penalty")]
    panels += [
        lines(f"open heads, {kind}, counted and expected", f"gates/open_{kind}", f"gates/expected_{kind}")
        for kind in KINDS
    ]
    return [*panels, lines("price of an expected open head (nats per token)", "gates/lambda")]


def loss_panels() -> "list[wr.LinePlot]":
    panels = [
        lines(HISTORY[name], name)
        for name in ("train/loss", "val/loss", "val/bleu", "val/token_accuracy", "val/objective")
    ]
    return [*panels, lines(HISTORY["train/learning_rate"], "train/learning_rate")]


def lines(title: str, *names: str) -> "wr.LinePlot":
    return wr.LinePlot(title=title, x=STEP, y=list(names))


def parallel() -> "wr.ParallelCoordinatesPlot":
    """Parallel coordinates: on the left the settings that the sweep varies, on the right the results."""
    swept = [
        wr.ParallelCoordinatesPlotColumn(metric=wr.Config(name), log=name == "lambda" or None)
        for name in SWEPT_FIELDS
    ]
    outcome = [
        wr.ParallelCoordinatesPlotColumn(metric=wr.SummaryMetric(name)) for name in ("heads_open", "bleu")
    ]
    return wr.ParallelCoordinatesPlot(
        title="the sweep: settings, open heads, BLEU", columns=[*swept, *outcome]
    )


def table(key: str) -> "wr.WeavePanelSummaryTable":
    assert key in TABLES
    return wr.WeavePanelSummaryTable(table_name=key)


def serialised(workspace: "ws.Workspace") -> str:
    """Return what an upload sends, as indented JSON: entity, project, the view's name, and its spec."""
    view = workspace._to_model()  # the package has no public way to it; what save() itself sends
    spec = json.loads(view.spec.model_dump_json(by_alias=True, exclude_none=True))
    content = {
        "entity": view.entity,
        "project": view.project,
        "displayName": view.display_name,
        "type": "project-view",
        "spec": spec,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
