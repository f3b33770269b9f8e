"""The head scores of choosers.py, kept in the run folder; the lowest close first.   Michel et al. 2019,
sections 4.1 and 4.2."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from headgates.analysis.closing import close_to
from headgates.configs.fields import one_line, shortened
from headgates.configs.recipe import Recipe
from headgates.configs.registry import imported
from headgates.data import ranks
from headgates.data.ranks import first
from headgates.data.text import digest_lines
from headgates.gates import FFN_KINDS, KINDS, WIDTH, HeadMap, find_sites
from headgates.gates.headmap import KIND_GROUPS, check_kinds
from headgates.lab.lab import Run
from headgates.models.progress import minutes, say
from headgates.pruning.choosers import SCORES, STANDS, Score, score_named, score_of
from headgates.records.folder import HeadMapRecord
from headgates.records.source import Lines, Source

SCORE_WISH = "expected f(model, batches) to return a HeadMap"


@dataclass(frozen=True)
class ScoreRequest:
    """Everything that a score may take. source: the model without gates, its text and its folder; valid: the
    validation lines on which outputs are scored; sentences: training pairs that are read, 0 for the score's
    own number; a sample where the run has more. seed: of the sample, and of what else the score draws."""

    source: Source
    valid: Lines = ((), ())  # type: ignore[assignment]  # for scores that need no outputs
    kinds: Sequence[str] | None = None
    seed: int = 1
    sentences: int = 0
    fresh: bool = False
    file: str = ""  # where the scores are kept, without a suffix


def request_of(run: Run, recipe: Recipe, source: Source) -> ScoreRequest:
    """What a recipe asks of its score. source: the base, on the run's text."""
    return ScoreRequest(
        source,
        valid=source.lines("valid"),
        kinds=recipe.kinds if recipe.gates_neurons else None,
        seed=recipe.seed,
        sentences=run.settings.sentences,
        fresh=run.lab.repeats(f"score {score_of(recipe)}, seed {recipe.seed}"),
    )


def head_scores(name: str, request: ScoreRequest) -> HeadMap:
    """The scores of every head of the source's model, read from scores/ in the run folder, or computed and
    written there."""
    return score_parts(name, request)[score_named(name).part]


def score_parts(name: str, request: ScoreRequest) -> dict[str, HeadMap]:
    """All that the score's function gives, as `head_scores` reads or computes it, by part (`Score.part`)."""
    request = filed(name, request)
    return checked_scores(request.source, f"{request.file}.json", kept(name, request), request.kinds)


class ScoresRecord(TypedDict, total=False):
    """A file of scores: those of the heads, or parts of them."""

    heads: HeadMapRecord
    parts: dict[str, HeadMapRecord]
    seconds: float


def scoring_seconds(name: str, request: ScoreRequest) -> float:
    """The seconds that `head_scores` took, then or now."""
    return kept(name, filed(name, replace(request, fresh=False))).get("seconds", 0.0)


def filed(name: str, request: ScoreRequest) -> ScoreRequest:
    """The request for all that the file of the scores holds."""
    if not score_named(name).measures_outputs:
        request = replace(request, kinds=whole_groups(request.kinds))  # one file, which others read too
    return replace(request, file=f"scores/{score_file(name, request)}")


def kept(name: str, request: ScoreRequest) -> ScoresRecord:
    """The content of the scores' file, which is made where it is not there. request: `filed`."""
    score = score_named(name)

    def made() -> ScoresRecord:
        begin = time.perf_counter()
        parts = {part: scores.to_json() for part, scores in compute_scores(score, request).items()}
        seconds = time.perf_counter() - begin
        if score.part:
            return {"parts": parts, "seconds": seconds}
        return {"heads": parts[""], "seconds": seconds}

    folder, file = request.source.folder, f"{request.file}.json"
    return folder.cached(file, ScoresRecord, cache_key(name, request), made, fresh=request.fresh)


def cache_key(name: str, request: ScoreRequest) -> dict[str, Any]:
    """All that the scores depend on."""
    score, source = score_named(name), request.source
    outputs = score.measures_outputs
    return {
        "function": score.function,
        "weights": source.weights,
        "text": source.corpus.digest(),
        "pairs": [pairs_read(score, request), pairs_sampled(score, request)]
        if score.sample is not None
        else None,
        "seed": request.seed if draws(score, request) else None,
        "valid": digest_lines(*request.valid) if outputs else None,
        "beam": beam_of(source) if outputs else None,
    }


def checked_scores(
    source: Source, file: str, made: ScoresRecord, kinds: Sequence[str] | None
) -> dict[str, HeadMap]:
    """Part -> scores, in the content of a file. Raises ValueError where one lacks heads of the source's
    model."""
    try:
        parts = made["parts"] if "parts" in made else {"": made["heads"]}
        found = {part: HeadMap.from_json(rows) for part, rows in parts.items()}
    except (AttributeError, KeyError, ValueError) as error:
        raise source.folder.foreign(file, f"it holds no scores of heads ({error})") from error
    for site in find_sites(source.predictor.model, kinds):
        if site.heads and any(site not in scores for scores in found.values()):
            raise source.folder.foreign(file, f"it has no scores of the {site.heads} heads of {site.name}")
    return found


def compute_scores(score: Score, request: ScoreRequest) -> dict[str, HeadMap]:
    """Part -> scores, by the score's function with the fields of the request that it takes; "" is the part of
    a function that gives one HeadMap."""
    begin = time.monotonic()
    found = call(score.function, score, request)
    if score.sample is not None:
        count = pairs_sampled(score, request)
        pairs = f"{f'a sample of {count:,}' if count else 'the'} training pairs"
        say(f"{request.file}: from {pairs}, {minutes(time.monotonic() - begin)}")
    parts = found if score.part else {"": found}
    if not isinstance(parts[score.part], HeadMap):
        raise ValueError(f"--by {score.function}: {SCORE_WISH}; got {shortened(found)}")
    # the last digit may be another's on another machine, and near ties close other heads
    return first(lambda: parts)


def call(name: str, score: Score, request: ScoreRequest, *arguments: Any, **options: Any) -> Any:
    """What the function `name` of a score makes of the model, the training pairs and the fields that the
    score takes."""
    function: Any = imported(name)
    task = request.source.task
    known = {"loss": task.loss, "draw": task.sampled, "logits": task.top_logits, "ranks": ranks}
    options |= {name: known.get(name) or getattr(request, name) for name in score.takes}
    batches = request.source.train_batches(pairs_read(score, request), request.seed)
    try:
        return function(request.source.model, batches, *arguments, **options)
    except Exception as error:
        if score in SCORES.values() or isinstance(error, (ValueError, OSError)):
            raise
        # whatever the user's function raises
        raised = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"--by {name}: {SCORE_WISH}; it raised {raised}") from error


def pairs_read(score: Score, request: ScoreRequest) -> int:
    """How many training pairs the score reads, if there are as many."""
    return request.sentences or score.sample or 0


def pairs_sampled(score: Score, request: ScoreRequest) -> int:
    """How many training pairs are sampled for the score; 0 where it reads all of the run's."""
    return request.source.sampled(pairs_read(score, request))


def draws(score: Score, request: ScoreRequest) -> bool:
    """Whether the score depends on the seed: by its sample, or by what it draws itself."""
    return "seed" in score.takes or (score.sample is not None and pairs_sampled(score, request) > 0)


def ranked(name: str, scores: HeadMap) -> HeadMap:
    """Signed and normalised scores: the lowest closes first."""
    score = score_named(name)
    scores = scores.l2_per_layer() if score.l2 else scores
    return scores.map(lambda row: score.sign * row)


def lowest_closed(scores: HeadMap, keep: int | Mapping[str, int]) -> HeadMap:
    """The mask (True: closed) that leaves so many open by ranked scores: heads exactly, the neurons of each
    layer by a multiple of WIDTH.

    keep: how many heads in all, or of each kind, or as "heads", and how many neurons, as "ffn"; what it lacks
    keeps all. Raises ValueError unless 0 <= keep <= heads, or at a kind without scores."""
    if isinstance(keep, int):
        return close_to(scores, keep)
    heads, neurons = scores.select(KINDS), scores.select(FFN_KINDS)
    of_kinds = {kind: count for kind, count in keep.items() if kind not in ("heads", "ffn")}
    count = keep.get("ffn", neurons.heads_total)
    return HeadMap(
        {**close_to(heads, keep.get("heads", of_kinds)), **close_to(neurons, count, multiple=WIDTH)}
    )


def closed_by(
    name: str, scores: HeadMap, *, keep: int | Mapping[str, int], request: ScoreRequest | None = None
) -> HeadMap:
    """The mask that leaves so many of the scored heads and neurons open (True: closed), the lowest closed
    first.

    keep: of `lowest_closed`, as are the errors. request: what the scores were made of, where the choice at a
    count is to be refined as the score says (`Score.refine`)."""
    score, closed = score_named(name), lowest_closed(ranked(name, scores), keep)
    if request is None or (refine := score.refine) is None:
        return closed
    by_kind = isinstance(keep, Mapping) and "heads" not in keep
    # once for all ranks: near ties may differ
    better: HeadMap = first(lambda: call(refine, score, request, closed, by_kind=by_kind))
    assert better.count() == closed.count(), f"{refine} must close as many heads as before"
    return better


def score_file(name: str, request: ScoreRequest) -> str:
    """The file name in scores/, with everything the scores depend on beside the model and its own text."""
    score, beam = score_named(name), beam_of(request.source)
    outputs, lines, kinds = score.measures_outputs, len(request.valid[0]), kinds_suffix(request.kinds)
    sampled = pairs_sampled(score, request)
    asked = request.sentences or (
        0 if score.sample == STANDS else score.sample
    )  # importance of all needs none
    marks = {
        score.code: bool(score.code),
        f"sampled{sampled}": score.sample is not None and sampled,
        f"n{asked}": score.sample is not None and asked and not sampled,
        f"beam{beam}": outputs and beam > 1,
        f"v{lines}": outputs and lines < len(request.source.corpus.valid),
        "+".join(kinds): (outputs or not {*FFN_KINDS}.isdisjoint(request.kinds or ())) and kinds,
        f"seed{request.seed}": score.by_chance or (draws(score, request) and request.seed != 1),
    }
    said = [mark for mark, differs in marks.items() if differs]
    word = (score.family or name).replace(":", ".")
    return "-".join([word, *said, *text_suffix(request.source)])


def text_suffix(source: Source) -> list[str]:
    """Parts of a file name that tell the source's text from the one its run was trained on; none if they are
    the same."""
    recorded = source.folder.config() if (source.folder / "config.yaml").is_file() else source.config
    own, settings = recorded.get("text", {}), source.config.get("text", {})
    trained_on = (source.folder.result().get("data") or {}).get("text_digest")
    digest = source.corpus.digest()
    parts = [] if trained_on in (None, digest) else [f"text{digest}"]
    return parts + [
        f"{name}{settings[name]}"
        for name in ("train_sentences", "max_length")
        if settings.get(name) != own.get(name)
    ]


def beam_of(source: Source) -> int:
    """The beam width of a translator; 1 for a predictor without search."""
    return getattr(getattr(source.predictor, "search", None), "beam", 1)


def kinds_suffix(kinds: Sequence[str] | None) -> list[str]:
    """The kinds as part of a file name; none if all of attention are chosen."""
    chosen = check_kinds(kinds)
    words = {kinds: word for word, kinds in KIND_GROUPS.items()}
    return [] if chosen == KINDS else [words.get(chosen, "+".join(chosen))]


def whole_groups(kinds: Sequence[str] | None) -> tuple[str, ...] | None:
    """All kinds of attention, None, of feed-forward layers, or both, where any of them is asked for."""
    both = [group for group in (KINDS, FFN_KINDS) if kinds is None or set(group) & set(kinds)]
    return None if both == [KINDS] or kinds is None else tuple(kind for group in both for kind in group)
