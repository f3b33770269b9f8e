"""What makes two runs the same: all that a model depends on, and nothing else, so that a finished run is
found again by its hash."""

from dataclasses import replace
from typing import Any

from headgates.configs.fields import to_dict, to_hash
from headgates.configs.heads_per_kind import parse_budget
from headgates.configs.methods import METHODS
from headgates.configs.schema import FitConfig
from headgates.configs.scores import SCORES, all_score_rows, score_rows
from headgates.data import Corpus
from headgates.data.parallel import digest_lines
from headgates.tasks import task_named

CONTINUED = "continued"  # in a gate's place: the base trained on without gates
SCORED = "none"  # in a gate's place: heads closed by scores alone, at a number of heads


def score_samples(config: FitConfig, corpus: Corpus) -> dict[str, dict[str, int]]:
    """Score -> training pairs that are drawn for it, of the scores of rows and of where gates start. Nothing
    where all pairs are read: as they were before there were samples, and runs from then are found."""
    scores = [
        *score_rows(config.systems),
        *([config.gates.head_start_by] if config.gates.head_start and config.gate != SCORED else []),
    ]
    counts = {
        score: config.greedy_sentences or SCORES[score].sample or 0
        for score in scores
        if SCORES[score].reads_pairs
    }
    drawn = {score: corpus.drawn(count, of=config.text.train_sentences) for score, count in counts.items()}
    return {"score_samples": dict(sorted(drawn.items()))} if any(drawn.values()) else {}


def base_fingerprint(config: FitConfig, corpus: Corpus, precision: str) -> dict[str, Any]:
    """All that a base model depends on: the text itself, not where it lies."""
    config = as_one_process(config)
    settings = {name: to_hash(getattr(config, name)) for name in ("model", "text", "train")}
    fingerprint = {
        "text_digest": corpus.digest(),
        "seed": config.seed,
        "precision": precision,
        "devices": 1,
    } | task(config)
    fingerprint |= task_named(config.task).made_of(config)
    if config.dynamics:  # pruned on the way: only a base that is trained anew can be
        names = ("dynamics_sentences", "dynamics_valid_sentences")
        fingerprint |= {
            "dynamics": sorted(config.dynamics),
            **{name: getattr(config, name) for name in names},
        }
    return fingerprint | settings


def stage_fingerprint(
    config: FitConfig,
    corpus: Corpus,
    precision: str,
    *,
    base_hash: str,
    gate: str,
    test: tuple[list[str], list[str]],
) -> dict[str, Any]:
    """All that a run on a base depends on. gate: a method's name, CONTINUED or SCORED; test: the lines that
    are evaluated."""
    config = as_one_process(config)
    fingerprint: dict[str, Any] = {
        "base_hash": base_hash,
        "gate": gate,
        "text_digest": corpus.digest(),
        "text": to_hash(config.text),
    }
    fingerprint |= {
        "seed": config.seed,
        "precision": precision,
        "devices": 1,
        "finetune": to_hash(config.finetune),
    }
    fingerprint |= {"freeze_decoder": config.freeze_decoder} | task(config)
    if (
        config.distill.weight or config.distill.sequences
    ):  # what came later is no part of runs without it, so that older ones are found
        fingerprint |= {"distill": to_hash(config.distill)}
    if config.distill.sequences:
        fingerprint |= {"search": to_dict(config.search)}
    if gate == CONTINUED:  # shared by runs that differ in what follows, and evaluated anew for them
        return fingerprint
    if config.heads_per_kind:
        fingerprint |= {"heads_per_kind": parse_budget(config.heads_per_kind)}
    if gate == SCORED:
        rows = all_score_rows()
        if not any(
            system == "base-continued" or (system in rows and rows[system].finetuned)
            for system in config.systems
        ):
            fingerprint.pop("finetune")  # nothing is trained: the same run, however long others train
        names = ("heads", "kinds", "systems", "greedy_sentences")
        evaluated = {"search": to_dict(config.search), "test_digest": digest_lines(*test)}
        return (
            fingerprint
            | evaluated
            | score_samples(config, corpus)
            | {name: getattr(config, name) for name in names}
        )
    method = METHODS[gate]
    training: dict[str, Any] = {
        "lr": config.gates.lr,
        "lambda_warmup": config.gates.lambda_warmup,
        "settle": config.gates.settle,
    }
    if config.gates.settle_when == "decided":
        training |= {"settle_when": "decided", "patience": config.gates.patience}
    if config.gates.head_start:
        training |= {"head_start": config.gates.head_start}
        training |= (
            {"head_start_by": config.gates.head_start_by} if config.gates.head_start_by != "gradient" else {}
        )
    if config.gates.close != "zero":
        training |= {"close": config.gates.close}
    fingerprint |= {"search": to_dict(config.search), "test_digest": digest_lines(*test)}
    fingerprint |= {
        name: getattr(config, name) for name in ("kinds", "systems", "greedy_sentences")
    } | score_samples(config, corpus)
    steering = "lam" if method.steered_by == "lambda" else method.steered_by
    return fingerprint | {
        steering: getattr(config, steering),
        "gates": training | method.gate_options(config.gates),
    }


def as_one_process(config: FitConfig) -> FitConfig:
    """The settings with which one process takes the same optimiser steps: it accumulates the batches of
    all."""
    ranks = config.devices * config.num_nodes
    if ranks == 1:
        return config
    train = replace(config.train, accumulate=config.train.accumulate * ranks)
    finetune = replace(config.finetune, accumulate=config.finetune.accumulate * ranks)
    return replace(config, devices=1, num_nodes=1, train=train, finetune=finetune)


def task(config: FitConfig) -> dict[str, str]:
    """Nothing for translation, so that runs from before there were tasks are found."""
    return {} if config.task == "translation" else {"task": config.task}
