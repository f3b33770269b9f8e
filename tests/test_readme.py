"""What the README and its pages tell people to type is right: flags parse, make targets, scripts, files and
names exist."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headgates.configs.analyze import AnalyzeConfig
from headgates.configs.cli import ConfigError, read
from headgates.configs.compare import CompareConfig
from headgates.configs.export import ExportConfig
from headgates.configs.prune import PruneConfig
from headgates.configs.schema import FitConfig
from headgates.configs.sweep import DashboardConfig, ParetoConfig, SweepConfig
from headgates.configs.translate import TranslateConfig

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "results/README.md"]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
ALL = "\n".join(TEXTS.values())
ROOMS = (
    *("analysis", "configs", "data", "gates", "lightning_modules", "models", "protocol"),
    *("pruning", "report", "runfolder", "speed", "sweeps", "tasks"),
)
CONFIGS = {
    "fit.py": FitConfig,
    "prune.py": PruneConfig,
    "compare.py": CompareConfig,
    "analyze.py": AnalyzeConfig,
    "export.py": ExportConfig,
    "translate.py": TranslateConfig,
    "sweep.py": SweepConfig,
    "sweep.py pareto": ParetoConfig,
    "sweep.py dashboard": DashboardConfig,
}  # other scripts: their --help must list the flags
ELSEWHERE = {
    "git",
    "cd",
    "pip",
    "source",
    "sudo",
    "apt-get",
    "ls",
    "cat",
    "head",
    "less",
    "echo",
}  # commands of the system, not ours
INTERPRETERS = ("python", "python3", ".venv/bin/python")


def blocks(language: str, text: str = ALL) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str = ALL) -> list[str]:
    """Every command of the bash blocks: continued lines joined, `a && b` and `a | b` taken apart, comments
    off."""
    found = []
    for block in blocks("(?:bash|sh)", text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for part in re.split(
                r" (?:&&|;|\|) ",
                shlex.join(words).replace("'&&'", "&&").replace("'|'", "|").replace("';'", ";"),
            ):
                if part.strip():
                    found.append(part.strip())
    return found


def problem(command: str) -> str:
    """What is wrong with a command, or an empty text."""
    words = shlex.split(command)
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        words.pop(0)
    if not words or words[0] in ELSEWHERE:
        return ""
    if words[0] == "srun":
        words.pop(0)
    if words[0] == "torchrun":  # its own flags, then a script's command
        return script_problem(words[next(i for i, word in enumerate(words) if word.endswith(".py")) :])
    if words[0] == "make":
        return make_problem(words[1:])
    if words[0] in INTERPRETERS and words[1:2] != ["-m"]:
        return script_problem(words[1:])
    if words[0] in INTERPRETERS:
        return "" if words[2:3] in (["pip"], ["pytest"], ["venv"]) else f"unknown module {words[2:3]}"
    return (
        ""
        if (ROOT / words[0]).is_file()
        else f"{words[0]} is neither a command known here (ELSEWHERE) nor a file"
    )


def make_problem(words: list[str]) -> str:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, flags=re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", makefile, flags=re.MULTILINE))
    goals = [word for word in words if "=" not in word and not word.startswith("-")]
    if missing := [goal for goal in goals if goal not in targets]:
        return f"no target {missing} in the Makefile"
    for name, _, value in (word.partition("=") for word in words if "=" in word):
        if name not in variables:
            return f"no variable {name} in the Makefile"
        if (
            name == "FLAGS"
            and "test" not in goals
            and (wrong := script_problem(["fit.py", *shlex.split(value)]))
        ):
            return wrong
    return ""


def script_problem(words: list[str]) -> str:
    script, argv = words[0], words[1:]
    if not (ROOT / script).is_file():
        return f"{script} does not exist"
    if "--help" in argv:
        return ""
    redirected = [argv.index(sign) for sign in "<>" if sign in argv]
    argv = argv[: min(redirected)] if redirected else argv
    if f"{script} {' '.join(argv[:1])}" in CONFIGS:
        script, argv = f"{script} {argv[0]}", argv[1:]
    if script in CONFIGS:
        try:
            read(
                CONFIGS[script], [str(ROOT / word) if word.startswith("configs/") else word for word in argv]
            )
        except ConfigError as error:
            return str(error)
        return ""
    done = subprocess.run(
        [sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    known = set(re.findall(r"--[\w.-]+", done.stdout.replace("_", "-")))
    missing = [
        flag
        for word in argv
        if word.startswith("--") and (flag := word.partition("=")[0].replace("_", "-")) not in known
    ]
    return f"{script} --help does not list {missing}" if missing or done.returncode else ""


def named_paths(page: str) -> dict[str, Path]:
    """Targets of links and pictures, and paths in code: with a known suffix or below a room; not what a run
    makes."""
    text = TEXTS[page]
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    links = [link for link in links if link and "://" not in link and not link.startswith("mailto:")]
    code = re.findall(r"`([\w./-]+)`", text) + [
        word for command in commands(text) for word in shlex.split(command)
    ]
    inside = re.compile(
        rf"(?:{'|'.join(ROOMS)}|benchmarks|results|tests|notebooks|examples)/[\w./-]*|[\w-]+\.(?:py|toml|cff)"
    )
    own = {word for word in code if inside.fullmatch(word) and "/foo" not in word}
    return {link: (ROOT / page).parent / link for link in links} | {word: ROOT / word for word in own}


def imports() -> list[tuple[str, str]]:
    """(module, name) of every `from room import name` in the Python blocks, which must be Python."""
    trees = [ast.parse(block) for block in blocks("python")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [
        (node.module, alias.name)
        for node in nodes
        if node.module and node.module.split(".")[0] in ROOMS
        for alias in node.names
    ]


def test_the_readme_is_a_first_screen_with_the_two_commands():
    assert {"make fit", "make test"} <= set(commands(TEXTS["README.md"]))
    assert len(TEXTS["README.md"].splitlines()) <= 130


COMMANDS = [
    command for page, text in TEXTS.items() if page != "docs/runs-and-sweeps.md" for command in commands(text)
]  # it has a test


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_a_command_can_be_typed(command):
    assert problem(command) == ""


@pytest.mark.parametrize(
    "page", [page for page in TEXTS if page != "docs/runs-and-sweeps.md"]
)  # it names metrics like paths
def test_paths_that_a_page_names_exist(page):
    assert [name for name, path in named_paths(page).items() if not path.exists()] == []


def test_names_that_are_imported_exist():
    missing = [
        (module, name) for module, name in imports() if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []


@pytest.mark.parametrize(
    "command",
    [
        "python fit.py --lambd 1",
        "python fit.py --lambda -1",
        "python fit.py toy",
        "python fot.py",
        "python analyze.py runs/a --sibling",
        "python sweep.py pareto --siblings",
        "make fot",
        "make fit FLAGS='--gate l1'",
        "make fit FLAG=1",
        "fit --gate l0",
    ],
)
def test_a_wrong_command_would_be_seen(command):
    assert problem(command) != ""


def test_commands_are_found_in_blocks_of_all_forms():
    text = "```bash\n$ make fit  # 5 minutes\ncd x && python fit.py \\\n  --name 'a b'\n\n# only a comment\n```\n```\nmake nothing\n```\n"
    assert commands(text) == ["make fit", "cd x", "python fit.py --name 'a b'"]
