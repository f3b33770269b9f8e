"""Settings of `analyze.py`: which runs to look at, which analyses, and on which text."""

from dataclasses import dataclass
from typing import Literal

from headgates.configs.fields import REQUIRED, check_plain_name, check_ranges, setting
from headgates.configs.kinds import KINDS
from headgates.configs.source import SourceOptions

WHAT = [
    "confidence",
    "lrp",
    "positions",
    "syntax",
    "rare",
    "alignment",
    "sentences",
]  # analysis/analyses.py has one entry for each
MOST_EXAMPLES = 50  # sentences of --examples-from: the attention of all heads makes the page large
LABELS = ["nsubj", "dobj", "amod", "advmod"]  # those of Voita et al. 2019


@dataclass(frozen=True)
class AnalyzeConfig(SourceOptions):
    """`analyze.py`: what the heads of a trained model do, and which of them pruning leaves (Voita et al.
    2019).

    python analyze.py runs/toy-en-de-l0-0.01-s1
    python analyze.py runs/toy-en-de-none-s1 --siblings
    python analyze.py runs/toy-en-de-none-s1 --examples-from my-lines.en      (the page draws attention on
    your own sentences)
    python analyze.py runs/toy-en-de-none-s1 --causes
    python analyze.py runs/toy-en-de-none-s1 --contrast toy:case
    python analyze.py runs/multi30k-en-de-none-s1 --what syntax --parses spacy:en_core_web_sm
    """

    sources: list[str] = setting(
        REQUIRED,
        "run folders on one base: the base itself, or runs with gates, which stand for it",
        positional=True,
    )
    causes: bool = setting(
        False,
        "also what closing each head does to the loss, exactly, every score against it, and which heads back "
        "each other up",
    )
    causes_sentences: int = setting(
        200, "causes: training pairs that all of it reads, a sample; 0 for all", at_least=0, rare=True
    )
    pair_heads: int = setting(
        12,
        "causes: pairs of so many heads, those that cost most of those that stay; 0 for all",
        at_least=0,
        rare=True,
    )
    contrast: str | None = setting(
        None,
        "also what every head does for log p(right) - log p(wrong output): toy:number, toy:gender, toy:case, "
        "toy:order, toy-multi:language, toy-multi:number, en-de:number, en-de:pronoun, en-de:negation, or a "
        "file (docs/explain.md)",
    )
    contrast_heads: list[str] = setting(
        [],
        "contrast: close, and keep alone, these heads, such as decoder.0.cross.3; default those that every "
        "other contrast shows",
        rare=True,
    )
    contrast_into: str | None = setting(
        None,
        "contrast: also the path from every head into one head's q, k or v, such as decoder.0.cross.3.v",
        rare=True,
    )
    siblings: bool = setting(
        False, "in the tables also the finished runs with gates that lie beside RUNS and have the same base"
    )
    what: list[str] = setting(
        [], f"analyses, comma-separated: {', '.join(WHAT)}; default all that can be done", items=WHAT
    )
    parses: str | None = setting(
        None,
        "dependency trees for syntax: spacy:MODEL_OR_PATH, conllu:FILE or gold (toy alone); default "
        "gold for toy, else no syntax",
    )
    system: str | None = setting(
        None, "look at this system of the one RUN (l0, importance, ...) instead of the base"
    )
    kinds: list[str] = setting(KINDS, "kinds of attention to look at, comma-separated", items=KINDS)
    labels: list[str] = setting(
        [],
        f"syntax: relations, by CLEAR's or UD's names; default those of {', '.join(LABELS)} that occur",
        rare=True,
    )
    rare_rank: int = setting(
        0,
        "rare: so many most frequent pieces are not rare; 0 is 500 (the paper), for toy 50",
        at_least=0,
        rare=True,
    )
    split: Literal["valid", "test"] = setting("valid", "text to look at", rare=True)
    text: str | None = setting(
        None,
        "look at these source sentences instead, a file of lines or CoNLL-U (.conllu, .conllu.gz); no "
        "translations, so enc-self alone",
    )
    out: str | None = setting(
        None,
        "name of the results' folder inside RUN/analysis; default the system's, with --text the file's too",
    )
    sentences: int = setting(0, "the first so many pairs of it, 0 for all", at_least=0)
    lrp_rule: Literal["gate-gradient", "ratio"] = setting(
        "gate-gradient",
        "lrp: how relevance is shared; gate-gradient takes one backward pass, the others walk step by "
        "step (ratio: paper)",
        rare=True,
    )
    lrp_aggregation: Literal["step", "sum"] = setting(
        "step",
        "lrp: step takes shares at every generation step and then the mean (the paper); sum adds the "
        "steps first, for less time",
        rare=True,
    )
    examples: int = setting(3, "sentences of the text whose attention the report draws", at_least=0)
    examples_from: str | None = setting(
        None,
        f"draw it on these source sentences of yours first, a file of up to {MOST_EXAMPLES} lines, as "
        f"the model translates them",
    )
    threads: int = setting(0, "CPU threads for torch, 0 for all", at_least=0)
    fresh: bool = setting(False, "repeat analyses that are there already with the same settings")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.sources:
            raise ValueError("SOURCES: expected at least one run folder, got none")
        for name, given in (
            ("causes_sentences", self.causes_sentences != 200),
            ("pair_heads", self.pair_heads != 12),
        ):
            if given and not self.causes:
                raise ValueError(f"{name} is for --causes; add it")
        for name in ("contrast_heads", "contrast_into"):
            if getattr(self, name) and not self.contrast:
                raise ValueError(f"{name} is for --contrast; add it")
        for flag, given, what in (
            ("--parses", self.parses is not None, "syntax"),
            ("labels", bool(self.labels), "syntax"),
            ("rare_rank", self.rare_rank > 0, "rare"),
            ("lrp_rule", self.lrp_rule != "gate-gradient", "lrp"),
            ("lrp_aggregation", self.lrp_aggregation != "step", "lrp"),
        ):
            if given and self.what and what not in self.what:
                raise ValueError(f"{flag} is for {what}, but --what is {', '.join(self.what)}; add {what}")
        if self.text is not None and "enc-self" not in self.kinds:
            raise ValueError(
                f"--text has no translations, so enc-self attention alone is looked at; --kinds is "
                f"{','.join(self.kinds)}"
            )
        check_plain_name("--out", self.out)
        if self.system not in (None, "base") and len(self.sources) > 1:
            raise ValueError(
                f"--system {self.system} looks at one run's own model; expected one run, got "
                f"{len(self.sources)}"
            )
