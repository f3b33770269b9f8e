"""Every setting of a run, once: its type, default, unit and reason.   Flags and YAML files are made from
these classes by `cli.py`.

A field's `help` metadata is its text in `--help`; a field spelt `lam` is `--lambda` on the command line and
`lambda` in YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headgates.configs.cli import from_dict
from headgates.configs.fields import REQUIRED, check_plain_name, check_ranges, setting
from headgates.configs.heads_per_kind import ABOUT as HEADS_PER_KIND
from headgates.configs.heads_per_kind import (
    FFN_KINDS,
    KIND_GROUPS,
    KIND_WORDS,
    KINDS,
    kinds_named,
    parse_budget,
)
from headgates.configs.methods import METHODS, TARGETS
from headgates.configs.scores import SCORES
from headgates.configs.speed_methods import PLAN, speed_rows
from headgates.configs.stages import DistillConfig, FinetuneConfig, GateConfig, GateTraining, StageConfig
from headgates.configs.systems import (
    BASES,
    PLANNED,
    check_systems,
    default_systems,
    grammar,
    learned_rows,
    score_rows,
)
from headgates.configs.tasks import TASKS

__all__ = [
    "KINDS",
    "REQUIRED",
    "DistillConfig",
    "FinetuneConfig",
    "FitConfig",
    "GateConfig",
    "GateTraining",
    "StageConfig",
    "check_ranges",
    "setting",
]

GATES = [*METHODS, "scores", PLAN, "none"]
PLAIN_ROWS = [*BASES, *learned_rows(), *PLANNED]  # those that are not of scores
POSITIONS = {
    "sinusoidal": "sines and cosines in turns (Vaswani et al. 2017)",
    "sinusoidal-halves": "the same numbers, all sines first",
    "tensor2tensor": "all sines first, frequencies 10000^(-i / (D / 2 - 1))",
    "learned": "a table",
}
LARGEST = 1024  # layers and heads; a model of more is none that a file describes by mistake
LARGEST_SEED = 2**32 - 1  # NumPy takes no larger one


@dataclass(frozen=True)
class Architecture:
    """What models of other libraries have and none of ours: a converted model brings it, config.yaml and the
    checkpoints of its runs keep it, and no flag sets it (a setting without a help text has none)."""

    activation: Literal["relu", "gelu", "swish"] = setting("relu", "")  # of the feed-forward layers
    decoder_heads: int = setting(0, "", at_least=0, at_most=LARGEST)  # 0: as many as `heads`
    decoder_ffn: int = setting(0, "", at_least=0)  # 0: as wide as `ffn`
    decoder_norm: Literal["same", "pre", "post"] = setting("same", "")  # same: as `norm`
    final_norm: Literal["both", "encoder", "decoder", "none"] = setting(
        "both", ""
    )  # pre-norm stacks that end in one
    norm_eps: float = setting(1e-5, "", above=0)  # added to the variance in layer norms
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

    d_model: int = setting(128, "model width D", at_least=1)
    ffn: int = setting(512, "width of the feed-forward layers", at_least=1)
    heads: int = setting(8, "attention heads of every site; must divide d_model", at_least=1, at_most=LARGEST)
    encoder_layers: int = setting(2, "encoder layers", at_least=1, at_most=LARGEST)
    decoder_layers: int = setting(2, "decoder layers", at_least=1, at_most=LARGEST)
    norm: Literal["pre", "post"] = setting("pre", "layer norm before (pre) or after (post) each sub-layer")
    positions: Literal["sinusoidal", "sinusoidal-halves", "tensor2tensor", "learned"] = setting(
        "sinusoidal",
        f"position vectors: {', '.join(f'{name}: {about}' for name, about in POSITIONS.items())}",
    )
    max_positions: int = setting(
        256, "longest sequence, in tokens (rows of the learned table)", at_least=2, rare=True
    )
    embeddings: Literal["tied", "tied-decoder", "separate"] = setting(
        "tied",
        "tied: source, target and output share one table (needs a joint vocabulary); tied-decoder: "
        "target and output",
    )
    dropout: float = setting(
        0.05, "probability of dropping a residual, embedding or feed-forward unit", at_least=0, below=1
    )
    attention_dropout: float = setting(
        0.0, "probability of dropping an attention weight", at_least=0, below=1, rare=True
    )

    @property
    def heads_of_decoder(self) -> int:
        return self.decoder_heads or self.heads

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

    vocab_size: int = setting(1500, "sentencepiece pieces of each vocabulary, specials included", at_least=5)
    joint: bool = setting(True, "one vocabulary for both languages")
    max_length: int = setting(
        200, "longest training sentence in pieces; longer pairs are skipped and counted", at_least=1
    )
    max_tokens: int = setting(
        1200,
        "tokens of a batch, the longer side, padding counted; a step is `accumulate` batches",
        at_least=1,
    )
    train_sentences: int = setting(0, "use only this many training pairs, 0 for all", at_least=0)
    vocab_pairs: int = setting(
        500_000,
        "training pairs that vocabularies are trained on, a fixed sample where there are more; 0 for all",
        at_least=0,
        rare=True,
    )


@dataclass(frozen=True)
class SearchConfig:
    """Translation."""

    beam: int = setting(5, "beam width; 1 is greedy", at_least=1)
    length_penalty: float = setting(
        1.0, "a hypothesis of n tokens scores log p / n**length_penalty", at_least=0
    )
    max_ratio: float = setting(
        2.0, "longest hypothesis: max_ratio * source pieces + max_extra", at_least=0, rare=True
    )
    max_extra: int = setting(10, "see max_ratio", at_least=1, rare=True)
    min_length: int = setting(
        0, "pieces that a hypothesis has at least, the end not counted", at_least=0, rare=True
    )
    batch_tokens: int = setting(
        8000, "source pieces, padding counted, times beam, translated at once", at_least=1
    )


def read_search(settings: Mapping[str, Any], origin: object) -> SearchConfig:
    """The search settings that a file, `origin`, holds. Raises ValueError, naming it, at one of another type
    or range, or unknown."""
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
class FitConfig:
    """`fit.py`: train a base model, put gates on its heads, compare.

    python fit.py --gate l0 --lambda 0.01
    python fit.py --config configs/multi30k.yaml --lambda 0.03
    python fit.py --data my-text --src en --tgt fr --lambda 0.02      (my-text/train.en, train.fr, valid.en,
    ...)
    python fit.py --base runs/toy-en-de-none-s1 --lambda 0.05         (another setting on a finished base)
    python fit.py --config configs/sst2.yaml --encoder bert-base-uncased --data my-labels      (label TAB
    sentence: train.tsv, ...)
    """

    data: str | None = setting(
        "toy",
        "a named corpus (toy, toy-multi, multi30k), a folder with {train,valid,test}.{src,tgt} files or "
        "links, plain or .gz, or hf:NAME (Hugging Face)",
    )
    data_dir: str | None = setting(
        None, "folder that holds local copies of named corpora, searched before downloading"
    )
    src: str = setting("en", "source language: the files' suffix")
    tgt: str = setting("de", "target language: the files' suffix")
    task: str = setting("translation", f"what the model is trained for: {', '.join(TASKS)}", choices=TASKS)
    encoder: str | None = setting(
        None, "classify: the Hugging Face encoder that is fine-tuned, a folder or a name on the hub"
    )
    gate: str = setting(
        "l0",
        f"method that learns which heads stay, {', '.join(METHODS)}; scores: no gates, rows of scores at "
        f"--heads; plan: what --speedup needs; none: the base alone",
        choices=GATES,
    )
    lam: float = setting(
        0.01,
        "penalty: nats per target token, per expected open head; a neuron counts as its share of a head's "
        "parameters",
        at_least=0,
        instead_of=("heads", "neurons", "speedup"),
    )
    heads: int | None = setting(
        None,
        "heads kept open in total; with --gate l0 the price is steered to that number, with --gate "
        "scores its rows have it",
        at_least=0,
    )
    neurons: int | None = setting(
        None,
        "with --kinds ffn or all: feed-forward neurons kept open in total, in each layer a multiple of 16",
        at_least=0,
    )
    speedup: float | None = setting(
        None,
        "plan heads, neurons and layers for a model so many times as fast (docs/speed.md), and train it on",
        above=1,
    )
    runtime: Literal["auto", "torch", "ct2", "int8"] = setting(
        "auto", "with --speedup: what is timed, as in prune"
    )
    heads_per_kind: list[str] = setting([], HEADS_PER_KIND)
    kinds: list[str] = setting(
        KINDS,
        f"what carries gates, comma-separated: kinds of attention ({', '.join(KINDS)}), of feed-forward "
        f"layers ({', '.join(FFN_KINDS)}), or heads, ffn, all",
        items=KIND_WORDS,
        instead_of=("speedup",),  # whose rows say what may close
    )
    curve: list[int] = setting(
        [],
        "numbers of heads, from many to few: each starts from the smaller model of the one before",
        at_least=0,
    )
    max_drop: float | None = setting(
        None,
        "find the fewest heads that lose at most so many points on validation (its 95% bound may be 0.7 "
        "more), over --curve or eight numbers down to a sixteenth; default with --curve: 0.3",
        at_least=0,
    )
    freeze_decoder: bool = setting(
        False, "train gates, encoder and its own embeddings only (Voita et al. 2019, section 6.2)"
    )
    base: str | None = setting(
        None,
        "run folder of a finished base; without it one with the same configuration is looked for in --runs",
    )
    runs: str = setting("runs", "folder of all runs")
    name: str | None = setting(
        None, "name of this run's folder; default <data>-<src>-<tgt>-<gate>-<lambda>-s<seed>"
    )
    seed: int = setting(
        1,
        "seed of initial weights, data order, dropout, gate noise, samples and draws",
        at_least=0,
        at_most=LARGEST_SEED,
    )
    devices: int = setting(
        1,
        "processes of this machine that make the run together, each with a GPU if there are any",
        at_least=1,
    )
    num_nodes: int = setting(
        1,
        "machines that make it together, each with so many processes, started by torchrun or srun",
        at_least=1,
    )
    strategy: Literal["ddp", "fsdp"] = setting(
        "ddp",
        "ddp: every process has all weights while it trains; fsdp: its share of them, of their "
        "gradients and of Adam's state",
    )
    threads: int = setting(0, "CPU threads for torch, 0 for all", at_least=0)
    precision: Literal["auto", "32", "bf16"] = setting(
        "auto", "auto: bf16 autocast in training where a step of such a model is faster in it on this machine"
    )
    logger: Literal["csv", "wandb", "tensorboard"] = setting(
        "csv", "where metrics go beside metrics.csv; wandb is offline without a login"
    )
    unique: bool = setting(
        False,
        "where another configuration has the run's default name, add a hash instead of refusing (for sweeps)",
    )
    resume: bool = setting(False, "continue an interrupted run from its last checkpoint")
    checkpoint_minutes: float = setting(
        5.0, "minutes of training between checkpoints within an epoch, 0: none by time", at_least=0
    )
    checkpoint_steps: int = setting(
        0, "optimiser steps between checkpoints within an epoch, 0: none by steps", at_least=0, rare=True
    )
    fresh: bool = setting(False, "repeat a finished run: its folder is emptied first")
    sentences: int = setting(
        0,
        "training pairs that scores read, a sample; 0: each score's own number, all for --dynamics",
        at_least=0,
    )
    dynamics: list[int] = setting(
        [], "epochs of the base, from 1, after which 0 to 90% of its heads are pruned (curves/dynamics.csv)"
    )
    systems: list[str] = setting(
        [],
        f"rows of the comparison, comma-separated, of {grammar(PLAIN_ROWS, '[:trained]')}; "
        f"default {', '.join(default_systems('l0'))}",
    )
    look_sentences: int = setting(
        500,
        "validation sentences that the first look at the heads reads, for the report page; 0: no look",
        at_least=0,
        rare=True,
    )
    test_sentences: int = setting(
        0, "translate this many test (and, for --dynamics, validation) sentences, 0 for all", at_least=0
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    text: TextConfig = field(default_factory=TextConfig)
    train: StageConfig = field(default_factory=StageConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    gates: GateConfig = field(default_factory=GateConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        self._tell_plan()
        self._tell_heads()
        if not self.systems:
            object.__setattr__(
                self, "systems", default_systems(self.gate)
            )  # the class is frozen for everybody else
        check_ranges(self)
        if set(self.kinds) & KIND_GROUPS.keys():  # kinds in another order are another run's hash
            object.__setattr__(self, "kinds", kinds_named(self.kinds))
        check_systems("--systems", self.systems, PLAIN_ROWS, "[:trained]")
        self._check_gate()
        check_plain_name("--name", self.name)
        check_runs(self.runs)
        if self.resume and self.fresh:
            raise ValueError(
                "--resume goes on from the last checkpoint and --fresh begins again: give one of them"
            )
        if self.encoder is not None and self.task == "translation":
            raise ValueError("--encoder is for --task classify; leave it out, or give both")
        model, text = self.model, self.text
        if model.d_model % model.heads:
            cure = " or ".join(str(h) for h in (4, 8, 16) if model.d_model % h == 0) or "a divisor of it"
            raise ValueError(
                f"--model.heads: expected a divisor of --model.d-model {model.d_model}, got {model.heads}; "
                f"take {cure}"
            )
        if model.positions != "learned" and model.d_model % 2:
            raise ValueError(
                f"--model.d-model: sinusoidal positions need an even width, got {model.d_model}; or "
                f"--model.positions learned"
            )
        if text.max_length + 1 > model.max_positions:
            raise ValueError(
                f"--text.max-length: expected less than model.max_positions {model.max_positions} (the "
                f"end of sentence takes one), "
                f"got {text.max_length}; lower the one or raise the other"
            )
        if model.embeddings == "tied" and not text.joint:
            raise ValueError(
                "--model.embeddings tied needs --text.joint true (one vocabulary); with two take "
                "tied-decoder or separate"
            )
        if self.strategy == "fsdp" and "muon" in (self.train.optimizer, self.finetuning.optimizer):
            raise ValueError(
                "--strategy fsdp: muon needs whole matrices, and each process has a part of them; take adamw"
            )
        self._check_dynamics()

    def _check_gate(self) -> None:
        by_heads = self.gate in METHODS and METHODS[self.gate].controlled_by == "heads"
        if self.is_curve:
            self._check_curve()
        elif by_heads and self.targets is None:
            raise ValueError(
                f"--gate {self.gate} keeps a given number of heads open: give --heads N, or --neurons N of "
                "feed-forward layers"
            )
        elif by_heads or self.gate == "scores":
            self._check_targets()
        if self.gate == PLAN:
            self._check_plan_rows()
        elif planned := [row for row in self.systems if row in PLANNED]:
            raise ValueError(f"--systems {planned[0]} is a model for a speed: give --speedup too")
        if self.gate == "scores":
            self._check_score_rows()
        elif self.gate == "none":
            if self.heads or self.neurons:
                raise ValueError(
                    "--gate none makes a base, which closes no heads; leave --heads and --neurons out, or "
                    "take --gate scores"
                )
        elif self.targets is not None and not by_heads:
            methods = [name for name, method in METHODS.items() if method.controlled_by == "heads"]
            raise ValueError(
                f"--heads: --gate {self.gate} has no target number of heads; take --gate "
                f"{', '.join(methods[:-1])} or {methods[-1]}"
            )
        if self.gate != "none" and self.gated_neurons:
            wrong = [score for score in score_rows(self.systems) if not SCORES[score].of_neurons]
            if wrong:
                able = ", ".join(name for name, score in SCORES.items() if score.of_neurons)
                raise ValueError(
                    f"--systems {wrong[0]} scores no feed-forward neurons, which --kinds names; these do: "
                    f"{able}"
                )
        if self.task != "translation" and (scratch := [row for row in self.systems if "-scratch" in row]):
            raise ValueError(f"--systems {scratch[0]} trains a translation model anew; leave it out")
        if (
            self.finetune.dropout
            and self.task == "translation"
            and not (self.model.dropout or self.model.attention_dropout)
        ):
            raise ValueError(
                f"finetune.dropout {self.finetune.dropout:g}: a model made with --model.dropout 0 has "
                f"none to change; leave it out"
            )
        if self.distill.sequences and self.task != "translation":
            raise ValueError(
                "--distill.sequences: a base of this task writes no translations to learn from; take "
                "--distill.weight"
            )

    def _tell_plan(self) -> None:
        """--speedup plans, whatever --gate is by default. Raises ValueError beside what a plan decides."""
        if self.speedup is None:
            if self.gate == PLAN or self.runtime != "auto":
                raise ValueError("--gate plan and --runtime are for a speed: give --speedup too")
            return
        if self.gate not in (PLAN, type(self).gate):
            raise ValueError(f"--speedup plans what stays; leave --gate {self.gate} out")
        own = {
            "--heads": self.heads,
            "--neurons": self.neurons,
            "--curve": self.curve,
            "--max-drop": self.max_drop is not None,
        }
        if given := [flag for flag, value in own.items() if value]:
            raise ValueError(f"--speedup plans what stays; leave {given[0]} out")
        if self.task != "translation":
            raise ValueError(f"--speedup is for translation, not for --task {self.task}")
        object.__setattr__(self, "gate", PLAN)  # the class is frozen for everybody else
        object.__setattr__(self, "kinds", [*KINDS])  # a base's own kinds are no part of a plan's hash

    def _check_plan_rows(self) -> None:
        """Of --speedup X."""
        if others := [row for row in self.systems if row not in (*BASES, *PLANNED)]:
            raise ValueError(
                f"--speedup makes models for a speed, so it has no row {others[0]}; leave it out of "
                f"--systems, which takes {', '.join(PLANNED)}"
            )
        if not speed_rows(self.systems):
            raise ValueError(
                "--speedup makes models for a speed: name one in --systems, such as plan:trained"
            )

    def _tell_heads(self) -> None:
        """The number of heads where --heads-per-kind gives it, and the method that it makes of --gate l0."""
        given = parse_budget(self.heads_per_kind)
        if given:
            total, words = sum(given.values()), ",".join(self.heads_per_kind)
            if set(given) != set(kinds_named(self.kinds)) - set(FFN_KINDS):
                raise ValueError(
                    f"--heads-per-kind {words}: gates need one for each of --kinds {','.join(self.kinds)}; "
                    f"give them all, or fewer --kinds"
                )
            if self.heads not in (None, total):
                raise ValueError(
                    f"--heads-per-kind {words} adds up to {total}, and --heads is {self.heads}; leave "
                    f"--heads out"
                )
            object.__setattr__(self, "heads", total)  # the class is frozen for everybody else
        target = TARGETS.get(self.gate)
        if target is not None and (self.targets is not None or self.is_curve):
            old, new = ([*METHODS[name].rows, METHODS[name].scratch] for name in (self.gate, target))
            rows = dict(zip(old, new, strict=True))
            object.__setattr__(self, "gate", target)
            object.__setattr__(self, "systems", [rows.get(row, row) for row in self.systems])

    @property
    def is_curve(self) -> bool:
        """Whether one run goes through many numbers of heads."""
        return bool(self.curve) or self.max_drop is not None

    @property
    def drop_limit(self) -> float:
        """Points that a number of heads may lose to be accepted."""
        return 0.3 if self.max_drop is None else self.max_drop

    @property
    def finetuning(self) -> StageConfig:
        """All settings of the training that starts from the base."""
        return self.finetune.stage(self.train)

    def _check_curve(self) -> None:
        flag = "--curve" if self.curve else "--max-drop"
        if self.heads is not None or self.heads_per_kind:
            raise ValueError(
                f"{flag} goes through many numbers of heads; leave --heads and --heads-per-kind out"
            )
        if self.neurons is not None or self.gated_neurons:
            raise ValueError(
                f"{flag} goes through many numbers of heads alone; leave --kinds ffn and --neurons out"
            )
        if self.gate not in METHODS:
            raise ValueError(f"{flag} trains gates; leave --gate {self.gate} out")
        if self.curve != sorted(set(self.curve), reverse=True):
            raise ValueError(
                f"--curve: expected numbers of heads from many to few, each once, got "
                f"{','.join(map(str, self.curve))}"
            )
        if others := [row for row in self.systems if row not in BASES]:
            if self.systems != default_systems(self.gate):
                raise ValueError(
                    f"{flag} is compared with base and base-continued alone; leave {', '.join(others)} out "
                    f"of --systems"
                )
            object.__setattr__(self, "systems", list(BASES))

    @property
    def gated_neurons(self) -> list[str]:
        """The kinds of feed-forward layers whose neurons carry gates."""
        return [kind for kind in kinds_named(self.kinds) if kind in FFN_KINDS]

    @property
    def targets(self) -> int | dict[str, int] | None:
        """How many heads stay open, in all or by kind, and how many neurons, as "ffn"; None where a price
        decides."""
        heads = parse_budget(self.heads_per_kind) or self.heads
        if self.neurons is None:
            return heads
        by_kind = heads if isinstance(heads, dict) else {} if heads is None else {"heads": heads}
        return {**by_kind, "ffn": self.neurons}

    def _check_targets(self) -> None:
        """Raises ValueError unless what carries gates has a number, and nothing else."""
        gated_heads, words = len(self.gated_neurons) < len(self.kinds), ",".join(self.kinds)
        each = (
            ("heads", "--kinds heads", self.heads, gated_heads),
            ("neurons", "--kinds ffn", self.neurons, bool(self.gated_neurons)),
        )
        for what, cure, number, gated in each:
            if number is not None and not gated:
                raise ValueError(
                    f"--{what} {number}: --kinds {words} has no {what}; add {cure}, or take --kinds all"
                )
        missing = [what for what, _, number, gated in each if gated and number is None]
        if missing and self.targets is not None:
            raise ValueError(
                f"--kinds {words} names heads and neurons, each with a number of its own: give "
                f"--{missing[0]} too, or fewer --kinds"
            )

    @property
    def base_alone(self) -> bool:
        """Whether a base is all that is made: no gates, and no rows of scores at a number of heads."""
        return self.gate == "none"

    @property
    def job(self) -> str:
        """What the run is called beside others: base, scores or gates."""
        return {"none": "base", "scores": "scores", PLAN: PLAN}.get(self.gate, "gates")

    def _check_score_rows(self) -> None:
        """Of --gate scores --heads K."""
        if self.targets is None:
            raise ValueError(
                "--gate scores closes heads by scores: give --heads N, how many stay open, or --neurons N of "
                "feed-forward layers"
            )
        if learned := [row for row in self.systems if row in learned_rows()]:
            raise ValueError(
                f"--gate scores learns no gates, so it has no row {learned[0]}; leave it out of --systems, "
                f"or give its --gate"
            )
        if not score_rows(self.systems):
            raise ValueError(
                "--gate scores closes heads by scores: name at least one in --systems, such as importance"
            )

    def _check_dynamics(self) -> None:
        wrong = [epoch for epoch in self.dynamics if not 1 <= epoch <= self.train.epochs]
        if wrong or len(set(self.dynamics)) < len(self.dynamics):
            got = (
                ", ".join(map(str, wrong)) + f"; raise --train.epochs {self.train.epochs} or leave it out"
                if wrong
                else "one twice"
            )
            raise ValueError(
                f"--dynamics: expected epochs of the base's training, 1 to {self.train.epochs}, each once, "
                f"got {got}"
            )
