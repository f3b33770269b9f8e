"""How the scripts end: with an exit code, and with one line on stderr where they cannot go on."""

import errno
import signal
import sys
import threading
import warnings
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from headgates.configs.printable import printable
from headgates.data.ranks import has_lost_another, speaks_first, world
from headgates.lab.processes import leave, silence_others

LONGEST_ERROR = 2000  # characters of an error


def exit_code(script: str, run: Callable[[], int | None], *, interrupted: str) -> int:
    """Run a script and return its exit code: what `run` returns (0 for None), 1 after a ValueError or
    OSError, 128 + the signal's number after Ctrl-C (130), a kill (143) or another signal that ends it.

    The message of the error, or `interrupted`, which says what is left after Ctrl-C, becomes one line on
    stderr; of several processes that run the script together, one says it."""
    heard: list[int] = []
    silence_others()
    try:
        with kill_as_interrupt(heard), warnings_in_one_line():
            code = run() or 0
            leave(code)
            return code
    except (ValueError, OSError) as error:
        say_once(error_line(script, error))
        return 1
    except RuntimeError as error:
        if not has_lost_another(error):
            raise
        say_once(
            f"{script}: error: another of the {world()} processes has ended, and without it this one "
            f"cannot go on"
        )
        return 1
    except KeyboardInterrupt:
        say_once(printable(f"{script}: interrupted; {interrupted}"))
        return 128 + (heard[0] if heard else signal.SIGINT)


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Show a warning as what it says, without the line of code that it was raised in."""

    def in_one_line(message: Warning | str, *_: object, **__: object) -> str:
        return printable(f"warning: {' '.join(str(message).split())}\n")

    before = warnings.formatwarning
    warnings.formatwarning = in_one_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def say_once(line: str) -> None:
    if speaks_first():
        print(line, file=sys.stderr, flush=True)


def error_line(script: str, error: Exception) -> str:
    """What the user is told of an error, printable on any terminal; of a full disk, with what to do."""
    text = str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = (
            f"cannot write {error.filename or 'all of its output'}: {error.strerror}; free some space "
            f"and repeat the command"
        )
    if len(text) > LONGEST_ERROR:  # a file of others may have put anything into it
        text = f"{text[:LONGEST_ERROR]}..."
    return printable(f"{script}: error: {text}")


@contextmanager
def kill_as_interrupt(heard: list[int]) -> Iterator[None]:
    """Turn a kill, a closed terminal or a scheduler's warning into an interrupt, so that what was begun is
    put in order and said. heard: the numbers of the signals are added to it.

    An interrupt that falls into a destructor, whose exceptions Python drops, is raised again."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        heard.append(signum)
        raise KeyboardInterrupt

    def again(dropped: "sys.UnraisableHookArgs") -> None:
        if dropped.exc_type is KeyboardInterrupt:
            number = heard[-1] if heard else signal.SIGINT
            threading.Timer(0.05, interrupt_main, [number]).start()  # once the destructor has ended
        else:
            hook(dropped)

    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]
    awaited = [
        signum for signum in known if signal.getsignal(signum) is not signal.SIG_IGN
    ]  # nohup: not SIGHUP
    before = {signum: signal.signal(signum, interrupt) for signum in awaited}
    hook, sys.unraisablehook = sys.unraisablehook, again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for signum, handler in before.items():
            signal.signal(signum, handler)
