"""What README and the docs tell people to type exists: commands and their flags, files, imports."""

import ast
import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headgates.__main__ import COMMANDS
from headgates.configs.cli import ConfigError, read_command
from tests.configs.commands import options_of

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ("README", "causes", "exchange", "families", "measured", "planted")
PAGES = [
    "README.md",
    *(f"results/{name}.md" for name in RECORDS),
    *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")),
]
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
OURS = re.compile(r"(?:\w+=\S* )*(?:make |headgates \w|(?:srun )?(?:\S*python3?|torchrun) .*\w\.py )")


def commands(text: str) -> list[str]:
    """Our scripts and `headgates NAME` in the bash blocks and in code within lines, comments off."""
    blocks = re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:headgates|python) [^`|\n]+)`", text)
    parts = [
        part.strip() for line in lines for part in re.split(r" (?:&&|\||<|>|;) ", line.partition(" #")[0])
    ]
    return [part for part in parts if OURS.match(part) and " -m " not in part.split(".py")[0]]


def problem(command: str) -> str:
    """What is wrong with a command, or an empty text."""
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
        goals = [word for word in words[1:] if "=" not in word]
        return "" if set(goals) <= targets else f"no target {goals} in the Makefile"
    at = next(i for i, word in enumerate(words) if word.endswith(".py") or word == "headgates")
    script = words[at + 1] if words[at] == "headgates" else words[at].removesuffix(".py")
    argv = words[at + 1 + (words[at] == "headgates") :]
    if script not in COMMANDS:
        return "" if (ROOT / words[at]).is_file() else f"no command {script}"
    if "--help" in argv or not argv or "$" in command:  # the shell's variables are anything
        return ""
    (options,) = options_of(script)
    try:
        read_command(options, [str(ROOT / word) if word.startswith("configs/") else word for word in argv])
    except ConfigError as error:
        return str(error)
    return ""


# results/ has the commands of the versions that made the numbers
ALL = sorted(
    {(page, each) for page, text in TEXTS.items() if "results" not in page for each in commands(text)}
)


@pytest.mark.parametrize(("page", "command"), ALL)
def test_a_command_can_be_typed(page: str, command: str) -> None:
    assert problem(command) == "", page


@pytest.mark.parametrize(
    "command", ["python fit.py --lambd 1", "headgates fut --gate l0", "make fot", "python fot.py --name a"]
)
def test_a_wrong_command_would_be_seen(command: str) -> None:
    assert problem(command) != ""


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page])]
    missing = [link for link in links if link and "://" not in link]
    assert [link for link in missing if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_imports_of_the_pages_exist() -> None:
    blocks = [
        block for text in TEXTS.values() for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ]
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    names = {
        (node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("headgates")
        for alias in node.names
    }
    assert [name for name in names if not hasattr(importlib.import_module(name[0]), name[1])] == []


def test_the_readme_is_one_screen_with_the_two_commands_and_the_installed_command() -> None:
    lines = TEXTS["README.md"].splitlines()
    assert len(lines) <= 110
    assert max(map(len, lines)) <= 120
    assert {"make fit", "make test"} <= set(commands(TEXTS["README.md"]))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = set(re.findall(r"'\.\[(\w+)\]'", "\n".join(TEXTS.values())))
    assert asked <= set(extras), f"{asked - set(extras)}: no such extra in pyproject.toml"


def test_the_snippets_of_the_readme_run_as_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (prune, printed), (learn, kept) = re.findall(
        r"```python\n(.*?)```\n\n```\n(.*?)```", TEXTS["README.md"], re.DOTALL
    )
    found: dict[str, Any] = {}
    exec(compile(prune, "README.md", "exec"), found)
    assert capsys.readouterr().out == printed
    loss = found["model"].eval()(**found["batch"]).loss
    assert loss < 0.3, "it has learned nothing; all heads or none would do as well"
    exec(compile(learn, "README.md", "exec"), found)
    assert kept.partition(" (")[0] in capsys.readouterr().out  # which heads stay may differ between machines
    assert len(list(tmp_path.glob("*/config.json"))) == 2, "both models are saved"


def test_the_library_guide_runs_from_its_top(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXTS["docs/library.md"], re.DOTALL):
        exec(compile(block, "library.md", "exec"), found)
    said = capsys.readouterr().out
    assert "GateBank(l0: 2 of 8 heads open)" in said
    assert "4 of 8 heads, 128 of 128 neurons, 2 of 2 layers" in said
    assert (tmp_path / "fast").is_dir()


def test_guides_are_six_short_pages_that_begin_with_a_command_and_its_output() -> None:
    for name in ("library", "prune", "learn", "explain", "speed", "sources"):
        text = TEXTS[f"docs/{name}.md"]
        assert len(text.split()) <= 1200, name
        command, _, output, *_ = re.findall(r"^```(\w*)$", text, flags=re.MULTILINE)
        assert command in ("bash", "python"), name
        assert output == "", f"{name}: the first block is not followed by what it prints"
