"""Do the lowest and the newest versions that pyproject.toml allows resolve, and do the quick tests pass?

    python .ci/bounds.py lowest             # in an environment of its own, .venv-lowest; or newest
    python .ci/bounds.py lowest --dry-run   # asks the index alone, and installs nothing

The constraints of pip's own configuration are left out: they would hide a bound that does not exist."""

import os
import subprocess
import sys
from pathlib import Path

from audit import ROOT, asked_for, lowest

TRAINERS = ["tests/gates/test_examples.py"]  # slow, and the only use of Hugging Face's Trainer


def requirements(which: str) -> list[str]:
    """Every dependency and every extra's, as pip takes it."""
    asked = asked_for(ROOT)
    return [f"{each.name}=={lowest(each)}" for each in asked] if which == "lowest" else list(map(str, asked))


def main(which: str, *flags: str) -> int:
    python, environment = Path(sys.executable), os.environ | {"PIP_CONSTRAINT": "", "OMP_NUM_THREADS": "1"}
    if not flags:
        python = ROOT / f".venv-{which}/bin/python"
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", *flags, *["--ignore-installed"] * bool(flags)]
    found = subprocess.run([*pip, *requirements(which)], env=environment, check=False).returncode
    if found or flags:
        print(f"the {which} versions {'do not resolve' if found else 'resolve'}")
        return found
    pytest = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    for tests in (["-m", "not slow"], TRAINERS):
        if failed := subprocess.run([*pytest, *tests], cwd=ROOT, env=environment, check=False).returncode:
            return failed
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] not in (["lowest"], ["newest"]) or sys.argv[2:] not in ([], ["--dry-run"]):
        sys.exit("usage: python .ci/bounds.py lowest|newest [--dry-run]")
    sys.exit(main(*sys.argv[1:]))
