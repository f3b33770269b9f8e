"""The heads that gates left open, trained from random weights, as Voita et al. 2019 do in table 2."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytorch_lightning as pl

from headgates.configs.schema import StageConfig
from headgates.data.ranks import first
from headgates.gates import HeadMap, attach
from headgates.workbench.evaluation import Evaluation
from headgates.workbench.folder import RunFolder

if TYPE_CHECKING:
    from headgates.workbench.experiment import Experiment


def train_from_scratch(
    experiment: "Experiment",
    row: str,
    folder: RunFolder,
    base: RunFolder,
    open_heads: HeadMap,
    evaluation: Evaluation,
) -> None:
    """Train and evaluate the open heads from random weights, with the base's seed: as the base was trained,
    then as long as the gates."""
    config = experiment.config
    pl.seed_everything(config.seed, verbose=False)
    predictor = experiment.task.new_predictor(base.path, config)
    attach(predictor.model, gate="mask", kinds=config.kinds, xi=open_heads)
    as_base, after = f"{row}-base-", f"{row}-"
    if not first((folder / f"{after}stage.json").is_file):
        schedule = as_many_batches(base, experiment.machine.ranks)
        experiment.train(
            row, experiment.module(predictor, schedule, seed_offset=0), folder, schedule, prefix=as_base
        )
    again = experiment.finetuning(predictor, base, seed_offset=1)
    result = experiment.train(f"{row}, on", again, folder, config.finetune, base=base, prefix=after)
    for name in (f"{as_base}best.pt", f"{as_base}last.pt", f"{after}last.pt"):
        (folder / name).unlink(missing_ok=True)
    xi = open_heads.map(lambda row: row.double())
    evaluation.add(row, folder / result.weights, predictor, open_heads, xi=xi, stage=result.to_json())


def as_many_batches(base: RunFolder, ranks: int) -> StageConfig:
    """How a base was trained, with as many batches a step as it had, by so many ranks."""
    settings = base.config()
    schedule = StageConfig(**settings["train"])
    its_ranks = settings.get("devices", 1) * settings.get("num_nodes", 1)
    return replace(schedule, accumulate=max(1, schedule.accumulate * its_ranks // ranks))
