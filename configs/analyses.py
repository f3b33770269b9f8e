"""What is asked of the heads of a trained model: which analyses, on which text, and their settings."""

from dataclasses import dataclass
from typing import Literal

from headgates.configs.fields import check_plain_name, check_ranges, setting
from headgates.configs.kinds import KIND_CHOICES, KINDS, OF_KINDS, kinds_named
from headgates.configs.source import SourceOptions

WHAT = [
    "confidence",
    "lrp",
    "positions",
    "syntax",
    "rare",
    "alignment",
    "sentences",
]  # of explain/analyses.py
LABELS = ["nsubj", "dobj", "amod", "advmod"]  # those of Voita et al. 2019
MOST_EXAMPLES = 50  # sentences of --examples-from: the attention of all heads makes the page large


@dataclass(frozen=True, kw_only=True)
class Analyses(SourceOptions):
    """The analyses of one model, and the text that it reads. Raises ValueError at settings that contradict
    each other."""

    what: list[str] = setting(
        [], f"Analyses: some of {', '.join(WHAT)}. Default all that can be made.", items=WHAT
    )
    kinds: list[str] = setting([], OF_KINDS, items=KIND_CHOICES)
    system: str | None = setting(
        None, "System of the run: base, base-continued or pruned. Default its own; analyze looks at the base."
    )
    siblings: bool = setting(False, "Compare with all finished runs that were made of the same base.")
    sentences: int = setting(
        0, "Sentences that scores, analyses and checks read, a sample; 0: their own number.", at_least=0
    )
    split: Literal["valid", "test"] = setting("valid", "Text that is read.", rare=True)
    text: str | None = setting(
        None, "Source sentences that are read instead: a file of lines or CoNLL-U; enc-self alone."
    )
    name: str | None = setting(None, "Name of what the command makes. One is put together without it.")
    causes: bool = setting(
        False, "Also measure what closing each head does to the loss, and compare every score with it."
    )
    causes_sentences: int = setting(
        200, "causes: training pairs that are read, a sample; 0 for all.", at_least=0, rare=True
    )
    pair_heads: int = setting(
        12,
        "causes: heads of which all pairs are closed, those that cost most; 0: all.",
        at_least=0,
        rare=True,
    )
    contrast: str | None = setting(
        None,
        "Also measure what every head does for the right of two outputs: toy:case, en-de:number and others "
        "(docs/explain.md), or a file.",
    )
    contrast_heads: list[str] = setting(
        [],
        "contrast: heads that are closed, and kept alone, such as decoder.0.cross.3; default those that "
        "every other contrast shows.",
        rare=True,
    )
    contrast_into: str | None = setting(
        None,
        "contrast: the q, k or v of a head that paths lead into, such as decoder.0.cross.3.v.",
        rare=True,
    )
    parses: str | None = setting(
        None,
        "Dependency trees for syntax: spacy:MODEL_OR_PATH, conllu:FILE, or gold (the toy languages' own).",
    )
    labels: list[str] = setting(
        [],
        f"syntax: relations, by CLEAR's or UD's names; default those of {', '.join(LABELS)} that occur.",
        rare=True,
    )
    rare_rank: int = setting(
        0,
        "rare: most frequent pieces that are not rare; 0: 500 (the paper), for toy 50.",
        at_least=0,
        rare=True,
    )
    lrp_rule: Literal["gate-gradient", "ratio"] = setting(
        "gate-gradient",
        "lrp: how relevance is shared: by one backward pass, or step by step (ratio, the paper).",
        rare=True,
    )
    lrp_aggregation: Literal["step", "sum"] = setting(
        "step",
        "lrp: step takes shares at every generation step and then their mean (the paper); sum adds the steps "
        "first, which takes less time.",
        rare=True,
    )
    examples: int = setting(3, "Sentences of the text whose attention the page draws.", at_least=0)
    examples_from: str | None = setting(
        None, f"File of up to {MOST_EXAMPLES} source lines whose attention the page draws first."
    )
    threads: int = setting(0, "CPU threads for torch, 0 for all.", at_least=0)
    fresh: bool = setting(False, "Repeat what is finished. What it wrote is emptied first.")

    def __post_init__(self) -> None:
        check_ranges(self)
        check_plain_name("--name", self.name)
        asked = {"--causes": self.causes, "--contrast": self.contrast is not None}
        asked |= {f"--what {name}": not self.what or name in self.what for name in ("syntax", "rare", "lrp")}
        for name, needed in NEEDS.items():
            if getattr(self, name) != getattr(Analyses, name, []) and not asked[needed]:
                raise ValueError(f"{name} is for {needed}: add it, or leave {name} out")
        if not set(self.attention) <= set(KINDS):
            raise ValueError(
                f"--kinds {','.join(self.kinds)}: analyses look at attention; take some of {', '.join(KINDS)}"
            )
        if self.text is not None and "enc-self" not in self.attention:
            raise ValueError(
                "--text has no translations, so enc-self attention alone is looked at; --kinds is "
                f"{','.join(self.kinds)}"
            )

    @property
    def attention(self) -> list[str]:
        """The kinds of attention that are looked at: all, unless some are named."""
        return kinds_named(self.kinds or ["heads"])


NEEDS = {  # a setting -> what it is a setting of
    "causes_sentences": "--causes",
    "pair_heads": "--causes",
    "contrast_heads": "--contrast",
    "contrast_into": "--contrast",
    "parses": "--what syntax",
    "labels": "--what syntax",
    "rare_rank": "--what rare",
    "lrp_rule": "--what lrp",
    "lrp_aggregation": "--what lrp",
}
