"""The scores of configs/scores.py, computed and kept: heads are closed lowest first.   Michel et al. 2019, sections 4.1 and 4.2."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from configs.registry import imported
from configs.scores import SCORES, Score
from gates import KINDS, HeadMap
from models.progress import Report, say
from runfolder.source import Lines, Source


@dataclass(frozen=True)
class ScoreRequest:
    """What a score may be given. source: the model without gates, its text and its folder; valid: the validation lines that outputs are
    measured on. sentences: training pairs that gradients are taken over, 0 for those of the run."""

    source: Source
    valid: Lines = ((), ())  # type: ignore[assignment]  # of scores that measure no outputs
    kinds: Sequence[str] | None = None
    seed: int = 1
    sentences: int = 0
    absolute: Literal["sentence", "token", "batch"] = "sentence"
    closed: HeadMap | None = None  # heads that are shut already, for a score computed again
    fresh: bool = False
    report: Report = say
    file: str = ""  # of what is kept, without a suffix

    @property
    def loss(self) -> Callable[[Any, Any], Tensor]:
        """(model, batch) -> the loss of the source's task, summed over the batch."""
        return self.source.task.loss


def head_scores(name: str, request: ScoreRequest) -> HeadMap:
    """The scores of every head of the source's model; from the run folder's scores/ where they are there, else computed and kept there.

    Scores with heads shut (`closed`) are always computed, and not kept."""
    score, source = SCORES[name], request.source
    if request.closed is None and "valid" not in score.takes:
        request = replace(request, kinds=None)  # one file for all kinds, which others read too
    request = replace(request, file=f"scores/{score_file(name, request)}")
    if request.closed is not None:
        return compute(score, request)
    if not names_kinds(score):
        request = replace(request, kinds=None)  # the file serves commands of other kinds too
    earlier = f"scores/gradient-{source.corpus.digest()}{f'-{request.sentences}' if request.sentences else ''}"  # fit.py's until 0.1
    for file in (request.file, *([earlier] if score.from_gradients and request.absolute == "sentence" else [])):
        if (source.folder / f"{file}.json").is_file() and not request.fresh:
            return HeadMap.load(source.folder / f"{file}.json")
    scores = compute(score, request)
    source.folder.write_json(f"{request.file}.json", scores.to_json())
    return scores


def compute(score: Score, request: ScoreRequest) -> HeadMap:
    """Call the score's function with what it takes."""
    source = request.source
    if score.from_gradients:
        pairs = f"the first {request.sentences:,}" if request.sentences else "the"
        if request.closed is None:
            request.report(f"{request.file}: one forward and backward pass over {pairs} training pairs")
    function: Any = imported(score.function)
    given = {name: getattr(request, name) for name in score.takes}
    found = function(source.predictor.model, source.train_batches(request.sentences), **given)
    assert isinstance(found, HeadMap), f"{score.function} must give a HeadMap"
    return found


def ranked(name: str, scores: HeadMap, *, l2: bool | None = None) -> HeadMap:
    """Scores ready to be ordered, the first head to close lowest. l2: divide by each layer's norm, as the score does unless given."""
    score = SCORES[name]
    scores = scores.l2_per_layer() if (score.l2 if l2 is None else l2) else scores
    return scores.map(lambda row: score.sign * row)


def closed_by(name: str, scores: HeadMap, *, keep: int) -> HeadMap:
    """True at the heads that close when exactly `keep` of the scored ones stay. Raises ValueError unless 0 <= keep <= heads."""
    if not 0 <= keep <= scores.heads_total:
        raise ValueError(f"cannot keep {keep} of {scores.heads_total} heads; expected 0 to {scores.heads_total}")
    return ranked(name, scores).lowest(scores.heads_total - keep)


def step_counts(heads: int, step: float) -> list[int]:
    """Closed heads at each step of a curve: ceil(heads * i * step) from 0 until all, each number once.   As the paper's code counts."""
    counts = {0}
    for i in range(1, math.ceil(1 / step - 1e-9) + 1):
        counts.add(min(heads, math.ceil(heads * i * step - 1e-9)))  # 10 * 3 * 0.1 is a little above 3
    return sorted(counts | {heads})


def score_file(name: str, request: ScoreRequest) -> str:
    """The name in scores/, with all that the scores depend on beside the model and its own text."""
    score = SCORES[name]
    words = [score.family or name]
    if score.from_gradients:
        words += [request.absolute] * (request.absolute != "sentence") + [f"n{request.sentences}"] * (request.sentences > 0)
    if "valid" in score.takes:
        beam, lines = beam_of(request.source), len(request.valid[0])
        words += [f"beam{beam}"] * (beam > 1) + [f"v{lines}"] * (lines < len(request.source.corpus.valid))
    if names_kinds(score):
        words += kinds_words(request.kinds)
    if score.seeded:
        words.append(f"seed{request.seed}")
    words += text_words(request.source)
    return "-".join(words)


def text_words(source: Source) -> list[str]:
    """What tells the source's text from that which its run was trained on, as part of a file's name: nothing for the same."""
    recorded = source.folder.config() if (source.folder / "config.yaml").is_file() else source.config
    own, settings = recorded.get("text", {}), source.config.get("text", {})
    trained_on = (source.folder.result() or {}).get("data", {}).get("text_digest")
    digest = source.corpus.digest()
    words = [] if trained_on in (None, digest) else [f"text{digest}"]
    return words + [f"{name}{settings[name]}" for name in ("train_sentences", "max_length") if settings.get(name) != own.get(name)]


def names_kinds(score: Score) -> bool:
    """Each head costs outputs of its own, so that the file holds the kinds that were asked for, and says which."""
    return "valid" in score.takes


def beam_of(source: Source) -> int:
    """The beam of a translator; 1 for what does not search."""
    return getattr(getattr(source.predictor, "search", None), "beam", 1)


def kinds_words(kinds: Sequence[str] | None) -> list[str]:
    """The kinds as part of a file's name: nothing for all."""
    chosen = [kind for kind in KINDS if kinds is None or kind in kinds]
    return [] if len(chosen) == len(KINDS) else ["+".join(chosen)]
