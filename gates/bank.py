"""All the gates of a model, as one module: what `attach` returns."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .base import HeadGate
from .headmap import HeadMap, HeadSite, is_of, write_json
from .mask import HeadMask

ENOUGH_STEPS = 20  # LayerDrop skips a layer of a probability of 0.3 in all of them once in 3e10 runs


class GateBank(nn.Module):
    """Site -> gate. While attached it is a submodule of the model, so `.to()`, distributed training and
    trainers see it.

    While training, one sample of xi serves all sites and all forward passes up to its backward pass. A
    forward pass of the model samples where that is missing; who calls parts of the model instead (its
    encoder, say) calls `sample()` at each training step."""

    def __init__(
        self,
        gates: Mapping[HeadSite, HeadGate],
        kind: str,
        model: nn.Module,
        *,
        groups: Mapping[HeadSite, str] | None = None,
        prices: Mapping[HeadSite, float] | None = None,
    ):
        """groups: site -> the name of its group; the gates of each are sampled, and have a target number of
        heads, for themselves. prices: site -> what one of its heads counts in `penalty`, 1 unless given.

        Raises ValueError where the target is more heads than there are."""
        super().__init__()
        self.kind = kind
        self.budget: Any = None  # the LambdaBudget or TargetBudget of `loss`, where `attach` was given one
        self.move = False  # whether an optimizer is known to hold the gates
        self._first: tuple[int, list[tuple[Tensor, Tensor]]] | None = None  # step of `loss`, gates and a copy
        self.handle: RemovableHandle | None = None  # of the model's forward pre-hook, while attached
        self.keeps_inputs = False  # whether `inputs` are those of the model's last forward pass
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.padded: list[Any] = []  # encoders that give their layers nested tensors without gates
        self._model = [model]  # in a list: the bank is a submodule of the model, not the other way round
        self.sites = tuple(sorted(gates))
        # module names may not hold a dot
        self.gates = nn.ModuleDict({site.name.replace(".", "/"): gates[site] for site in self.sites})
        self.prices = {site: (prices or {}).get(site, 1.0) for site in self.sites}
        self.groups: dict[str, list[HeadGate]] = {}  # name -> gates that are sampled together
        for site, gate in self.items():
            self.groups.setdefault((groups or {}).get(site, ""), []).append(gate)
        for peers in self.groups.values():
            for gate in peers:
                gate.join(peers)

    def forward(self, x: Any) -> Any:
        """What it is given, as an `nn.Sequential` calls all its submodules, the bank too."""
        return x

    def items(self) -> Iterator[tuple[HeadSite, HeadGate]]:
        for site, gate in zip(self.sites, self.gates.values(), strict=True):
            assert isinstance(gate, HeadGate)
            yield site, gate

    def sample(self, *, again: bool = False) -> None:
        """Sample xi of all sites anew, for one training step. Does nothing on masks and binarised gates.

        again: for another part of the same step's batch, after the same seed: it does not count as one
        more."""
        for peers in self.groups.values():
            peers[0].sample_step(again=again)

    def before_forward(self, model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """The model's forward pre-hook while attached. Raises ValueError where attention weights are asked of
        a kernel that has none."""
        kernel = getattr(getattr(model, "config", None), "_attn_implementation", None)
        can_change = getattr(model, "_can_set_attn_implementation", bool)  # Falcon cannot, and needs not
        if options.get("output_attentions") and kernel not in (None, "eager") and can_change():
            raise ValueError(
                f"output_attentions=True, but the attention kernel {kernel!r} keeps no weights and Hugging "
                "Face would return none; call model.set_attn_implementation('eager') first"
            )
        if self.keeps_inputs:
            self.inputs = args, dict(options)
        if self.training and not all(
            gate.sampled is not None and gate.sampled.requires_grad for _, gate in self.items()
        ):
            self.sample()

    def penalty(self, kind: str = "") -> Tensor:
        """Expected number of open heads over all gated sites, or those of a kind or of a word for several: a
        scalar with a gradient, unit: heads. A neuron counts as the part of a head that `prices` says
        (prices.py).

        Raises what `cost` does."""
        return self.cost({site: self.prices[site] for site in self.sites if is_of(site.kind, kind)})

    def cost(self, price: Mapping[HeadSite, float]) -> Tensor:
        """Expected cost of what is open, a scalar with a gradient, in the unit of the prices. price: site ->
        the cost of one of its heads or neurons; sites that it lacks cost nothing.

        Raises ValueError after some training steps in which the loss gave some learned gate no gradient."""
        if missed := self.unreached():
            raise ValueError(
                f"the loss has not reached the gates of {', '.join(missed)} in {ENOUGH_STEPS} steps: the "
                "penalty alone would close them all. Leave sites out (kinds=...) that training does not run, "
                "or runs without gradients (torch.no_grad, detach) or in evaluation mode; an attention whose "
                "forward does not multiply by its slot needs mode='hook' or mode='weight' in its SiteRule"
            )
        # a gate may be shared by the heads of one key head
        rows = [
            gate.penalty() * (site.heads // gate.heads * price[site])
            for site, gate in self.items()
            if site in price
        ]
        return torch.stack(rows).sum()

    def loss(self, step: int) -> Tensor:
        """What the training loss grows by at optimiser step `step`, counted from 0, in the unit of the loss:
        the penalty times lambda, or what leads to the numbers of heads and neurons that `attach` was given; 0
        once the gates are binarised. Every micro-batch of a step may ask for it.

        Warns once, after some steps, if no gate has moved. Raises ValueError where `attach` was given
        neither, and what `cost` does."""
        if self.budget is None:
            raise ValueError(
                "nothing says how many heads stay: give attach(..., heads=24) or lam=0.01, or add lam * "
                "bank.penalty() to the loss"
            )
        if all(gate.binarised for _, gate in self.items()):
            return self.penalty().detach() * 0
        if not self.move:
            self.look_for_moves(step)
        price: Tensor = self.budget.loss(self, step)
        return price

    def look_for_moves(self, step: int) -> None:
        """Warn where all gates are, some steps after the first, what they were at the first."""
        if self._first is None:
            learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
            self._first = step, [(gate, gate.detach().clone()) for gate in learned]
        begin, gates = self._first
        if step < begin + ENOUGH_STEPS:
            return
        self.move, self._first = True, None  # it is said once
        if gates and all(torch.equal(now, before.to(now.device)) for now, before in gates):
            warnings.warn(
                f"no gate has moved in {step - begin} steps, so the optimizer does not hold the gates: make "
                "it after attach, of bank.param_groups(lr=...). In a Trainer, hg.hf.HeadGates or "
                "hg.lightning.HeadGates trains them",
                stacklevel=3,
            )

    def unreached(self) -> list[str]:
        """The sites of learned gates to which no loss gave a gradient, in so many steps that no chance, as of
        LayerDrop, left them out."""
        return [
            site.name
            for site, gate in self.items()
            if gate.samples > ENOUGH_STEPS
            and not (gate.reached or gate.binarised)
            and any(parameter.requires_grad for parameter in gate.parameters())
        ]

    def __repr__(self) -> str:
        """One line: how many heads and neurons there are, and how many are open."""
        differ = any(isinstance(gate, HeadMask) and gate.xi.dim() > 1 for _, gate in self.items())
        gates = sum(site.heads for site in self.sites)
        said = f"{gates:,} gates by sentence" if differ else f"{self.open().words} open"
        return f"GateBank({self.kind}: {said})"

    def summary(self) -> str:
        """How many heads and neurons stay in each layer, such as "8 of 24 heads, 26 of 52 neurons (enc-self 3
        0 1, cross 4 0 0, enc-ffn 20 6)"."""
        opened, rows = self.open(), dict[str, list[str]]()
        for site, row in opened.items():
            rows.setdefault(site.kind, []).append(str(int(row.sum())))
        by_layer = ", ".join(" ".join([kind, *counts]) for kind, counts in rows.items())
        return f"{opened.words} ({by_layer})"

    def _map(self, method: str) -> HeadMap:
        with torch.no_grad():
            return HeadMap({site: by_head(site, getattr(gate, method)()) for site, gate in self.items()})

    def cost_of(self, opened: HeadMap) -> float:
        """What heads cost that are open with these probabilities, in heads, by `prices`."""
        return HeadMap({site: row * self.prices[site] for site, row in opened.items()}).sum()

    def values(self) -> HeadMap:
        """xi at test time."""
        return self._map("test_value")

    def open_prob(self) -> HeadMap:
        """P(xi > 0)."""
        return self._map("open_prob")

    def open(self) -> HeadMap:
        """True where the head stays once the gates are made exactly 0 or 1."""
        return self._map("exact")

    def closed(self) -> HeadMap:
        """True where the head goes once the gates are made exactly 0 or 1."""
        return ~self.open()

    def binarise(self, on: bool = True) -> None:
        """Make learned gates exactly 0 or 1, in training too; `on=False` gives them their soft values back.
        Raises ValueError on masks."""
        for _, gate in self.items():
            gate.binarise(on)

    def assign(self, xi: Mapping[HeadSite, Any]) -> None:
        """Give the masks of a bank of `gate="mask"` new values; sites not named stay as they are."""
        gates = dict(self.items())
        for site, row in xi.items():
            gate = gates.get(site)
            if gate is None:
                raise ValueError(
                    f"these gates have no site {site.name} of {site.heads} heads; known: "
                    f"{[own.name for own in gates]}"
                )
            if not isinstance(gate, HeadMask):
                raise ValueError(f"assign needs gates of kind 'mask', these are {self.kind!r}")
            gate.assign(row)

    def param_groups(
        self, *, lr: float, gate_lr: float = 0.05, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        """Two optimiser groups, the model's weights and the gates (no weight decay), no parameter twice,
        frozen ones left out."""
        model: dict[str, Any] = {"params": [], "lr": lr, "weight_decay": weight_decay, "name": "model"}
        gates: dict[str, Any] = {"params": [], "lr": gate_lr, "weight_decay": 0.0, "name": "gates"}
        mine = set(self.parameters())
        for parameter in self._model[0].parameters():
            if parameter.requires_grad:
                (gates if parameter in mine else model)["params"].append(parameter)
        return [group for group in (model, gates) if group["params"]]

    def to_json(self) -> dict[str, Any]:
        """Per site and head: log_alpha (of learned gates), open_prob, value, open."""
        sites = {}
        for site, gate in self.items():
            columns = {name: by_head(site, column).tolist() for name, column in gate.numbers().items()}
            sites[site.name] = [
                {"head": head, **{name: column[head] for name, column in columns.items()}}
                for head in range(site.heads)
            ]
        return {"gate": self.kind, "sites": sites}

    def save(self, path: str | Path) -> None:
        write_json(path, {"version": 1, **self.to_json()})


def by_head(site: HeadSite, row: Tensor) -> Tensor:
    """(H,) from a number for each gate, one of which several heads in a row may share."""
    return row.repeat_interleave(site.heads // len(row))
