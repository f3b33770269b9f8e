"""The rows that scores make: a base with exactly K heads open, the highest scores, as closed and trained on;
and a run of such rows alone.

What a row's name says is read in configs/scores.py: greedy, greedy-repair, greedy-finetuned,
greedy-repair-finetuned.
"""

from itertools import groupby
from typing import TYPE_CHECKING, Any

from headgates.configs.scores import FINETUNED, SCORES, ZERO, ScoreRow, all_score_rows, score_rows
from headgates.gates import attach, find_sites
from headgates.lightning_modules.stage import freeze_decoder
from headgates.models.progress import say
from headgates.workbench.closing import Calibration, close_heads
from headgates.workbench.evaluation import Evaluation
from headgates.workbench.fingerprint import SCORED
from headgates.workbench.folder import RunFolder
from headgates.workbench.scores import closed_by, head_scores

if TYPE_CHECKING:
    from headgates.workbench.experiment import Experiment


def scored_run(experiment: "Experiment", base: RunFolder) -> RunFolder:
    """Return the run of `--gate none --heads K`: no learned gates, the rows of scores at exactly K heads. Its
    own system is the last.

    Raises ValueError, before anything is trained on the base, where it has fewer heads."""
    config, text = experiment.config, experiment.text
    assert config.heads is not None  # a run of scores is told
    total = sum(site.heads for site in find_sites(text.source(base).model) if site.kind in config.kinds)
    if config.heads > total:
        raise ValueError(
            f"--heads: cannot keep {config.heads} of {total} heads of {', '.join(config.kinds)}; give a smaller number"
        )
    continued = experiment.continued(base) if "base-continued" in config.systems else None
    name = config.name or f"{text.prefix}-heads-{config.heads}-s{config.seed}"
    fingerprint = experiment.fingerprint_on(base, SCORED)
    how: Any = {"scored": True, "base": base, "fresh": config.fresh, "strict": not config.unique}
    folder, done = experiment.claim_folder(name, fingerprint, gate=SCORED, **how)
    if done:
        say(f"run: {folder.path} (finished, same configuration; --fresh repeats it)")
        return folder
    experiment.tracker.open(folder, "scores", base)
    evaluation = experiment.bases_evaluated(folder, text.load(base), base, continued)
    add_score_rows(experiment, folder, base, continued, keep=config.heads, total=total, evaluation=evaluation)
    experiment.write_result(folder, evaluation, system=evaluation.rows[-1].system)
    experiment.tracker.finish(text.test)
    return folder


def add_score_rows(
    experiment: "Experiment",
    folder: RunFolder,
    base: RunFolder,
    continued: RunFolder | None,
    *,
    keep: int,
    total: int,
    evaluation: Evaluation,
) -> None:
    """Add every row of a score that the configuration names, with `keep` of the `total` heads of its kinds
    open. Where none is closed, the rows are those of the bases."""
    for score, names in score_rows(experiment.config.systems).items():
        if continued is not None and keep == total:
            for name in names:
                other, run = ("base-continued", continued) if name.endswith(FINETUNED) else ("base", base)
                evaluation.repeat(name, other, run / "best.pt", because="no head is closed")
        else:
            pruned_by_score(experiment, score, names, folder, base, keep=keep, evaluation=evaluation)


def pruned_by_score(
    experiment: "Experiment",
    score: str,
    names: list[str],
    folder: RunFolder,
    base: RunFolder,
    *,
    keep: int,
    evaluation: Evaluation,
) -> None:
    """Close all but `keep` of the gated kinds' heads on the base, lowest scores first, in each of the ways
    that the rows name; then fine-tune as long as the gates were."""
    config, text, record = experiment.config, experiment.text, SCORES[score]
    source = text.source(base)
    request = experiment.score_request(source)
    scores = head_scores(score, request).select(config.kinds)
    told = config.told_heads
    how: dict[str, Any] = {"per_kind": told} if isinstance(told, dict) else {"keep": keep}
    closed = closed_by(score, scores, request=request, **how)
    folder.write_json(f"scores/{record.family or score}.json", scores.to_json())
    xi = (~closed).map(lambda row: row.double())
    rows = all_score_rows()
    for closing, of_closing in groupby(names, key=lambda name: rows[name].closing):
        source, weights = text.source(base), base / "best.pt"
        predictor = source.predictor
        if closing != ZERO:
            close_heads(
                source.model, closed, closing, Calibration(source)
            )  # on a sample of the run's own training text
            weights = folder / f"{ScoreRow(score, closing).name}.pt"
            experiment.task.save_model(weights, predictor)
        attach(predictor.model, gate="mask", kinds=config.kinds, xi=xi)
        for name in of_closing:
            if not rows[name].finetuned:
                evaluation.add(name, weights, predictor, ~closed, xi=xi)
                continue
            if config.freeze_decoder:
                freeze_decoder(predictor.model)
            module = experiment.finetuning(predictor, base, seed_offset=record.finetune_seed)
            result = experiment.train(name, module, folder, config.finetune, base=base, prefix=f"{name}-")
            (folder / f"{name}-last.pt").unlink(missing_ok=True)
            evaluation.add(name, folder / result.weights, predictor, ~closed, xi=xi, stage=result.to_json())
