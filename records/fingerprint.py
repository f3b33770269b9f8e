"""What makes two runs the same: all that a model depends on, and nothing else, so that a finished run is
found again by its hash."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from headgates.configs.fields import to_dict
from headgates.configs.learned import LEARNED
from headgates.configs.recipe import UNPRUNED, Budget, Listed, Pieces, Recipe
from headgates.configs.settings import Settings
from headgates.configs.stages import GateTraining
from headgates.data import Corpus
from headgates.data.file_digest import file_digest
from headgates.data.parallel import folder_files
from headgates.data.text import digest_lines
from headgates.tasks import task_named


def shared_fingerprint(settings: Settings, corpus: Corpus, precision: str, seed: int) -> dict[str, Any]:
    """What every stage depends on: the text itself, not where it lies."""
    return {
        "task": settings.task,
        "text_digest": corpus.digest(),
        "text": to_dict(settings.text),
        "seed": seed,
        "precision": precision,
    }


def base_fingerprint(settings: Settings, corpus: Corpus, precision: str) -> dict[str, Any]:
    """All that a base depends on."""
    settings = as_one_process(settings)
    return {
        **shared_fingerprint(settings, corpus, precision, settings.seed),
        **task_named(settings.task).cache_key(settings),
        "model": to_dict(settings.model),
        "train": to_dict(settings.train),
        "dynamics": [sorted(settings.dynamics), settings.sentences, settings.test_sentences]
        if settings.dynamics
        else [],
    }


def recipe_fingerprint(
    settings: Settings,
    recipe: Recipe,
    corpus: Corpus,
    precision: str,
    *,
    base_hash: str,
    test: tuple[list[str], list[str]],
    sampled: int | None = None,
    code: str = "",
    teacher: str | None = None,
) -> dict[str, Any]:
    """All that a recipe's model on a base, and its measures, depend on. test: the lines that are evaluated;
    sampled: the training pairs that its score reads; code: of a score of the user's own (`Score`); teacher:
    the hash of the run that is learned from, None for the base."""
    settings = as_one_process(settings)
    search = to_dict(settings.search.usual_batch())
    found = {
        **shared_fingerprint(settings, corpus, precision if trains(recipe) else "32", recipe.seed),
        "base_hash": base_hash,
        "recipe": recipe.to_json(),
    }
    if trains(recipe):
        found |= {
            "finetune": to_dict(settings.finetuning(recipe.epochs)) | {"dropout": settings.finetune.dropout},
            "freeze_decoder": settings.freeze_decoder,
            "distill": to_dict(settings.distill) | {"teacher": teacher},
            "distill_search": search if settings.distill.sequences else None,
        }
    if recipe.choose == UNPRUNED:  # recipes that differ in their search share it, and evaluate it anew
        return found
    found |= {"search": search, "test_digest": digest_lines(*test), "sampled": sampled}
    if code:
        found["code"] = code
    if files := files_of(recipe.budget, settings):
        # by what they hold, wherever they lie
        found["files"] = [list(map(file_digest, of_place)) for of_place in files]
        for name in FILE_PLACES & found["recipe"]["budget"].keys():
            del found["recipe"]["budget"][name]
    links = isinstance(recipe.budget, Listed) and recipe.budget.by.isdigit()
    if recipe.closing != "zero" or links or recipe.planned:
        found["calibration"] = [settings.calibration_sentences, settings.calibration_targets]
    if recipe.is_chosen_by_time:
        found["threads"] = settings.threads
    # what is made anew from random weights has the shape that these gates leave
    by_gates = recipe.choose == "scratch" and not recipe.planned
    if (learned := LEARNED.get("l0" if by_gates else recipe.choose)) is not None:
        training = {each.name: getattr(settings.gates, each.name) for each in fields(GateTraining)}
        found["gates"] = training | learned.gate_options(settings.gates)
    return found


FILE_PLACES = {"texts", "by", "shortlist"}  # of a budget: where its files lie


def files_of(budget: Budget, settings: Settings) -> list[list[Path]]:
    """The files that say what goes, of each place: a shortlist, or texts whose pieces stay; of a folder those
    of its training text."""
    listed = getattr(budget, "by", None) or getattr(budget, "shortlist", None)
    places = budget.texts if isinstance(budget, Pieces) else [str(listed)] if listed else []
    found = list[list[Path]]()
    for place in places:
        if Path(place).is_dir():
            files = list(folder_files(Path(place), src=settings.src, tgt=settings.tgt)["train"])
        else:
            files = [Path(part) for part in ([place] if Path(place).exists() else place.split(":"))]
        found.append([path for path in files if path.is_file()])
    return [files for files in found if files]


def trains(recipe: Recipe) -> bool:
    """Whether anything is trained for it."""
    return recipe.epochs > 0 or recipe.learns


def as_one_process(settings: Settings) -> Settings:
    """The settings with which one process takes the same optimiser steps: it accumulates the batches of
    all."""
    ranks = settings.devices * settings.num_nodes
    train = replace(settings.train, accumulate=settings.train.accumulate * ranks)
    return replace(settings, devices=1, num_nodes=1, train=train)
