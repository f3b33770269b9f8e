"""Gates in Hugging Face's Trainer.

trainer = Trainer(model, args, train_dataset=..., callbacks=[hg.hf.HeadGates(heads=24, save="pruned")])
trainer.train()          # afterwards the model has 24 heads
"""

import base64
import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from .callback import GateCallback

try:
    from accelerate.state import AcceleratorState
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        f"hg.hf needs transformers and accelerate ({error}): pip install 'headgates[hf]', in a checkout pip "
        "install '.[hf]'",
        name=error.name,
    ) from None


class HeadGates(GateCallback, TrainerCallback, ExportableState):
    """A callback of `Trainer` that learns which heads and neurons stay, and removes the others at the end of
    the training. Options, and what it has afterwards: `GateCallback`.

    Checkpoints hold the gates: a training that is resumed from one goes on as if it had never stopped. With
    `load_best_model_at_end` the gates of the best checkpoint decide. Raises ValueError in a training by
    DeepSpeed, FSDP or DataParallel, and at a checkpoint of other gates."""

    memory: str | None = None  # of a checkpoint that is resumed from
    refit_is_lost = False  # in a callback that Trainer has made from a checkpoint

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        # what `accelerate launch` starts, of which the arguments say nothing
        launched = getattr(AcceleratorState._shared_state.get("distributed_type"), "value", None)
        if args.deepspeed or args.fsdp or args.n_gpu > 1 or launched in ("FSDP", "DEEPSPEED"):
            raise ValueError(
                "HeadGates trains in one process, or in several by DistributedDataParallel (torchrun); not "
                "with DeepSpeed, FSDP or DataParallel"
            )
        if self.refit_is_lost:
            warnings.warn(
                "checkpoints do not hold the batches of refit=, so nothing will be refitted. Leave out "
                "restore_callback_states_from_checkpoint: HeadGates goes on without it",
                stacklevel=2,
            )
        self.put_on(model, seed=args.seed)
        kept = state.stateful_callbacks.get(type(self).__name__, {})
        memory = kept.get("attributes", {}).get("memory") if isinstance(kept, dict) else None
        if state.global_step and memory is not None:
            content = read_memory(memory)
            try:
                self.bank.load_state_dict(content["bank"])
                self.gates.load_state_dict(content["gates"])
            except (RuntimeError, ValueError) as error:
                then, now = (
                    ", ".join(
                        f"{name}={own[name]}"
                        for name in ("heads", "neurons", "lam", "kinds")
                        if own.get(name)
                    )
                    for own in (kept.get("args", {}), self.state()["args"])
                )
                raise ValueError(
                    f"the checkpoint holds gates of HeadGates({then}), this is HeadGates({now}); resume with "
                    "the former, or train anew"
                ) from error
        # gates that a checkpoint has not begin with the steps that are left
        self.begin(state.max_steps - (state.global_step if memory is None else 0))
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.gates.sample()

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self.gates.sample()  # for the next part of the step's batch

    def on_pre_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        self.before_step(getattr(optimizer, "scaler", None))

    def on_train_end(
        self, args: Any = None, state: Any = None, *_: Any, processing_class: Any = None, **__: Any
    ) -> None:
        best = getattr(state, "best_model_checkpoint", None)
        if getattr(args, "load_best_model_at_end", False) and best:
            self.take_gates_of(Path(best))
        self.end()
        if self.save is not None and processing_class is not None and state.is_world_process_zero:
            processing_class.save_pretrained(self.save)  # a tokenizer, or what stands in its place

    def take_gates_of(self, checkpoint: Path) -> None:
        """Gates go back to those of the checkpoint, whose weights Trainer has put back: of an adapter (LoRA)
        these alone."""
        path = checkpoint / "trainer_state.json"
        kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        own = kept.get("stateful_callbacks", {}).get(type(self).__name__, {})
        if isinstance(own, dict) and (memory := own.get("attributes", {}).get("memory")) is not None:
            self.bank.load_state_dict(read_memory(memory)["bank"])

    def state(self) -> dict[str, Any]:
        """What the trainer's checkpoints hold, as JSON. Batches of `refit` are not among it."""
        names = ("heads", "neurons", "lam", "warmup", "lr", "settle")
        args = {name: getattr(self, name) for name in names}
        args["kinds"] = list(self.kinds) if isinstance(self.kinds, tuple) else self.kinds
        args["save"] = None if self.save is None else str(self.save)
        memory = None
        if self.model is not None:
            file = io.BytesIO()
            torch.save({"bank": self.bank.state_dict(), "gates": self.gates.state_dict()}, file)
            memory = base64.b64encode(file.getvalue()).decode()
        attributes = {"memory": memory, "refit_is_lost": self.refit is not None}
        return {"args": args, "attributes": attributes}


def read_memory(memory: str) -> dict[str, Any]:
    """The states that `HeadGates.state` wrote."""
    content: dict[str, Any] = torch.load(io.BytesIO(base64.b64decode(memory)), weights_only=True)
    return content
