"""One case of benchmarks/fuzz.py in a process of its own, with limits of time and memory, and a watch on what
it writes and runs."""

import contextlib
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUTCOMES = ("fine", "one clear error", "traceback", "hang", "crash", "wrote outside", "executed code")
MEMORY = 6 * 2**30  # bytes of address space that a case may take beside what is there
# times the seconds of processor time that a case may take, it may wait for the processor, or for something
# that does not come
WAIT = 10
RUNS = {"os.system", "os.exec", "os.posix_spawn", "os.forkpty", "pty.spawn", "subprocess.Popen"}
ASKED = {
    "git",
    "nvidia-smi",
    "lscpu",
    "uname",
}  # programs that a command asks about the machine and the checkout
WRITES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
}


def tried(action: Callable[[], int | None], inside: Path, *, seconds: float) -> tuple[str, str]:
    """What became of a case, one of OUTCOMES, and its words. action: returns an exit code, 0 or None where
    all went well, or raises. seconds: of processor time.

    inside: the folder in which alone it may write; the folder `outside` beside it must stay as it is, with no
    file `marker`, which hostile pickles make."""
    outside, report = inside.parent / "outside", inside.parent / "report.json"
    before = listing(outside)
    child = os.fork()
    if child == 0:
        try:
            report.write_text(json.dumps(alone(action, inside, report, seconds)), encoding="utf-8")
        finally:
            os._exit(0)
    status = waited(child, seconds)
    outcome, words = (
        json.loads(report.read_text(encoding="utf-8"))
        if report.is_file()
        else ("crash", f"wait status {status}")
    )
    if (outside / "marker").exists():
        return "executed code", words
    if status is None:
        return "hang", f"longer than {seconds:g} s"
    return ("wrote outside", words) if listing(outside) != before else (outcome, words)


def waited(child: int, seconds: float) -> int | None:
    """The wait status of a child, or None where its time was over and it was killed."""
    descriptor = os.pidfd_open(child)
    try:
        ended = bool(select.select([descriptor], [], [], WAIT * seconds)[0])
    finally:
        os.close(descriptor)
    if not ended:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return None if not ended or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU) else status


def listing(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((str(path), path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*"))


def alone(action: Callable[[], int | None], inside: Path, report: Path, seconds: float) -> tuple[str, str]:
    """The outcome of a case in this process, which is changed for it."""
    for name in ("tmp", "home", "work"):
        (inside / name).mkdir(exist_ok=True)
    os.environ |= {
        "TMPDIR": str(inside / "tmp"),
        "HOME": str(inside / "home"),
        "XDG_CACHE_HOME": str(inside / "home"),
    }
    tempfile.tempdir = str(inside / "tmp")
    os.chdir(inside / "work")
    faulthandler.disable()  # a test's would tell of a crash at length
    limit(seconds)
    seen: list[tuple[str, str]] = []
    sys.addaudithook(watch(seen, inside, report))
    with (inside / "tmp/said").open("w+", encoding="utf-8", errors="backslashreplace") as said:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            outcome, words = judged(action)
        said.flush()
        text = Path(said.name).read_text(encoding="utf-8", errors="replace")
    if outcome == "one clear error" and not words:  # of a script, which prints it
        lines = [line for line in text.splitlines() if "error:" in line]
        outcome, words = (
            ("one clear error", lines[-1])
            if len(lines) == 1 and "Traceback" not in text
            else ("traceback", text[-1500:])
        )
    return seen[0] if seen else (outcome, words)


def judged(action: Callable[[], int | None]) -> tuple[str, str]:
    try:
        code = action()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
    except (ValueError, OSError) as error:
        unclear = (
            type(error) in (UnicodeEncodeError, UnicodeDecodeError)
            or "\n" in str(error).strip()
            or not str(error)
        )
        return ("traceback", trace()) if unclear else ("one clear error", f"{type(error).__name__}: {error}")
    except BaseException:
        return "traceback", trace()
    return ("fine", "") if not code else ("one clear error", "")


def trace() -> str:
    return traceback.format_exc()[-1500:]


def limit(seconds: float) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])  # a fork begins at 0
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, resource.RLIM_INFINITY))


def watch(seen: list[tuple[str, str]], inside: Path, report: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that notes in `seen` every file that is written outside of `inside`, and every program
    that is started."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event == "open"
            and isinstance(arguments[0], str | bytes)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            paths = [arguments[0]]
        elif event in WRITES:
            paths = [argument for argument in arguments if isinstance(argument, str | bytes)]
        elif event in RUNS:
            first = arguments[1] if event == "subprocess.Popen" else arguments[:1]
            words = [str(word) for word in ([first] if isinstance(first, str | bytes) else first)]
            if Path(words[0]).name not in ASKED:
                seen.append(("executed code", f"{event} {words}"))
            return
        else:
            return
        for path in map(os.fsdecode, paths):
            real = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
            if not (real.startswith(f"{inside}{os.sep}") or real.startswith("/dev/") or real == str(report)):
                seen.append(("wrote outside", f"{event} {path}"))

    return hook
