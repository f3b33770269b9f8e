"""The base class of all gates: a module that gives xi, the factor on each head's output.   Letters: B batch,
H heads, L query positions."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class HeadGate(nn.Module):
    """A gate on the H heads of one site. A learned kind writes `sample` and `test_value`, or `draw` where
    sites depend on each other.

    While training, one draw serves all sites and every forward pass, until its backward pass or the next
    `redraw`. peers: the gates of all sites in the bank's order, this one among them (a gate without a bank is
    its only peer). xi: Michel's name for the factor; Louizos writes z, Voita g; z here is a head's output."""

    given = False  # True for a kind whose xi is given from outside: nothing to draw, to learn or to binarise

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads
        self.peers: Sequence[HeadGate] = [self]
        self.binarised = False
        self.drawn: Tensor | None = None  # xi of this training step, with its graph
        self.draws = 0
        self.asked = False  # whether any forward pass has asked for xi

    def forward(self, rows: Tensor | None = None, span: tuple[int, int] | None = None) -> Tensor:
        """xi, of shape (H,), (B, H) or (B, H, L).

        A gate that differs by sentence is asked for `rows` (N,), the sentence of each row of the batch (beams
        of one sentence share its gate); one that differs by position for those of `span` (start, length).
        Gates of shape (H,) need none
        of it."""
        self.asked = True
        if self.binarised:
            return self.decision().float()
        return self.training_value() if self.training else self.test_value()

    @classmethod
    def draw(cls, gates: Sequence["HeadGate"]) -> list[Tensor]:
        """xi of every gate for one training step, (H,) each: each gate's own sample, unless a kind draws over
        all sites together."""
        return [gate.sample() for gate in gates]

    def sample(self) -> Tensor:
        """xi (H,) in [0, 1] with fresh noise; its gradient reaches the parameters."""
        raise NotImplementedError(f"{type(self).__name__} must say how xi is drawn, in `sample` or in `draw`")

    def join(self, peers: Sequence["HeadGate"]) -> None:
        """Become one of these gates, which are drawn together. Raises ValueError where they cannot be what
        this one was told."""
        self.peers = peers

    def is_among_highest(self, count: int) -> Tensor:
        """True for those of its heads that stand among the `count` highest positions of all peers, the
        earlier of equal ones, (H,) bool."""
        positions = torch.cat([peer.position().detach() for peer in self.peers])
        chosen = torch.zeros(len(positions), dtype=torch.bool, device=positions.device)
        chosen[positions.argsort(descending=True, stable=True)[:count]] = True
        begin = 0
        for peer in self.peers:
            if peer is self:
                break
            begin += peer.heads
        return chosen[begin : begin + self.heads]

    @property
    def is_annealing(self) -> bool:
        """Whether its draws still change of themselves, so that its decisions are not yet to be trusted."""
        return False

    def redraw(self) -> None:
        """Draw xi anew for all peers. Does nothing where xi is given or binarised."""
        if self.given or self.binarised:
            return
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
        ):  # the next pass that uses the draw may be one that learns
            drawn = type(self).draw(self.peers)
        for gate, xi in zip(self.peers, drawn, strict=True):
            gate.keep(xi)

    def keep(self, xi: Tensor) -> None:
        """Hold the drawn xi until its gradient is there: the graph behind it serves one backward pass."""
        self.drawn, self.draws, gate = xi, self.draws + 1, weakref.ref(self)

        def forget(_: Tensor) -> None:
            if (holder := gate()) is not None:
                holder.drawn = None

        if xi.requires_grad:
            xi.register_hook(forget)

    def uncount(self) -> None:
        """Take the last draw out of the count, before the same one is drawn again for more of its step's
        batch."""
        self.draws = max(0, self.draws - 1)

    def training_value(self) -> Tensor:
        """xi of this step's draw, (H,)."""
        if self.drawn is None:
            self.redraw()
        assert self.drawn is not None  # redraw keeps one for every peer
        return self.drawn

    def binarise(self, on: bool = True) -> None:
        """From now on xi is the decision, 0 or 1, in training too, and gives the parameters no gradient;
        `on=False` takes that back.

        Raises ValueError where xi is given."""
        if self.given:
            raise ValueError(
                f"binarise needs learned gates, those of a {type(self).__name__} are given; assign 0 and 1"
            )
        self.binarised = on

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
        """True where the head stays when the gate is made exactly 0 or 1, (H,) bool."""
        return self.test_value() > 0.5

    def position(self) -> Tensor:
        """Where each gate stands between shut and open, (H,), as the history of a training shows it: xi at
        test time, unless a kind has a number that says more."""
        return self.test_value()

    def numbers(self) -> dict[str, Tensor]:
        """What `gates.json` holds of this gate, each (H,)."""
        with torch.no_grad():
            return {"open_prob": self.open_prob(), "value": self.test_value(), "open": self.decision()}

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "drawn": None,
        }  # a copy draws for itself: a tensor with a graph cannot be copied


def check_open_heads(open_heads: int | None, peers: Sequence[HeadGate]) -> None:
    """Raises ValueError where the number of heads that stay open is below 0 or above that of the gates."""
    total = sum(peer.heads for peer in peers)
    if open_heads is not None and not 0 <= open_heads <= total:
        raise ValueError(
            f"open_heads: expected 0 to {total}, the number of gates that share it, got {open_heads}"
        )
