"""Which runs a configuration asks for, in their order: the base, the base trained on, what is compared."""

from headgates.configs.schema import FitConfig
from headgates.gates import heads_left
from headgates.lab.experiment_text import ExperimentText
from headgates.lab.lab import Finished, Lab, check_targets
from headgates.pruning.head_curve import curve_run
from headgates.pruning.planned_run import planned_run
from headgates.pruning.stages import base_run, continued_run, gated_run, scored_run
from headgates.records.fingerprint import PLANNED, SCORED
from headgates.records.folder import RunFolder


def make_runs(
    config: FitConfig, text: ExperimentText | None = None, finished: Finished = lambda run: None
) -> RunFolder:
    """The finished run of the configuration, trained now unless it is there already. text, finished: see
    `Lab`."""
    lab = Lab(config, text, finished)
    config = lab.config
    try:
        base = base_run(lab)
        if config.base_alone:
            lab.tracker.complete(base, "base", base, lab.text.test)
            return base
        if config.gate == SCORED:
            left = heads_left(lab.text.load(base).model, config.kinds)
            check_targets(config, {kind: int(number) for kind, number in left.by_kind().items()})
        continued = continued_run(lab, base) if "base-continued" in config.systems else None
        makers = {SCORED: scored_run, PLANNED: planned_run}
        make = makers.get(config.gate, curve_run if config.is_curve else gated_run)
        folder = make(lab, base, continued)
        lab.tracker.complete(folder, config.job, base, lab.text.test)
        return folder
    finally:
        lab.close()
