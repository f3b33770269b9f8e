"""Several processes that make one run together, a rank each: which of them this is, and what they tell each
other.

Every rank runs the same program and goes on with the same numbers. The first rank alone prints, and writes
files (data/atomic_file.py); what a file or a clock says is read by it and sent to the others (`first`). Work
is shared out, and its sums and lists are made over all ranks. A process alone is the first of one rank, and
none of this needs torch there.
"""

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
)  # what gloo and NCCL say
_alone = False  # while the first rank does what the others wait for


def processor_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_threads(asked: int = 0) -> int:
    """The threads that are asked for; for 0 as many as torch has, or would have if it were imported."""
    torch, given = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if asked or torch is not None:
        return asked or int(torch.get_num_threads())  # type: ignore[union-attr]
    return int(given) if given.isdigit() and int(given) else processor_cores()


def group() -> Any:
    """torch.distributed where it joins several processes, else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    joined = (
        not _alone and distributed is not None and distributed.is_available() and distributed.is_initialized()
    )
    return distributed if joined and distributed.get_world_size() > 1 else None


def world() -> int:
    """How many ranks there are."""
    joined = group()
    return 1 if joined is None else int(joined.get_world_size())


def rank() -> int:
    """The number of this rank, from 0."""
    joined = group()
    return 0 if joined is None else int(joined.get_rank())


def is_first() -> bool:
    return rank() == 0


def first(decide: Callable[[], T]) -> T:
    """What `decide` returns, which the first rank alone calls; the others wait, and get the same, or the same
    ValueError or OSError.

    Within it the first rank is alone: nothing that it calls waits for another."""
    joined = group()
    if joined is None:
        return decide()
    outcome: list[Any] = [None, None]  # answer, error
    if is_first():
        try:
            with alone():
                outcome[0] = decide()
        except (ValueError, OSError) as error:
            outcome[1] = sendable(error)
    joined.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    answer: T = outcome[0]
    return answer


def after_first(work: Callable[[], T]) -> T:
    """What `work` returns, on each rank for itself. The first rank is through before the others begin, so
    that they find the files that it leaves; they get its ValueError or OSError."""
    done: list[T] = []
    first(lambda: done.append(work()))
    return done[0] if done else work()


@contextmanager
def alone() -> Iterator[None]:
    """Within it this process is the first of one rank: it writes files, and waits for nobody."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def sendable(error: Exception) -> Exception:
    """The error itself, or one of its kind with its words where it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class does not bear
        return OSError(str(error)) if isinstance(error, OSError) else ValueError(str(error))
    return error


def wait() -> None:
    """Wait until every rank is here: what the first has written can be read, and what all have read can be
    removed."""
    gathered(None)


def share(items: Iterable[T]) -> Iterator[T]:
    """Every item that is this rank's: one of `world`, in turns."""
    return islice(items, rank(), None, world())


def shared_out(items: Sequence[T], work: Callable[[Sequence[T]], Sequence[Any]]) -> list[Any]:
    """One result for each item, in their order, on every rank: each calls `work` with its share of them, if
    it has any."""
    ranks = world()
    if ranks == 1:
        return list(work(items))
    mine = items[rank() :: ranks]
    parts = gathered(list(work(mine)) if len(mine) else [])
    return [parts[number % ranks][number // ranks] for number in range(len(items))]


def gathered(mine: T) -> list[T]:
    """What each rank gives, in their order, on every rank."""
    joined = group()
    if joined is None:
        return [mine]
    parts: list[Any] = [None] * world()
    joined.all_gather_object(parts, mine)
    return parts


def all_sum(tensor: "Tensor") -> "Tensor":
    """The sum of the ranks' tensors, of one shape; the tensor itself where there is one rank."""
    joined = group()
    if joined is None:
        return tensor
    total = tensor.detach().clone()
    joined.all_reduce(total)
    return total


def has_lost_another(error: Exception) -> bool:
    """Whether an error says that another rank has ended while this one waited for it."""
    return world() > 1 and isinstance(error, RuntimeError) and any(sign in str(error) for sign in GONE)


def speaks_first() -> bool:
    """Whether this rank is the first to report an error, so that one that all ranks meet is said once. A
    first rank that has ended has said why."""
    joined = group()
    if joined is None:
        return True
    try:
        return bool(joined.distributed_c10d._get_default_store().add("headgates/reported", 1) == 1)
    except (RuntimeError, ValueError):  # the store is the first rank's, and gone with it
        return is_first()
