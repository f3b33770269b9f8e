"""Outside the environment every script ends with one line that says how to enter it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_script_outside_the_environment_is_one_clear_line():
    script = "fit.py"
    # -I and -S: no packages but Python's own
    start = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['{script}', '--help']; import "
        f"runpy; runpy.run_path('{script}', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{script}: error: this Python")
    assert "lacks yaml, torch" in line
    assert "pip install '.[all]'" in line
    assert "source .venv/bin/activate" in line
