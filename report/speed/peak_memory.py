"""The peak memory of a system: a fresh process opens it, translates, and reports its largest resident set
after each batch.

    echo '{"spec": ..., "work": [{"lines": [...], "beam": 5}]}' | python -m speed.peak_memory

The largest resident set only grows, so the batches come in ascending order of their work: each number is that
of the largest batch so far. The memory of the interpreter and of the imports alone is reported too.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNTIMES = {"onnx": "onnxruntime", "ct2": "ctranslate2"}  # format -> package that runs it


def peak_bytes() -> int | None:
    """The largest resident set of this process so far; None where the system does not report it."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux. Its ru_maxrss would begin with that of the process that started this one
        lines = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        if lines:
            return int(lines[0].split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def in_fresh_process(spec: Mapping[str, Any], work: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes, None where they are not known: {"interpreter": alone, "imports": with torch and the system's
    runtime, "peaks": after each piece of `work`}.

    spec: of a `speed.systems.System`. work: {"lines": sentences of one batch, "beam": width}. Raises
    ValueError if the process fails."""
    command = [sys.executable, "-m", "headgates.report.speed.peak_memory"]
    request = json.dumps({"spec": spec, "work": work})
    done = subprocess.run(command, input=request, capture_output=True, text=True, encoding="utf-8", cwd=ROOT)
    if done.returncode:
        raise ValueError(
            f"the process that measures memory failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}"
        )
    measured = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(measured, dict)
    return measured


def main() -> int:
    memory: dict[str, Any] = {"interpreter": peak_bytes()}
    request = json.loads(sys.stdin.buffer.read())
    spec = request["spec"]

    from headgates.report.speed.systems import open_system

    if "format" in spec and spec["format"] in RUNTIMES:
        import_module(RUNTIMES[spec["format"]])
    memory["imports"] = peak_bytes()
    opened = open_system(spec)
    memory["peaks"] = []
    for batch in request["work"]:
        opened.translate_n_best(batch["lines"], beam=batch["beam"])
        memory["peaks"].append(peak_bytes())
    print(json.dumps(memory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
