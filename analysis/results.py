"""What an analysis of a model's heads found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgates.gates import HeadMap


@dataclass(frozen=True)
class AnalysisResult:
    """head_maps: by the name of what they hold. facts: of all heads together, such as baselines and numbers
    of sentences. tables: rows of columns."""

    head_maps: dict[str, HeadMap]
    facts: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def head_map_of(results: Mapping[str, AnalysisResult], analysis: str, name: str) -> HeadMap | None:
    return results[analysis].head_maps.get(name) if analysis in results else None
