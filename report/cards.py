"""cards.json, which the page of a run is drawn from: what later pages, and explore's, take of it."""

from typing import Any, NotRequired, TypedDict

from headgates.configs.program import command_line
from headgates.records.folder import VERSION, RunFolder
from headgates.report.page import compact


class RoleRecord(TypedDict):
    family: str
    score: float
    baseline: float


class CardRecord(TypedDict):
    """What later pages take of a head's card."""

    site: str
    head: int
    roles: list[RoleRecord]
    asked: list[str]
    confidence: float | None
    lrp_share: float | None
    lrp_signed: float | None
    entropy: float | None
    offsets: list[Any]


class ExampleRecord(TypedDict):
    """text: that was read, source: its pieces, weights: site -> heads -> queries -> keys."""

    text: str
    source: list[str]
    own: bool
    weights: dict[str, list[list[list[float]]]]


class SentenceRecord(TypedDict):
    weights: dict[str, dict[str, list[list[float]]]]


class ContrastRecord(TypedDict):
    name: str


class AnalysesRecord(TypedDict):
    """What each analysis read and said, and of which weights."""

    weights: str
    read: dict[str, dict[str, Any]]
    facts: dict[str, Any]


class CardsRecord(TypedDict):
    settings: AnalysesRecord
    heads: list[CardRecord]
    examples: list[ExampleRecord]
    sentences: NotRequired[list[SentenceRecord]]
    causes: NotRequired[dict[str, Any] | None]
    contrasts: NotRequired[list[ContrastRecord] | None]
    survival: list[dict[str, Any]]
    tests: list[dict[str, Any]]
    correlations: list[dict[str, Any]]


def kept_cards(folder: RunFolder, place: str, weights: str) -> CardsRecord | None:
    """The cards.json that analyze wrote of these weights to a folder of analyses; None where there is none.
    Raises ValueError if the file is broken."""
    file = f"{place}/cards.json"
    if not (folder / file).is_file():
        return None
    cure = f"`{command_line('analyze', folder.path)} --fresh` makes it again"
    cards = folder.read_json(file, CardsRecord, cure=cure)
    return cards if cards["settings"]["weights"] == weights else None


def write_cards(folder: RunFolder, place: str, data: dict[str, Any]) -> None:
    """Write cards.json to a folder of analyses."""
    folder.write_text(f"{place}/cards.json", compact({"version": VERSION, **data}) + "\n")
