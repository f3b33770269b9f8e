"""The base class of all gates: a module that gives xi, the factor on each head's output.   Letters: B batch,
H heads, L query positions, N heads of all sites."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .blocks import lowest_in_blocks, rounded_up


def hard_top_k(scores: Tensor, k: int) -> Tensor:
    """1 for the k highest scores, the earlier of equal ones, 0 for the others, (N,)."""
    chosen = torch.zeros_like(scores)
    chosen[scores.argsort(descending=True, stable=True)[:k]] = 1
    return chosen


def as_row(start: float | Tensor, heads: int) -> Tensor:
    """Where gates start, a number or (H,), as a row (H,) in float32, whatever torch's default is."""
    return torch.as_tensor(start, dtype=torch.float32).expand(heads).clone()


class HeadGate(nn.Module):
    """A gate on the H heads of one site. A learned kind writes `sample` and `test_value`, or `sample_peers`
    where sites depend on each other.

    While training, one sample serves all sites and every forward pass, until its backward pass or the next
    `sample_step`. peers: the gates of all sites in the bank's order, this one among them (a gate without a
    bank is its only peer). xi: Michel's name for the factor; Louizos writes z, Voita g; z here is a head's
    output."""

    given = False  # True where xi comes from outside: nothing to sample, to learn or to binarise
    learned = ""  # the name of a learned kind's parameter (H,)
    target_heads: int | None = None  # heads that stay open over all peers, None where gates find the number
    keeps_target = False  # True where every sample has the target number open, so that no price leads to it
    multiple = 1  # as many stay open as a multiple of it says, or all
    fixed: Tensor | None  # xi while binarised

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads
        self.peers: Sequence[HeadGate] = [self]
        self.register_buffer("fixed", None, persistent=False)
        self.sampled: Tensor | None = None  # xi of this training step, with its graph
        self.samples = 0  # training steps that were sampled for
        self.reached = False  # whether the loss of any forward pass has given xi a gradient

    def forward(self, rows: Tensor | None = None, span: tuple[int, int] | None = None) -> Tensor:
        """xi, of shape (H,), (B, H) or (B, H, L).

        A gate that differs by sentence is asked for `rows` (N,), the sentence of each row of the batch (beams
        of one sentence share its gate); one that differs by position for those of `span` (start, length).
        Gates of shape (H,) need none of it."""
        if self.fixed is not None:
            return self.fixed
        return self.training_value() if self.training else self.test_value()

    def join(self, peers: Sequence["HeadGate"]) -> None:
        """Become one of these gates, which are sampled together. Raises ValueError where they are fewer than
        the target."""
        total = sum(peer.heads for peer in peers)
        if self.target_heads is not None and not 0 <= self.target_heads <= total:
            raise ValueError(
                f"target_heads: expected 0 to {total}, the number of gates that share it, got "
                f"{self.target_heads}"
            )
        self.peers = peers

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "HeadGate":
        """Gates keep their precision where the model is cast: in bfloat16 a log_alpha of 2.5 cannot hold a
        step below 0.008. xi is cast where it multiplies."""

        def moved(tensor: Tensor) -> Tensor:
            there = fn(tensor)
            return there if there.dtype == tensor.dtype else tensor.to(there.device)

        super()._apply(moved, recurse)
        return self

    # ---------------------------------------------------------------- in training

    def sample(self) -> Tensor:
        """xi (H,) in [0, 1] with fresh noise; its gradient reaches the parameters."""
        raise NotImplementedError(
            f"{type(self).__name__} must say how xi is sampled, in `sample` or in `sample_peers`"
        )

    @classmethod
    def sample_peers(cls, gates: Sequence["HeadGate"]) -> list[Tensor]:
        """xi of every gate for one training step, (H,) each: each gate's own sample, unless a kind samples
        over all sites together."""
        return [gate.sample() for gate in gates]

    def sample_step(self, *, again: bool = False) -> None:
        """Sample xi anew for all peers. Does nothing where xi is given or binarised.

        again: for more of the same step's batch, after the same seed: it does not count as one more."""
        if self.given or self.binarised:
            return
        for gate in self.peers if again else ():
            gate.count(-1)
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
        ):  # the next pass that uses the sample may be one that learns
            rows = type(self).sample_peers(self.peers)
        for gate, xi in zip(self.peers, rows, strict=True):
            gate.count(1)
            gate.remember(xi)

    def count(self, steps: int) -> None:
        """So many more training steps were sampled for."""
        self.samples += steps

    def remember(self, xi: Tensor) -> None:
        """Keep the sampled xi until its gradient is there: the graph behind it serves one backward pass."""
        self.sampled, gate = xi, weakref.ref(self)

        def forget(gradient: Tensor | None) -> None:
            if (holder := gate()) is not None:
                holder.sampled, holder.reached = None, holder.reached or gradient is not None

        if xi.requires_grad:
            xi.register_hook(forget)

    def training_value(self) -> Tensor:
        """xi of this step's sample, (H,)."""
        if self.sampled is None:
            self.sample_step()
        assert self.sampled is not None  # sample_step leaves one for every peer
        return self.sampled

    def binarise(self, on: bool = True) -> None:
        """From now on xi is the decision as it is now, 0 or 1, in training too, and gives the parameters no
        gradient; `on=False` takes that back.

        Raises ValueError where xi is given."""
        if self.given:
            raise ValueError(
                f"binarise needs learned gates, those of a {type(self).__name__} are given; assign 0 and 1"
            )
        self.fixed = self.exact().float() if on else None

    @property
    def binarised(self) -> bool:
        return self.fixed is not None

    # ---------------------------------------------------------------- without noise

    def test_value(self) -> Tensor:
        """xi at test time, (H,), in [0, 1], without noise."""
        raise NotImplementedError(f"{type(self).__name__} must say what xi is at test time")

    def open_prob(self) -> Tensor:
        """P(xi > 0), (H,)."""
        return (self.test_value() > 0).float()

    def penalty(self) -> Tensor:
        """Expected number of open heads, a scalar in [0, H]."""
        return self.open_prob().sum()

    def decision(self) -> Tensor:
        """True where the head stays by its own gate, (H,) bool."""
        return self.test_value() > 0.5

    def exact(self) -> Tensor:
        """True where the head stays when the gate is made exactly 0 or 1, (H,) bool: where `decision` says so
        and, up to a multiple of `multiple`, the next highest."""
        with torch.no_grad():
            opened = self.decision()
            return opened if self.multiple == 1 else rounded_up(opened, self.position(), self.multiple)

    def is_among_highest(self, count: int) -> Tensor:
        """True for those of its heads that stand among the `count` highest positions of all peers, (H,)
        bool; where they close in blocks (`multiple`) and `count` falls into one, that one stays."""
        positions = [peer.position() for peer in self.peers]
        multiples = [peer.multiple for peer in self.peers]
        if max(multiples) > 1:
            closed = lowest_in_blocks(positions, sum(map(len, positions)) - count, multiples)
            return ~dict(zip(self.peers, closed, strict=True))[self]
        chosen = hard_top_k(torch.cat(positions), count)
        rows = dict(zip(self.peers, chosen.split([peer.heads for peer in self.peers]), strict=True))
        return rows[self].bool()

    def position(self) -> Tensor:
        """Where each gate stands between closed and open, (H,): its parameter, or xi where it has none."""
        return getattr(self, self.learned).detach() if self.learned else self.test_value()

    def numbers(self) -> dict[str, Tensor]:
        """What `gates.json` holds of this gate, each (H,)."""
        with torch.no_grad():
            own = {self.learned: self.position()} if self.learned else {}
            return {
                **own,
                "open_prob": self.open_prob(),
                "value": self.test_value(),
                "open": self.exact(),
            }

    def __getstate__(self) -> dict[str, Any]:
        # a copy samples for itself: a tensor with a graph cannot be copied
        return {**self.__dict__, "sampled": None}
