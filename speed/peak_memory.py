"""How much memory a system takes: a fresh process opens it, translates, and says after each batch how large it ever was.

    echo '{"spec": ..., "work": [{"lines": [...], "beam": 5}]}' | python -m speed.peak_memory

The largest resident set only grows, so the batches come in ascending order of their work: each number is then that of the largest batch so
far. What the interpreter and the imports take alone is said too.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUNTIMES = {"onnx": "onnxruntime", "ct2": "ctranslate2"}  # format -> package that runs it


def peak_bytes() -> int | None:
    """The largest resident set of this process so far; None where the system does not tell."""
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
    """Bytes, None where they are not known: {"interpreter": alone, "imports": with torch and the system's runtime, "peaks": after each
    piece of `work`}.

    spec: of a `speed_systems.System`. work: {"lines": sentences of one batch, "beam": width}. Raises ValueError if the process fails."""
    words = [sys.executable, "-m", "speed.peak_memory"]
    given = json.dumps({"spec": spec, "work": work})
    done = subprocess.run(words, input=given, capture_output=True, text=True, encoding="utf-8", cwd=ROOT)
    if done.returncode:
        raise ValueError(f"the process that measures memory failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def main() -> int:
    found: dict[str, Any] = {"interpreter": peak_bytes()}
    given = json.loads(sys.stdin.buffer.read())
    spec = given["spec"]

    from speed.systems import open_system

    if "format" in spec and spec["format"] in RUNTIMES:
        import_module(RUNTIMES[spec["format"]])
    found["imports"] = peak_bytes()
    opened = open_system(spec)
    found["peaks"] = []
    for each in given["work"]:
        opened.translate_n_best(each["lines"], beam=each["beam"])
        found["peaks"].append(peak_bytes())
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
