"""The dashboard: built and serialised without an account, over names that runs log; and the page that says
how to use it all."""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgates.configs.cli import read
from headgates.configs.fields import all_settings
from headgates.configs.metrics import HISTORY, OF_A_SYSTEM, SUMMARY, known_metrics
from headgates.configs.schema import FitConfig
from headgates.configs.sweep import DashboardConfig, ParetoConfig, SweepConfig
from headgates.gates import HeadSite
from headgates.lightning_modules.wandb_run import WandbRun
from headgates.lightning_modules.wandb_tables import FILES
from headgates.lightning_modules.wandb_tables import TABLES as LOGGED_TABLES
from headgates.workbench.folder import RunFolder
from headgates.workbench.sweeps import dashboard
from headgates.workbench.sweeps.dashboard import (
    HEAT_MAP,
    TABLES,
    build_workspace,
    entity_and_project,
    make_dashboard,
    serialised,
)
from headgates.workbench.sweeps.parameters import DISTRIBUTIONS, INSTEAD
from headgates.workbench.sweeps.sweep_file import METHODS, NO_EFFECT, NOT_HERE

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "runs-and-sweeps.md").read_text(encoding="utf-8")


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    """As on a machine without an account: any step towards the network would fail the test."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(dashboard.wandb, "login", lambda *, prompt=True, verify=True: False)
    monkeypatch.setattr(
        dashboard.ws.Workspace, "save", lambda self: pytest.fail("nothing may be uploaded here")
    )


def panels() -> list[dict]:
    spec = json.loads(serialised(build_workspace("my-team", "headgates")))["spec"]
    return [
        panel for section in spec["section"]["panelBankConfig"]["sections"] for panel in section["panels"]
    ]


def strings(value):
    """Every string in a JSON value."""
    if isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value


def names(panel: dict) -> list[str]:
    """The metrics that a panel shows, as W&B stores them."""
    config = panel["config"]
    match panel["viewType"]:
        case "Run History Line Plot":
            return config["metrics"]
        case "Scatter Plot":
            return [config["xAxis"], config["yAxis"]]
        case "Parallel Coordinates Plot":
            return [column["accessor"] for column in config["columns"]]
        case "Parameter Importance":
            return [f"summary:{config['targetKey']}"]
    return []


# ---------------------------------------------------------------- the workspace


def test_the_sections_are_those_of_a_sweep():
    workspace = build_workspace("my-team", "headgates")
    assert [section.name for section in workspace.sections] == [
        "BLEU against heads",
        "Open heads over steps",
        "Loss and validation BLEU",
        "Heat map of the gates",
        "The sweep",
        "Translations and comparison",
    ]
    assert all(section.panels and section.is_open for section in workspace.sections)


def test_every_metric_of_a_panel_is_one_that_runs_log():
    shown = [name for panel in panels() for name in names(panel)]
    settings = {f"config:{setting.name}.value" for setting in all_settings(FitConfig)} | {
        "config:lambda.value"
    }
    known = {*HISTORY, *settings, *(f"summary:{name}" for name in known_metrics() if name not in HISTORY)}
    assert len(shown) > 20
    assert [name for name in shown if name not in known] == []
    assert {f"gates/open_{kind}" for kind in ("enc-self", "dec-self", "cross")} <= set(shown)
    assert {
        "config:lambda.value",
        "config:seed.value",
        "config:kinds.value",
        "summary:heads_open",
        "summary:bleu",
    } <= set(shown)


def test_lines_are_drawn_over_the_steps_of_a_stage():
    lines = [panel for panel in panels() if panel["viewType"] == "Run History Line Plot"]
    assert {panel["config"]["xAxis"] for panel in lines} == {"step"}


def test_bleu_against_heads_has_the_line_of_the_front():
    scatter = [panel["config"] for panel in panels() if panel["viewType"] == "Scatter Plot"]
    (own,) = [config for config in scatter if config["yAxis"] == "summary:bleu"]
    assert own["xAxis"] == "summary:heads_open"
    assert own["showMaxYAxisLine"] is True


def test_pictures_and_tables_have_the_keys_that_runs_log_them_by(tmp_path):
    site = HeadSite.at("enc-self", 0, 2)
    row = {
        "epoch": 1,
        "site": site.name,
        "kind": site.kind,
        "layer": 0,
        "head": 1,
        "log_alpha": 0.5,
        "p_open": 0.7,
        "open": True,
    }
    logged = WandbRun.gate_pictures(SimpleNamespace(folder=RunFolder(tmp_path)), [row], 1)
    assert {HEAT_MAP, *TABLES} == {*logged, *LOGGED_TABLES}
    found = [text for panel in panels() for text in strings(panel["config"])]
    assert {HEAT_MAP, *TABLES} <= set(found)


def test_the_same_names_give_the_same_file_and_others_another():
    assert serialised(build_workspace("a", "b")) == serialised(build_workspace("a", "b"))
    assert serialised(build_workspace("a", "b")) != serialised(build_workspace("a", "c"))
    ids = [panel["__id__"] for panel in panels()]
    assert len(set(ids)) == len(ids)


def test_what_is_serialised_is_a_workspace_that_the_package_reads():
    content = json.loads(serialised(build_workspace("my-team", "headgates")))
    view = {
        "entity": content["entity"],
        "project": content["project"],
        "displayName": content["displayName"],
        "name": "",
        "id": "",
    }
    internal = sys.modules["wandb_workspaces.workspaces.internal"]
    again = dashboard.ws.Workspace._from_model(internal.View.model_validate(view | {"spec": content["spec"]}))
    assert [len(section.panels) for section in again.sections] == [
        len(section.panels) for section in build_workspace("a", "b").sections
    ]
    assert (again.entity, again.project, again.name) == ("my-team", "headgates", dashboard.NAME)


# ---------------------------------------------------------------- the command


def test_without_an_account_the_dashboard_is_a_file(no_login, tmp_path):
    said: list[str] = []
    make_dashboard("my-team/headgates", str(tmp_path / "new" / "dashboard.json"), said.append)
    assert (tmp_path / "new" / "dashboard.json").read_text(encoding="utf-8") == serialised(
        build_workspace("my-team", "headgates")
    )
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["dashboard.json"]
    assert len(said) == 1
    assert "dashboard.json" in said[0]


def test_without_a_login_one_line_says_what_to_do(no_login):
    with pytest.raises(ValueError, match=r"wandb login.*--out") as error:
        make_dashboard("my-team/headgates")
    assert "\n" not in str(error.value)


def test_an_upload_says_where_it_is_and_a_refused_one_why(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(dashboard, "logged_in", lambda: True)
    monkeypatch.setattr(dashboard.ws.Workspace, "save", lambda self: self)
    monkeypatch.setattr(dashboard.ws.Workspace, "url", "address of the view")
    make_dashboard("my-team/headgates", None, said.append)
    assert said == ["dashboard: address of the view"]

    def refuse(self):
        raise RuntimeError("project not\nfound")

    monkeypatch.setattr(dashboard.ws.Workspace, "save", refuse)
    with pytest.raises(
        ValueError, match="did not take the dashboard of my-team/headgates: project not found"
    ):
        make_dashboard("my-team/headgates", None, said.append)


@pytest.mark.parametrize("target", ["headgates", "", "/headgates", "my-team/", " / ", "my:team/headgates"])
def test_a_target_that_is_not_two_names_is_refused(target):
    with pytest.raises(ValueError, match=r"expected ENTITY/PROJECT, such as .*got ") as error:
        entity_and_project(target)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("target", "said"), [("a/b/c", "'b/c'"), ("a/b:c", "'b:c'"), ("a/" + 129 * "x", "at most 128 letters")]
)
def test_a_project_that_weights_and_biases_refuses_is_refused_before(target, said):
    with pytest.raises(ValueError, match=said):
        entity_and_project(target)


def test_a_missing_package_is_said_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    spec = importlib.util.spec_from_file_location("dashboard_without", ROOT / "sweeps" / "dashboard.py")
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    with pytest.raises(ValueError, match="pip install wandb-workspaces"):
        without.make_dashboard("my-team/headgates", str(tmp_path / "dashboard.json"))


# ---------------------------------------------------------------- the page


def table(heading: str) -> list[list[str]]:
    """The cells of the rows of the first table below a heading."""
    lines = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")
    ]


def written(cell: str) -> list[str]:
    """The names in a cell; `<kind>` stands for all kinds, `<system>` for itself."""
    found = re.findall(r"`([^`]+)`", cell)
    return [
        name.replace("<kind>", kind)
        for name in found
        for kind in (("enc-self", "dec-self", "cross") if "<kind>" in name else ("",))
    ]


def test_the_page_names_what_is_logged_and_nothing_else():
    shown = [name for cells in table("What is logged") for name in written(cells[0])]
    systems = [f"systems/<system>/{name}" for name in OF_A_SYSTEM]
    assert sorted(shown) == sorted([*HISTORY, *SUMMARY, *systems, HEAT_MAP, *TABLES, *FILES])


def test_the_page_says_what_of_the_format_runs_here():
    section = PAGE.split("\n## What of the sweep format runs locally\n")[1].split("\n## ")[0]
    names = set(re.findall(r"`([\w${}]+)`", section))
    assert {*METHODS, *NO_EFFECT, *NOT_HERE, *DISTRIBUTIONS, *INSTEAD} <= names


def commands() -> list[list[str]]:
    """The words of every command of ours in the page's blocks."""
    found = []
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "python" in words:
                found.append(words[words.index("python") + 1 :])
    return found


def value(word: str) -> str:
    """A word with the shell's variables filled in, and files of the repository by their whole path."""
    filled = re.sub(r"\$\{?lambda\w*(\[[^]]*\])?\}?", "0.01", word)
    filled = re.sub(r"\$\{?\w+(\[[^]]*\])?\}?", "1", filled)
    return str(ROOT / filled) if filled.startswith("configs/") and filled.endswith(".yaml") else filled


@pytest.mark.parametrize("words", commands(), ids=shlex.join)
def test_a_command_of_the_page_can_be_typed(words):
    script, *argv = [value(word) for word in words]
    assert script in ("fit.py", "sweep.py")
    if script == "fit.py":
        read(FitConfig, argv)
    elif argv[0] in ("pareto", "dashboard"):
        read({"pareto": ParetoConfig, "dashboard": DashboardConfig}[argv[0]], argv[1:])
    else:
        assert Path(read(SweepConfig, argv).file).is_file()


def test_the_page_shows_each_way():
    typed = [shlex.join(words) for words in commands()]
    assert len(typed) > 8
    for part in ("sweep.py configs", "sweep.py pareto", "sweep.py dashboard", "fit.py"):
        assert any(part in command for command in typed)
    ways = (
        "wandb login",
        "wandb sweep configs/sweeps/lambda.yaml",
        "wandb agent",
        "wandb sync",
        "WANDB_MODE=offline",
        "#SBATCH --array",
    )
    assert [way for way in ways if way not in PAGE] == []
