"""Every setting of a run, once: its type, default, unit and reason.   Flags and YAML files are made from
these classes by `cli.py`.

A field's `help` metadata is its text in `--help`; a field spelt `lam` is `--lambda` on the command line and
`lambda` in YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from headgates.configs.fields import check_plain_name, check_ranges, setting
from headgates.configs.stages import DistillConfig, FinetuneConfig, GateConfig, StageConfig
from headgates.configs.tasks import TASK_NAMES

POSITION_KINDS = {
    "sinusoidal": "sines and cosines in turns (Vaswani et al. 2017)",
    "sinusoidal-halves": "the same numbers, all sines first",
    "tensor2tensor": "all sines first, frequencies 10000^(-i / (D / 2 - 1))",
    "learned": "a table",
    "relative": "none, but a bias on attention scores by distance (T5)",
}
LARGEST = 1024  # layers and heads; a model of more is none that a file describes by mistake
LARGEST_SEED = 2**32 - 1  # NumPy takes no larger one


@dataclass(frozen=True)
class Architecture:
    """What models of other libraries have and none of ours: a converted model brings it, config.yaml and the
    checkpoints of its runs keep it, and no flag sets it (a setting without a help text has none)."""

    # of the feed-forward layers; gelu_new: with tanh in the place of the normal distribution
    activation: Literal["relu", "gelu", "gelu_new", "swish"] = setting("relu", "")
    # gated: activation(W x) * V x (Shazeer 2020, arXiv:2002.05202)
    feed_forward: Literal["plain", "gated"] = setting("plain", "")
    head_width: int = setting(0, "", at_least=0)  # 0: d_model / heads of the stack
    decoder_heads: int = setting(0, "", at_least=0, at_most=LARGEST)  # 0: as many as `heads`
    decoder_ffn: int = setting(0, "", at_least=0)  # 0: as wide as `ffn`
    decoder_norm: Literal["same", "pre", "post"] = setting("same", "")  # same: as `norm`
    final_norm: Literal["both", "encoder", "decoder", "none"] = setting(
        "both", ""
    )  # pre-norm stacks that end in one
    norm_kind: Literal["layer", "rms"] = setting("layer", "")  # rms: no mean, no bias (arXiv:1910.07467)
    norm_eps: float = setting(1e-5, "", above=0)  # added to the variance in norms
    biases: bool = setting(True, "")  # of linear layers, but for the output's
    # of relative positions: how many distances are told apart, and from which on they are one
    position_buckets: int = setting(32, "", at_least=4)
    position_reach: int = setting(128, "", at_least=2)
    first_position: int = setting(0, "", at_least=0)  # its number in sinusoids
    embedding_scale: bool = setting(True, "")  # by sqrt(d_model)
    embedding_norm: bool = setting(False, "")  # of the sum of embedding and position
    output_bias: bool = setting(False, "")  # on the logits
    decoder_mixer: Literal["attention", "ssru"] = setting(
        "attention", ""
    )  # SSRU: Kim et al. 2019, without heads


@dataclass(frozen=True)
class ModelConfig(Architecture):
    """The encoder-decoder Transformer."""

    d_model: int = setting(128, "Model width D.", at_least=1)
    ffn: int = setting(512, "Width of the feed-forward layers.", at_least=1)
    heads: int = setting(8, "Attention heads of a site; must divide d_model.", at_least=1, at_most=LARGEST)
    encoder_layers: int = setting(2, "Encoder layers.", at_least=1, at_most=LARGEST)
    decoder_layers: int = setting(2, "Decoder layers.", at_least=1, at_most=LARGEST)
    norm: Literal["pre", "post"] = setting("pre", "Layer norm before (pre) or after (post) each sub-layer.")
    positions: Literal["sinusoidal", "sinusoidal-halves", "tensor2tensor", "learned", "relative"] = setting(
        "sinusoidal",
        f"Position vectors: {', '.join(f'{name}: {about}' for name, about in POSITION_KINDS.items())}.",
    )
    max_positions: int = setting(
        256, "Longest sequence, in tokens (rows of the learned table).", at_least=2, rare=True
    )
    embeddings: Literal["tied", "tied-decoder", "separate"] = setting(
        "tied",
        "Which share one table: source, target and output (tied, needs a joint vocabulary), or target and "
        "output (tied-decoder).",
    )
    dropout: float = setting(
        0.05, "Probability of dropping a residual, embedding or feed-forward unit.", at_least=0, below=1
    )
    attention_dropout: float = setting(
        0.0, "Probability of dropping an attention weight.", at_least=0, below=1, rare=True
    )

    @property
    def heads_of_decoder(self) -> int:
        return self.decoder_heads or self.heads

    def width_of(self, stack: str) -> int:
        """The width of a head."""
        heads = self.heads if stack == "encoder" else self.heads_of_decoder
        return self.head_width or self.d_model // heads

    @property
    def sinusoids(self) -> bool:
        """Whether position vectors are computed."""
        return self.positions not in ("learned", "relative")

    @property
    def heads_of_kinds(self) -> dict[str, int]:
        """Heads of every attention, and neurons of every feed-forward layer, by kind."""
        return {
            "enc-self": self.heads,
            **dict.fromkeys(("dec-self", "cross"), self.heads_of_decoder),
            "enc-ffn": self.ffn,
            "dec-ffn": self.decoder_ffn or self.ffn,
        }

    def norm_of(self, stack: str) -> str:
        """pre or post. stack: encoder, decoder."""
        return self.norm if stack == "encoder" or self.decoder_norm == "same" else self.decoder_norm

    def has_final_norm(self, stack: str) -> bool:
        return self.norm_of(stack) == "pre" and self.final_norm in ("both", stack)


@dataclass(frozen=True)
class TextConfig:
    """Vocabulary and batches."""

    vocab_size: int = setting(1500, "Sentencepiece pieces of each vocabulary, specials included.", at_least=5)
    joint: bool = setting(True, "One vocabulary for both languages.")
    max_length: int = setting(
        200, "Longest training sentence in pieces; longer pairs are skipped and counted.", at_least=1
    )
    max_tokens: int = setting(
        1200,
        "Tokens of a batch, the longer side, padding counted; a step is `accumulate` batches.",
        at_least=1,
    )
    train_sentences: int = setting(0, "Use only this many training pairs, 0 for all.", at_least=0)
    vocab_pairs: int = setting(
        500_000,
        "Training pairs that vocabularies are trained on, a fixed sample where there are more; 0 for all.",
        at_least=0,
        rare=True,
    )


@dataclass(frozen=True)
class SearchConfig:
    """Translation."""

    beam: int = setting(5, "Beam width; 1 is greedy.", at_least=1)
    length_penalty: float = setting(1.0, "A hypothesis of n tokens scores log p / n**length_penalty.")
    max_ratio: float = setting(
        2.0, "Longest hypothesis: max_ratio * source pieces + max_extra.", at_least=0, rare=True
    )
    max_extra: int = setting(10, "See max_ratio.", at_least=1, rare=True)
    min_length: int = setting(
        0, "Pieces that a hypothesis has at least, the end not counted.", at_least=0, rare=True
    )
    batch_tokens: int = setting(
        8000, "Source pieces, padding counted, times beam, translated at once.", at_least=1
    )

    def usual_batch(self) -> "SearchConfig":
        """The search with as many pieces at once as usual: how many changes no output, so no hash counts
        them."""
        return replace(self, batch_tokens=SearchConfig().batch_tokens)


def read_search(settings: Mapping[str, Any], origin: object) -> SearchConfig:
    """The search settings that a file, `origin`, holds. Raises ValueError, naming it, at one of another type
    or range, or unknown."""
    from headgates.configs.cli import from_dict  # here: the commands import this file before Ctrl-C is heard

    try:
        search = from_dict(SearchConfig, settings)
        check_ranges(search, "")
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"the search settings in {origin} are not those of this version ({error}); correct them there"
        ) from error
    return search


def check_runs(runs: str) -> None:
    """Raises ValueError where --runs, or a folder above it, is a file."""
    if file := next((path for path in (Path(runs), *Path(runs).parents) if path.is_file()), None):
        raise ValueError(f"--runs: expected the folder of all runs, got the file {file}")


@dataclass(frozen=True)
class Settings:
    """How a base is made, and how what is made of it is trained, scored and translated. A run's config.yaml
    holds them all; every command that trains has them as flags, and takes what is not given from the base."""

    data: str | None = setting(
        "toy",
        "Text: toy, multi30k, hf:NAME, or a folder. It has {train,valid,test}.{src,tgt}, or .tsv.",
    )
    data_dir: str | None = setting(None, "Folder with local copies of named corpora.", more=True)
    src: str = setting("en", "Source language: the files' suffix.")
    tgt: str = setting("de", "Target language.")
    task: str = setting(
        "translation",
        f"What the model is trained for: {', '.join(TASK_NAMES)}.",
        choices=TASK_NAMES,
        more=True,
    )
    encoder: str | None = setting(
        None, "The Hugging Face encoder of --task classify, a folder or a name on the hub.", more=True
    )
    runs: str = setting("runs", "Folder of all runs.", more=True)
    name: str | None = setting(None, "Name of what the command makes. One is put together without it.")
    seed: int = setting(
        1,
        "Seed of all that is random.",
        at_least=0,
        at_most=LARGEST_SEED,
    )
    devices: int = setting(
        1,
        "Processes of this machine that train together, each with a GPU if there are any.",
        at_least=1,
        more=True,
    )
    num_nodes: int = setting(
        1, "Machines that train together, started by torchrun or srun.", at_least=1, more=True
    )
    strategy: Literal["ddp", "fsdp"] = setting(
        "ddp", "Whether every process has all weights (ddp) or its share of them (fsdp).", more=True
    )
    threads: int = setting(0, "CPU threads for torch, 0 for all.", at_least=0)
    precision: Literal["auto", "32", "bf16"] = setting(
        "auto",
        "Precision of training; auto takes bf16 where a step is faster in it on this machine.",
        more=True,
    )
    logger: Literal["csv", "wandb", "tensorboard"] = setting(
        "csv", "Where metrics go beside metrics.csv; wandb is offline without a login.", more=True
    )
    unique: bool = setting(
        False, "Add a hash where another run has the default name, instead of refusing.", rare=True
    )
    resume: bool = setting(False, "Continue from the last checkpoint.")
    checkpoint_minutes: float = setting(
        5.0,
        "Minutes of training between checkpoints within an epoch, 0: none by time.",
        at_least=0,
        rare=True,
    )
    checkpoint_steps: int = setting(
        0, "Optimiser steps between checkpoints within an epoch, 0: none by steps.", at_least=0, rare=True
    )
    fresh: bool = setting(False, "Repeat what is finished. What it wrote is emptied first.")
    metrics: list[str] = setting(
        [],
        "Further metrics, as module:function. f(sources, outputs, references) takes lists and returns a "
        "number for each line; their mean is the score.",
        more=True,
    )
    sentences: int = setting(
        0,
        "Sentences that scores, analyses and checks read, a sample; 0: their own number.",
        at_least=0,
        more=True,
    )
    calibration_sentences: int = setting(
        1000, "Training pairs that refits read, a sample; 0 for all.", at_least=0, rare=True
    )
    calibration_targets: Literal["reference", "own"] = setting(
        "reference",
        "Their target side; own: the model's greedy translations, so that the source side is enough.",
        rare=True,
    )
    dynamics: list[int] = setting(
        [],
        "Epochs of the base, from 1, after which 0 to 90% of its heads are closed (curves/dynamics.csv).",
        rare=True,
    )
    look_sentences: int = setting(
        500,
        "Validation sentences that the first look at the heads reads, for the report page; 0: no look.",
        at_least=0,
        rare=True,
    )
    test_sentences: int = setting(0, "Test sentences to translate, 0 for all.", at_least=0, more=True)
    freeze_decoder: bool = setting(
        False, "Train gates, encoder and its embeddings only (Voita et al. 2019, section 6.2).", rare=True
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    text: TextConfig = field(default_factory=TextConfig)
    train: StageConfig = field(default_factory=StageConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    gates: GateConfig = field(default_factory=GateConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        check_ranges(self)
        check_plain_name("--name", self.name)
        check_runs(self.runs)
        if self.resume and self.fresh:
            raise ValueError(
                "--resume goes on from the last checkpoint and --fresh begins again: give one of them"
            )
        if self.encoder is not None and self.task == "translation":
            raise ValueError("--encoder is for --task classify; leave it out, or give both")
        self.check_model()
        self.check_whole_matrices(self.finetune.optimizer)

    def check_dynamics(self) -> None:
        """Raises ValueError at epochs that the base's training, of which the text may decide, has not."""
        wrong = [epoch for epoch in self.dynamics if not 1 <= epoch <= self.train.epochs]
        if wrong or len(set(self.dynamics)) < len(self.dynamics):
            raise ValueError(
                f"dynamics: expected epochs of the base's training, 1 to {self.train.epochs}, each once, got "
                f"{', '.join(map(str, self.dynamics))}"
            )

    def check_model(self) -> None:
        """Raises ValueError at sizes that make no model."""
        model, text = self.model, self.text
        if not model.head_width and model.d_model % model.heads:
            cure = " or ".join(str(h) for h in (4, 8, 16) if model.d_model % h == 0) or "a divisor of it"
            raise ValueError(
                f"--model.heads: expected a divisor of --model.d-model {model.d_model}, got {model.heads}; "
                f"take {cure}"
            )
        if model.sinusoids and model.d_model % 2:
            raise ValueError(
                f"--model.d-model: sinusoidal positions need an even width, got {model.d_model}; or "
                f"--model.positions learned"
            )
        if self.freeze_decoder and self.task != "translation":
            raise ValueError("--set freeze_decoder=true is for translation models; an encoder has no decoder")
        if self.task == "translation" and text.max_length + 1 > model.max_positions:
            raise ValueError(
                f"--text.max-length: expected less than model.max_positions {model.max_positions} (the end "
                f"takes one), got {text.max_length}; lower the one or raise the other"
            )
        if model.embeddings == "tied" and not text.joint:
            raise ValueError(
                "--model.embeddings tied needs --text.joint true (one vocabulary); with two take "
                "tied-decoder or separate"
            )
        no_dropout = not (model.dropout or model.attention_dropout)
        if self.finetune.dropout and self.task == "translation" and no_dropout:
            raise ValueError(
                f"finetune.dropout {self.finetune.dropout:g}: a model made with --model.dropout 0 has none; "
                "leave it out"
            )
        if self.distill.sequences and self.task != "translation":
            raise ValueError(
                "--distill.sequences: a base of this task writes no translations to learn from; take "
                "--distill.weight"
            )

    def check_whole_matrices(self, optimizer: str | None) -> None:
        """Raises ValueError where it cannot train by the strategy."""
        if self.strategy == "fsdp" and optimizer == "muon":
            raise ValueError(
                "--strategy fsdp: muon needs whole matrices, and each process has a part of them; take adamw"
            )

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return self.devices * self.num_nodes

    def finetuning(self, epochs: int) -> StageConfig:
        """All settings of so many epochs of training that starts from the base."""
        # Muon was tried on translation alone, and needs whole matrices, of which fsdp gives a process a part
        muon = self.task == "translation" and self.strategy != "fsdp"
        return self.finetune.stage(self.train, epochs, usual="muon" if muon else "adamw")


OF_THE_COMMAND = (  # settings that say how and where, and change no result
    "data_dir",
    "runs",
    "name",
    "devices",
    "num_nodes",
    "strategy",
    "threads",
    "logger",
    "unique",
    "resume",
    "checkpoint_minutes",
    "checkpoint_steps",
    "fresh",
    "metrics",
    "look_sentences",
)
OF_THE_BASE = (
    "task",
    "encoder",
    "model",
    "train",
    "dynamics",
    "src",
    "tgt",
)  # that nothing made of it may change
