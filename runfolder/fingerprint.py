"""What makes two runs the same: all that a model depends on, and nothing else, so that a finished run is found again by its hash."""

from typing import Any

from configs.fields import to_dict
from configs.schema import FitConfig
from data import Corpus
from data.parallel import digest_lines


def base_identity(config: FitConfig, corpus: Corpus, precision: str) -> dict[str, Any]:
    """All that a base model depends on: the text itself, not where it lies."""
    settings = {name: to_dict(getattr(config, name)) for name in ("model", "text", "train")}
    identity = {"text_digest": corpus.digest(), "seed": config.seed, "precision": precision, "devices": config.devices}
    if config.dynamics:  # pruned on the way: only a base that is trained anew can be
        names = ("dynamics_sentences", "dynamics_valid_sentences")
        identity |= {"dynamics": sorted(config.dynamics), **{name: getattr(config, name) for name in names}}
    return identity | settings


def stage_identity(
    config: FitConfig, corpus: Corpus, precision: str, *, base_hash: str, gate: str, test: tuple[list[str], list[str]]
) -> dict[str, Any]:
    """All that a run on a base depends on. gate: "l0", or "continued" for the base trained on without gates; test: the lines translated."""
    identity: dict[str, Any] = {"base_hash": base_hash, "gate": gate, "text_digest": corpus.digest(), "text": to_dict(config.text)}
    identity |= {"seed": config.seed, "precision": precision, "devices": config.devices, "finetune": to_dict(config.finetune)}
    identity |= {"freeze_decoder": config.freeze_decoder}
    if gate == "l0":  # the continued base is shared by runs that differ in these, and translated anew for them
        names = ("lam", "kinds", "systems", "greedy_sentences")
        identity |= {"search": to_dict(config.search), "test_digest": digest_lines(*test)}
        identity |= {name: getattr(config, name) for name in names} | {"gates": to_dict(config.gates)}
    return identity
