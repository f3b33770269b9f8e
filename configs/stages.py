"""Settings of training: of the base, of what starts from it, of gates, and of learning from the base
itself."""

from dataclasses import dataclass, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Literal

from headgates.configs.fields import setting
from headgates.configs.learned import LEARNED


@dataclass(frozen=True)
class StageConfig:
    """Training of the base."""

    epochs: int = setting(7, "Passes over the training data.", at_least=1)
    optimizer: Literal["adamw", "muon"] = setting(
        "adamw", "What changes the weights; muon is for the hidden matrices, beside AdamW."
    )
    lr: float = setting(3e-3, "Peak learning rate of the model's weights.", above=0)
    muon_lr: float = setting(0.02, "Peak learning rate of Muon's matrices.", above=0)
    warmup_steps: int = setting(
        300, "Steps of linear warm-up before the inverse-square-root decay.", at_least=0
    )
    weight_decay: float = setting(
        0.0, "AdamW weight decay of the model's weights; gates have none.", at_least=0
    )
    clip: float = setting(1.0, "Largest gradient norm of the model's weights, 0 for none.", at_least=0)
    label_smoothing: float = setting(
        0.1, "Share of the target probability spread over the vocabulary.", at_least=0, below=1
    )
    accumulate: int = setting(1, "Batches of one optimiser step.", at_least=1)
    average: float = setting(
        0.99,
        "Decay of the weights' running average, which is validated and kept; 0 for none.",
        at_least=0,
        below=1,
    )
    bleu_sentences: int = setting(
        100, "Validation sentences translated (greedily) after each epoch, 0 for none.", at_least=0
    )


@dataclass(frozen=True)
class FinetuneConfig:
    """Training that starts from the base: with gates, after pruning, or of the base itself.

    What is not here is as in the base's own training."""

    lr: float = setting(8e-4, "Peak learning rate of the model's weights.", above=0)
    optimizer: Literal["adamw", "muon"] | None = setting(
        None,
        "What changes the weights: muon unless given; adamw for classifiers and with --strategy fsdp.",
        rare=True,
    )
    muon_lr: float = setting(0.02, "Peak learning rate of Muon's matrices.", above=0, rare=True)
    warmup_steps: int = setting(50, "Steps of linear warm-up.", at_least=0, rare=True)
    dropout: float | None = setting(
        None,
        "Dropout of the model while it trains on; default that of the base.",
        at_least=0,
        below=1,
        rare=True,
    )

    def stage(self, train: StageConfig, epochs: int, *, usual: Literal["adamw", "muon"]) -> StageConfig:
        """All settings of a stage of so many epochs. train: those of the base. usual: the optimizer where
        none is named."""
        return replace(
            train,
            epochs=epochs,
            optimizer=self.optimizer or usual,
            lr=self.lr,
            muon_lr=self.muon_lr,
            warmup_steps=self.warmup_steps,
        )


@dataclass(frozen=True)
class GateTraining:
    """Training of gates, and the options of every kind of gate."""

    lr: float = setting(
        0.3, "Learning rate of the gates: at the model's own rate a short run cannot close one.", above=0
    )
    lambda_warmup: int = setting(20, "Steps over which lambda grows from 0 to its value.", at_least=0)
    settle: float = setting(
        0.67,
        "Share of the stage's epochs, at its end, in which gates stand at 0 or 1 and only weights "
        "train; 0 is the paper's way.",
        at_least=0,
        below=1,
    )
    choose_epochs: int = setting(
        1, "Epochs of choosing heads on frozen weights, before a refit.", at_least=1, rare=True
    )


@dataclass(frozen=True)
class DistillConfig:
    """Learning from a teacher, the base itself or a better run, in every stage that starts from the base."""

    teacher: str | None = setting(
        None,
        "Run that is learned from, such as a larger model; the base by default. With --distill.weight it "
        "needs the base's vocabulary.",
    )
    weight: float = setting(
        0.0,
        "Share of the loss: KL divergence from the teacher, token by token; 0 for none.",
        at_least=0,
        at_most=1,
    )
    temperature: float = setting(
        1.0, "Logits are divided by it, and the divergence multiplied by its square.", above=0, rare=True
    )
    sequences: float = setting(
        0.0,
        "Share of the training pairs whose target is the teacher's translation, which it makes once "
        "(Kim & Rush 2016); 0 for none.",
        at_least=0,
        at_most=1,
    )


if TYPE_CHECKING:
    GateConfig = GateTraining
else:  # each method brings the options of its own
    CLASSES = dict.fromkeys(each.options for each in LEARNED.values())
    OPTIONS = [(option.name, option.type, option) for options in CLASSES for option in fields(options)]
    GateConfig = make_dataclass("GateConfig", OPTIONS, bases=(GateTraining,), frozen=True)
    GateConfig.__module__ = __name__  # or no other process could be handed one
    GateConfig.__doc__ = GateTraining.__doc__
