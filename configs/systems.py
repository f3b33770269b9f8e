"""The systems of a comparison, which are the rows of result.json: one grammar for `systems:`, --systems and
--methods.

    base  base-continued                the model with all heads, and trained on
    l0-soft  l0  l0-removed  ...        the rows of a method that learns which heads stay (configs/methods.py)
    importance                          the lowest heads by a score closed
    importance:out+ffn+v                ... with these weights refitted (configs/closing.py; zero has no word)
    importance:out+ffn+v:trained        ... and trained on for as many steps as the gates
    plan  plan:trained  uniform  ...    models for a speed (configs/speed_methods.py)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headgates.configs.closing import ABLATIONS, LASTING, RECONSTRUCTIONS, ZERO
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.methods import METHODS
from headgates.configs.scores import SCORES
from headgates.configs.speed_methods import DEFAULT, PLAN, labels

BASES = ["base", "base-continued"]
UNPRUNED = dict(zip(BASES, ("unpruned", "unpruned, trained as long"), strict=True))  # their labels
PLANNED = labels()  # the rows of models for a speed
USUAL_SCORES = ["importance"]  # beside the gates unless --systems says otherwise
TRAINED = "trained"


@dataclass(frozen=True)
class ScoreRow:
    """A row of a score. closing: one of LASTING. trained: as long as the gates."""

    score: str
    closing: str = ZERO
    trained: bool = False

    @property
    def name(self) -> str:
        """As in the grammar."""
        return ":".join([self.score, *[self.closing] * (self.closing != ZERO), *[TRAINED] * self.trained])

    @classmethod
    def parse(cls, name: str) -> "ScoreRow | None":
        """The row of this name, None where it is no row of a score."""
        score, *words = name.split(":")
        trained = words[-1:] == [TRAINED]
        closings = words[: len(words) - trained] or [ZERO]
        row = cls(score, closings[0], trained)
        return row if row.name == name and score in SCORES and row.closing in LASTING else None


def file_name(system: str) -> str:
    """The system in names of files, where a colon is not safe."""
    return system.replace(":", "-")


def score_rows(systems: Iterable[str]) -> dict[str, list[ScoreRow]]:
    """Score -> those of its rows that are among the systems, closing by closing, the plain row before the
    trained one."""
    rows = [row for row in map(ScoreRow.parse, sorted(systems, key=place)) if row is not None]
    return {
        score: [row for row in rows if row.score == score] for score in dict.fromkeys(r.score for r in rows)
    }


def place(system: str) -> tuple[int, ...]:
    """Where a system stands in tables: bases, rows of learned gates, rows of scores; an unknown one last."""
    row, plain = ScoreRow.parse(system), [*BASES, *learned_rows(), *PLANNED]
    if row is not None:
        return 1, list(SCORES).index(row.score), LASTING.index(row.closing), row.trained
    return (0, plain.index(system)) if system in plain else (2,)


def record(system: str, epochs: int | None = None) -> dict[str, Any]:
    """What a row's name says, as result.json holds it: its method, what a closed head outputs, which weights
    were refitted, and the epochs of its last training."""
    row = ScoreRow.parse(system) or ScoreRow(system)
    return {
        "method": row.score,
        "ablation": row.closing if row.closing in ABLATIONS else ZERO,
        "reconstruct": row.closing if row.closing in RECONSTRUCTIONS else None,
        "epochs": epochs or 0,
    }


def label(system: str) -> str:
    """What figures and tables call a system."""
    row = ScoreRow.parse(system)
    if row is None:
        named = [UNPRUNED, PLANNED, *(method.labels for method in METHODS.values())]
        return next((labels[system] for labels in named if system in labels), system)
    words = [SCORES[row.score].label or row.score]
    if row.closing != ZERO:
        refitted = row.closing in RECONSTRUCTIONS and row.closing != "distill"
        words.append(f"{row.closing} refitted" if refitted else row.closing)
    return ", ".join(words + [f"{TRAINED} as long"] * row.trained)


def default_systems(gate: str) -> list[str]:
    """The rows of a comparison unless --systems names others."""
    if gate == PLAN:
        return [*BASES, *DEFAULT]
    method = METHODS.get(gate)
    scores = [ScoreRow(score, trained=trained).name for score in USUAL_SCORES for trained in (False, True)]
    return [*BASES, *(method.rows if method else []), *scores]


def learned_rows() -> list[str]:
    """The rows of all methods that learn which heads stay."""
    return [row for method in METHODS.values() for row in (*method.rows, method.scratch)]


def grammar(plain: Iterable[str], end: str = "") -> str:
    """The systems that a flag takes, in words."""
    return (
        f"{', '.join(plain)}, SCORE[:CLOSING]{end}, where SCORE is {', '.join(SCORES)} and CLOSING "
        f"{', '.join(name for name in LASTING if name != ZERO)}"
    )


def check_systems(flag: str, systems: list[str], plain: list[str], end: str = "") -> None:
    """Raises ValueError unless each system is one of the plain names or a row of a score, given once. end:
    what a row may end in, ":trained" in brackets or nothing."""
    for name in systems:
        row = ScoreRow.parse(name)
        if name not in plain and (row is None or (row.trained and not end)):
            rows = [ScoreRow(s, c, t).name for s in SCORES for c in LASTING for t in {False, bool(end)}]
            hint = did_you_mean(name, [*plain, *rows])
            raise ValueError(
                f"{flag}: expected some of {grammar(plain, end)}, separated by commas; got {name}{hint}"
            )
    if len(set(systems)) < len(systems) or not systems:
        raise ValueError(f"{flag}: expected systems, each once; got {', '.join(systems) or 'none'}")
