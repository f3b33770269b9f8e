"""What the user types to start a command. Importing this needs the standard library alone."""

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def program(command: str) -> str:
    """`python fit.py` where a script at the root of the checkout was started; `headgates fit` elsewhere:
    in the installed command, a notebook, a program of the user's."""
    started = Path(sys.argv[0]).resolve()
    is_script = started.suffix == ".py" and started.parent == ROOT
    return f"python {command}.py" if is_script else f"headgates {command}"


def command_line(command: str, *words: object) -> str:
    """A command with its words, as a shell takes it."""
    return " ".join([program(command), *(shlex.quote(str(word)) for word in words)])
