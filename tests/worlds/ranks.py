"""Work done by several ranks of this machine, joined by gloo as the processes of a run are, and whole
commands of ranks. They are forks of one process, which imports torch and Lightning once."""

import os
import pickle
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMPORTED = ("commands.fit", "commands.prune", "pruning.grid", "report.compared")


def forks() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.worlds.rank_jobs", *(f"headgates.{name}" for name in IMPORTED)])
    return context


def on_ranks(
    work: Callable[..., Any], ranks: int, *arguments: Any, within: float = 600, crashes: int = 0
) -> list[Any]:
    """What `work(*arguments)` returns on each of so many ranks. Ranks that have not ended after `within`
    seconds are killed.

    crashes: how often all is done again after a segmentation fault, which is torch's own."""
    context = forks()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        places = [Path(folder) / str(rank) for rank in range(ranks)]
        processes = [
            context.Process(target=one_rank, args=(rank, ranks, port, places[rank], work, arguments))
            for rank in range(ranks)
        ]
        try:
            for process in processes:
                process.start()
            until = time.monotonic() + within
            for process in processes:
                process.join(max(0.0, until - time.monotonic()))
            codes = [process.exitcode for process in processes]
            if -signal.SIGSEGV in codes and crashes:
                return on_ranks(work, ranks, *arguments, within=within, crashes=crashes - 1)
            assert codes == [0] * ranks
            return [pickle.loads(place.read_bytes()) for place in places]
        finally:
            for process in processes:
                if process.pid is not None and process.is_alive():
                    os.kill(process.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_rank(
    rank: int, ranks: int, port: int, place: Path, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
    }
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=timedelta(seconds=300))
    place.write_bytes(pickle.dumps(work(*arguments)))
    dist.barrier()
    dist.destroy_process_group()


# ---------------------------------------------------------------- whole commands


class Command:
    """A script's command by so many ranks, which find what torchrun gives them in the environment; by one
    rank it is as typed. of_node: ranks of a node. folder: where what each rank says goes. more: of the
    environment."""

    def __init__(self, words: list[str], folder: Path, ranks: int = 1, of_node: int = 0, **more: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.places = [folder / str(rank) for rank in range(ranks)]
        environment, port, of_node = {**os.environ, **more}, free_port(), of_node or ranks
        self.processes: list[BaseProcess] = []
        for rank, place in enumerate(self.places):
            torchrun = {
                "TORCHELASTIC_RUN_ID": folder.name,
                "RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_RANK": rank % of_node,
                "LOCAL_WORLD_SIZE": of_node,
                "GROUP_RANK": rank // of_node,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            given = environment | {name: str(value) for name, value in torchrun.items() if ranks > 1}
            self.processes.append(forks().Process(target=one_command, args=(words, place, given)))
            self.processes[-1].start()

    def running(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def end(self, within: float = 540) -> list[tuple[int | None, str, str]]:
        """Exit code, stdout and stderr of each rank; what still runs after `within` seconds is killed."""
        until = time.monotonic() + within
        try:
            for process in self.processes:
                process.join(max(0.0, until - time.monotonic()))
        finally:
            self.kill()
        said = [[Path(f"{place}.{name}").read_text() for name in ("out", "err")] for place in self.places]
        return [(process.exitcode, *each) for process, each in zip(self.processes, said, strict=True)]


def one_command(words: list[str], place: Path, environment: dict[str, str]) -> None:
    """It ends without a word to what the script leaves: torch waits for ever, with Python's lock, for the
    thread of a group of ranks that is let go of while the thread asks for that lock."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{place}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.environ.clear()
    os.environ |= environment | {"OMP_NUM_THREADS": "1"}  # for the ranks that Lightning starts too
    os.chdir(ROOT)
    sys.argv, code = words, 0
    try:
        _left = runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
