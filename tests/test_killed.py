"""Scripts interrupted before they began, and fit.py killed with no word of warning (kill -9): no traceback,
no process that trains on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.processes import ended

ROOT = Path(__file__).parents[1]
FEW = "--text.train-sentences 101 --test-sentences 5 --threads 1"


INTERRUPTED = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background inherit an ignored one
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.mark.parametrize("script", ["fit", "prune", "analyze", "export", "sweep", "translate"])
def test_an_interrupt_while_a_script_is_imported_is_one_line(script, tmp_path):
    (tmp_path / "yaml.py").write_text(INTERRUPTED)  # the first package that takes time
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, str(ROOT / f"{script}.py"), "nothing"]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith(f"{script}.py: interrupted; ")
    assert ("--resume" in done.stderr) == (script in ("fit", "prune")), "which go on with it alone"
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel lists a process's children on Linux alone")
def test_no_process_of_two_devices_outlives_the_one_that_started_it(tmp_path):
    flags = f"--config {ROOT / 'configs/toy_tiny.yaml'} {FEW} --devices 2 --train.epochs 2000".split()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "fit.py"), *flags, "--gate", "none", "--runs", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # as in the background: torch's own interrupt to the children is ignored there
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert process.stdout is not None
    assert any("epoch 1 of 2000" in line for line in process.stdout)
    children = [
        int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    process.kill()
    process.wait()
    left = [child for child in children if not ended(child)]
    for child in left:
        os.kill(child, signal.SIGKILL)
    assert len(children) == 1  # the second; the first is the process itself
    assert left == []
