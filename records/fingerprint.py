"""What makes two runs the same: all that a model depends on, and nothing else, so that a finished run is
found again by its hash."""

from dataclasses import fields, replace
from typing import Any

from headgates.configs.fields import to_dict
from headgates.configs.heads_per_kind import parse_budget
from headgates.configs.methods import METHODS
from headgates.configs.schema import FitConfig, GateTraining
from headgates.configs.scores import SCORES
from headgates.configs.systems import score_rows
from headgates.data import Corpus
from headgates.data.parallel import digest_lines
from headgates.tasks import task_named

# in a gate's place:
BASE = "none"  # a base
CONTINUED = "continued"  # the base trained on without gates
SCORED = "scores"  # heads closed by scores alone, at a number of heads
PLANNED = "plan"  # heads, neurons and layers planned for a speed


def score_samples(config: FitConfig, corpus: Corpus) -> dict[str, int]:
    """Score -> training pairs that are sampled for it, of the scores of rows and of where gates start; 0
    where all are read."""
    scores = list(score_rows(config.systems))
    if (method := METHODS.get(config.gate)) is not None and method.start_by is not None:
        scores.append(method.start_by)
    counts = {
        score: config.sentences or SCORES[score].sample or 0 for score in scores if SCORES[score].reads_pairs
    }
    return {
        score: corpus.sampled(count, of=config.text.train_sentences)
        for score, count in sorted(counts.items())
    }


def shared_fingerprint(config: FitConfig, corpus: Corpus, precision: str) -> dict[str, Any]:
    """What every stage depends on: the text itself, not where it lies."""
    return {
        "task": config.task,
        "text_digest": corpus.digest(),
        "text": to_dict(config.text),
        "seed": config.seed,
        "precision": precision,
    }


def base_fingerprint(config: FitConfig, corpus: Corpus, precision: str) -> dict[str, Any]:
    """All that a base model depends on."""
    config = as_one_process(config)
    return {
        **shared_fingerprint(config, corpus, precision),
        **task_named(config.task).cache_key(config),
        "model": to_dict(config.model),
        "train": to_dict(config.train),
        "dynamics": [sorted(config.dynamics), config.sentences, config.test_sentences]
        if config.dynamics
        else [],
    }


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
    fingerprint = {
        **shared_fingerprint(config, corpus, precision),
        "base_hash": base_hash,
        "gate": gate,
        "finetune": to_dict(config.finetuning) | {"dropout": config.finetune.dropout},
        "freeze_decoder": config.freeze_decoder,
        "distill": to_dict(config.distill),
        "distill_search": to_dict(config.search) if config.distill.sequences else None,
    }
    if gate == CONTINUED:  # shared by runs that differ in what follows, and evaluated anew for them
        return fingerprint
    fingerprint |= {
        "search": to_dict(config.search),
        "test_digest": digest_lines(*test),
        "kinds": config.kinds,
        "systems": config.systems,
        "sentences": config.sentences,
        "score_samples": score_samples(config, corpus),
        "heads": config.heads,
        "heads_per_kind": parse_budget(config.heads_per_kind),
    }
    if config.gated_neurons:  # the hashes of runs with gates on heads alone stay
        fingerprint["neurons"] = config.neurons
    if gate == SCORED:
        trained = [row for rows in score_rows(config.systems).values() for row in rows if row.trained]
        if not trained and "base-continued" not in config.systems:
            fingerprint["finetune"] = None  # the same run, however long others train
        return fingerprint
    if gate == PLANNED:
        return fingerprint | {"speedup": config.speedup, "runtime": config.runtime}
    method = METHODS[gate]
    training = {each.name: getattr(config.gates, each.name) for each in fields(GateTraining)}
    return fingerprint | {
        "lambda": config.lam if method.controlled_by == "lambda" else None,
        "gates": training | method.gate_options(config.gates),
    }


def as_one_process(config: FitConfig) -> FitConfig:
    """The settings with which one process takes the same optimiser steps: it accumulates the batches of
    all."""
    ranks = config.devices * config.num_nodes
    train = replace(config.train, accumulate=config.train.accumulate * ranks)
    return replace(config, devices=1, num_nodes=1, train=train)
