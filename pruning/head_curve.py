"""One run, many numbers of heads (`fit.py --curve`, `--max-drop`): each count starts from the smaller model
of the count before, and the fewest heads at an accepted drop are found on validation and confirmed once on
the test set.

Files: `K-heads.pt`, the model with K heads; `K-stage.json`, how it was trained; `hypotheses/valid-K.txt`;
`curve.csv`, a row for each count; `knee.json`, what was accepted and what was found; `heads-curve.png` and
`.svg`.
"""

from collections.abc import Sequence

from headgates.analysis.knee import SLACK, Drop, drop, knee
from headgates.analysis.significance import RESAMPLES, Scored, resample_counts, score
from headgates.configs.methods import METHODS
from headgates.data.ranks import first, wait
from headgates.gates import detach, heads_left, remove
from headgates.lab.lab import Lab, Run, curve_counts
from headgates.models.progress import say
from headgates.pruning.scores import kinds_suffix
from headgates.pruning.stages import train_gates
from headgates.records.folder import RunFolder
from headgates.records.source import best_device
from headgates.records.table import Row, write_table
from headgates.tasks.base import Predictor

KNEE = "knee.json"


def curve_run(lab: Lab, base: RunFolder, continued: RunFolder | None) -> RunFolder:
    """The run of a configuration with `curve` or `max_drop`. The knee of a finished one is found again where
    another drop is accepted.

    Raises ValueError at counts that the model does not have."""
    config = lab.config
    words = ["curve" if config.curve else "fewest", *kinds_suffix(config.kinds), f"s{config.seed}"]
    name = "-".join([lab.text.prefix, config.gate, *words])
    counts = curve_counts(config, heads_left(lab.text.load(base).model).select(config.kinds).count())
    with lab.run(name, gate=config.gate, on=base, curve=config.curve or "fewest") as run:
        if not run.done or run.folder.read_json(KNEE)["max_drop"] != config.drop_limit:
            make_curve(run, continued, counts)
    return run.folder


def make_curve(run: Run, continued: RunFolder | None, counts: Sequence[int]) -> None:
    """Train what is not there yet, find the knee, and write the comparison."""
    limit, metric, predictor = run.config.drop_limit, run.task.metrics[0], run.load()
    evaluation = run.compare_with(continued, predictor)
    better = continued if evaluation.reference == "base-continued" and continued else run.base
    reference = validated(run, "reference", run.text.load(better))
    learned = not evaluation.reference_row.unlearned
    resamples = resample_counts(len(run.text.corpus.valid), RESAMPLES)
    rows, drops = [], []
    for count in counts:
        predictor = smaller(run, predictor, count)
        scored = validated(run, str(count), predictor)
        found = drop(count, scored, reference, resamples)
        row = curve_row(run, predictor, scored, found, learned=learned)
        drops.append(found)
        rows.append(row)
        write_table(run.folder, "curve.csv", rows)
        say(
            f"{count} of {row['heads_total']} heads: {metric.title} "
            f"{row[f'valid_{metric.name}']:.2f} on validation"
            + f", {found.mean:.2f} lost (95% bound {found.bound:.2f}): " * learned
            + ("accepted" if row["acceptable"] else "too much") * learned
        )
    best = knee(drops, limit) if learned else None
    shown = (best or drops[0]).heads_open
    name, stage = f"{METHODS[run.config.gate].name}-{shown}", f"{shown}-stage.json"
    wait()  # for the first rank to have written it
    weights = run.folder / f"{shown}-heads.pt"
    evaluation.add(name, weights, load_count(run, shown), None, stage=run.folder.read_json(stage))
    against = str(evaluation.reference)
    ours, theirs = evaluation.scored[name], evaluation.scored[against]
    tested = {
        each.name: drop(shown, ours, theirs, evaluation.counts, metric=each.name) for each in run.task.metrics
    }
    write_knee(run, best, against, tested)
    run.finish(name)


def smaller(run: Run, predictor: Predictor, count: int) -> Predictor:
    """The model with `count` heads, trained from that of the count before unless it is there."""
    weights = run.folder / f"{count}-heads.pt"
    if first(weights.is_file):
        return load_count(run, count)
    name, prefix = f"{count} heads", f"{count}-"
    bank, *_ = train_gates(run, METHODS[run.config.gate], predictor, targets=count, name=name, prefix=prefix)
    closed = bank.closed()
    detach(predictor.model)
    remove(predictor.model, closed)
    run.task.save_model(weights, predictor)
    for name in ("best.pt", "last.pt"):
        (run.folder / f"{count}-{name}").unlink(missing_ok=True)
    return predictor


def load_count(run: Run, count: int) -> Predictor:
    weights = run.folder / f"{count}-heads.pt"
    predictor = run.task.load_predictor(run.folder.path, weights, run.text.settings)
    predictor.model.to(best_device())
    return predictor


def validated(run: Run, name: str, predictor: Predictor) -> Scored:
    """The model's outputs of all validation lines, scored; read from their file where they are there."""
    valid, system = run.text.corpus.valid, f"valid-{name}"
    if first((run.folder / f"hypotheses/{system}.txt").is_file):
        outputs = run.folder.outputs(system)
    else:
        outputs = run.task.outputs(predictor, list(valid.sources))
        run.folder.write_outputs(system, outputs)
    return score(outputs, list(valid.targets), run.task.metrics)


def curve_row(run: Run, predictor: Predictor, scored: Scored, found: Drop, *, learned: bool) -> Row:
    stage = first(lambda: run.folder.read_json(f"{found.heads_open}-stage.json"))
    left = heads_left(predictor.model)
    return {
        "heads_open": found.heads_open,
        "heads_total": left.heads_total,
        **{kind: int(number) for kind, number in left.by_kind().items()},
        **{f"valid_{metric.name}": scored[metric.name] for metric in run.task.metrics},
        "valid_loss": min(stage["losses"]),
        "drop": found.mean,
        "drop_bound": found.bound,
        "detectable": found.detectable,
        "acceptable": learned and found.acceptable(run.config.drop_limit),
        "parameters": sum(parameter.numel() for parameter in predictor.model.parameters()),
    }


def write_knee(run: Run, found: Drop | None, reference: str, tested: dict[str, Drop]) -> None:
    """knee.json, and the same in words."""
    limit, metrics = run.config.drop_limit, run.task.metrics
    main = metrics[0]
    content = {
        "max_drop": limit,
        "largest_bound": limit + SLACK,
        "metric": main.name,
        "reference": reference,
        "heads": found and found.heads_open,
        "validation": found and found.to_json(),
        "test": {name: each.to_json() for name, each in tested.items()},
    }
    run.folder.write_json(KNEE, content)
    accepted = f"at most {limit:g} {main.title} on validation (95% bound {limit + SLACK:g})"
    if nothing := run.evaluation.reference_row.unlearned:
        say(f"{nothing}; the largest number of heads is shown")
        return
    if found is None:
        say(f"no number of heads loses {accepted}; the largest is shown")
    else:
        say(f"the fewest heads that lose {accepted}: {found.heads_open}, {found.mean:.2f} lost")
    words = ", ".join(f"{metric.title} {-tested[metric.name].mean:+.2f}" for metric in metrics)
    say(
        f"once on the test set, against {reference}: {words}; these lines would show a loss of "
        f"{tested[main.name].detectable:.2f} four times in five"
    )
