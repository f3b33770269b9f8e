"""What a command imports, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTED = """
import json, runpy, sys
sys.argv = json.loads(sys.argv[1])
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    print(json.dumps([end.code or 0, list(sys.modules)]), file=sys.stderr)
"""


def imported_by(*words: object, text: str = "") -> set[str]:
    """The modules that a root script has imported when it ends well."""
    done = subprocess.run(
        [sys.executable, "-c", STARTED, json.dumps(list(map(str, words)))],
        cwd=ROOT, input=text, capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    code, found = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return set(found)
