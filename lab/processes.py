"""The processes that make one run together are started, or found started, here: by --devices, by torchrun, or
by SLURM's srun.

--devices N starts this command N - 1 times more (Lightning's script launcher): each process reads the
configuration for itself, and none is handed a pickled model. What they tell each other afterwards is in
data/ranks.py.
"""

import atexit
import os
import sys
import threading
import time
import warnings
from datetime import timedelta
from typing import Any, TextIO
from uuid import uuid4

from headgates.configs.fields import one_line
from headgates.data.ranks import gathered, group, is_first, wait

RANK_PATIENCE = timedelta(
    days=7
)  # for the first rank, which may wait for another command's run; a process that ends is noticed at once
MEETING = timedelta(minutes=5)  # in which all processes of a run have to start
PORTS = range(10_000, 32_000)  # below those that systems give to connections of their own
_silenced: list[TextIO] = []  # the streams of a process that has been silenced


def launched() -> tuple[int, int] | None:
    """(processes a node, nodes) of torchrun, which has started them all; None elsewhere."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    ranks, of_node = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if ranks % of_node:
        raise ValueError(
            f"torchrun started {of_node} processes here and {ranks} in all; give each node as many "
            f"(--nproc-per-node)"
        )
    return of_node, ranks // of_node


def silence_others() -> None:
    """Silence a process that torchrun or the script launcher started beside the first: all of them
    read the same flags, and say the same of them."""
    number = os.environ.get("RANK" if "TORCHELASTIC_RUN_ID" in os.environ else "LOCAL_RANK", "0")
    if number != "0" and not _silenced:
        _silenced.extend((sys.stdout, sys.stderr))
        sys.stdout, sys.stderr = open(os.devnull, "w"), open(os.devnull, "w")  # noqa: SIM115  # until the process ends


def join(devices: int = 1, nodes: int = 1) -> tuple[int, int]:
    """Become one of the ranks of a run: start the others, or wait for them where something else started them.
    Returns the processes of a node and the nodes as they are; a process alone returns at once.

    Raises ValueError where they contradict what was started, or are more than the machine has."""
    started = launched()
    if started is not None:
        if (devices, nodes) != (1, 1) and (devices, nodes) != started:
            raise ValueError(
                f"torchrun started {started[0]} processes on each of {started[1]} nodes, and --devices "
                f"{devices} --num-nodes {nodes} asks "
                "for another number; leave them out"
            )
        devices, nodes = started
    if devices * nodes == 1:
        if _silenced:  # by a number that something else has left in the environment
            sys.stdout, sys.stderr = _silenced
        return 1, 1
    os.environ.setdefault(
        "TORCH_CPP_LOG_LEVEL", "FATAL"
    )  # it warns of gates without a gradient, which are looked for on purpose; its errors are raised too
    check_machine(devices, nodes)
    import torch  # seconds, and a process alone need not wait for them here
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy

    from headgates.lightning_modules.stage import quiet_lightning

    quiet_lightning()
    cuda = torch.cuda.is_available()
    # numbers on the CPU too: ranks send each other files and decisions by them
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    strategy = DDPStrategy(process_group_backend=backend, timeout=MEETING)
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu", devices=devices, num_nodes=nodes, strategy=strategy
    )
    if started is not None or os.environ.get("LOCAL_RANK", "0") != "0":
        threading.Thread(target=end_after, args=[os.getppid()], daemon=True).start()
    own_port()
    os.environ.setdefault("HEADGATES_COMMAND", uuid4().hex)  # the processes that this one starts have it too
    try:
        fabric.launch()
        meet(torch.distributed)
    except RuntimeError as error:
        for process in getattr(fabric.strategy.launcher, "procs", []):
            process.kill()  # it may wait for an answer of whatever has the port
        if _silenced:
            sys.stdout, sys.stderr = _silenced
        place = f"{os.environ.get('MASTER_ADDR', 'this machine')}:{os.environ.get('MASTER_PORT', '?')}"
        raise ValueError(
            f"the {devices * nodes} processes of this run did not meet at {place} ({one_line(error)}); is "
            f"the port taken, or did one not start within {MEETING}? MASTER_PORT takes another port"
        ) from error
    if not is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
        warnings.showwarning = lambda *_, **__: None
    if _silenced:
        sys.stderr = _silenced[1]  # from now on one rank reports an error (speaks_first)
    return devices, nodes


def own_port() -> None:
    """In a job of SLURM, whose processes cannot tell each other a port before they meet, take one that jobs
    near in number do not take; Lightning's is that of every ten-thousandth job, and of all steps of one."""
    job, step = (os.environ.get(f"SLURM_{name}", "") for name in ("JOB_ID", "STEP_ID"))
    if job.isdecimal() and "MASTER_PORT" not in os.environ:
        number = 8 * int(job) + (int(step) % 8 if step.isdecimal() else 0)
        os.environ["MASTER_PORT"] = str(PORTS[number % len(PORTS)])


def meet(distributed: Any) -> None:
    """Make sure that those who met are of one command, and let them wait for each other as long as it takes.
    Raises RuntimeError where a process of another command came to the same port."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")
    ours = [os.environ.get(name) for name in names if name in os.environ]
    ours = ours or [os.environ["HEADGATES_COMMAND"]]
    if any(theirs != ours for theirs in gathered(ours)):
        raise RuntimeError("a process of another command came in place of one of these")
    distributed.distributed_c10d._set_pg_timeout(RANK_PATIENCE)


def check_machine(devices: int, nodes: int) -> None:
    """Raises ValueError where this machine has fewer GPUs (without any: cores) than processes, or nobody
    starts the other nodes'."""
    import torch

    gpus, cores = torch.cuda.device_count(), os.cpu_count() or 1
    if devices > (gpus or cores):
        has = f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else f"no GPU and {cores} CPU core{'s' * (cores != 1)}"
        raise ValueError(
            f"--devices {devices}: expected at most one process for each GPU, or CPU core without any; "
            f"this machine has {has}"
        )
    if launched() is not None:
        return
    by_srun = (
        os.environ.get("SLURM_NTASKS")
        if os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")
        else None
    )
    if by_srun is not None and int(by_srun) != devices * nodes:
        raise ValueError(
            f"--devices {devices} --num-nodes {nodes}: expected {devices * nodes} SLURM tasks, got "
            f"{by_srun}; give the same numbers to "
            "--ntasks-per-node and --nodes, and start the command by srun"
        )
    if nodes > 1 and by_srun is None and "NODE_RANK" not in os.environ:
        raise ValueError(
            f"--num-nodes {nodes}: start the command on every node, by torchrun or srun "
            f"(docs/many-processes.md)"
        )


def leave(code: int) -> None:
    """Wait for the other ranks at the end of a command, so that all end together, and end this process at
    once; a process alone returns.

    What FSDP made refers to gloo's groups, whose threads let go of tensors when they like: one that does so
    while the interpreter shuts down aborts the process."""
    joined = group()
    if joined is None:
        return
    wait()
    joined.destroy_process_group()
    atexit._run_exitfuncs()  # loggers' among them
    for stream in (sys.stdout, sys.stderr, *_silenced):
        stream.flush()
    os._exit(code)


def end_after(parent: int) -> None:
    """End this process once the one that started it has ended, however: it would go on, watched by nobody."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
