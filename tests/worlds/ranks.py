"""Work done by several ranks of this machine, joined by gloo as the processes of a run are."""

import os
import pickle
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def on_ranks(
    work: Callable[..., Any], ranks: int, *arguments: Any, within: float = 600, crashes: int = 0
) -> list[Any]:
    """What `work(*arguments)` returns on each of so many ranks. Ranks that have not ended after `within`
    seconds are killed.

    crashes: how often all is done again after a segmentation fault, which is torch's own."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.worlds.rank_jobs"])  # torch and Lightning are imported once
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
