"""The attention classes of all of transformers' models: which a rule or a layout finds, and which none does.
Written into results/families.md:  python -m tests.gates.model_zoo

Each model type's base model is built with its default configuration and few layers, without memory for its
weights. It says what is found, not that removal works: that is proved by a forward pass when heads go.
"""

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from headgates.gates import find_sites
from headgates.gates.rules import is_tested, known_rule
from headgates.gates.unknown import unknown_attentions
from tests.gates.family_table import PATH

LAYERS = 2
BEGIN, END = "<!-- written by `python -m tests.gates.model_zoo` -->\n\n", "\n\n<!-- end of the zoo -->"
# fields with the number of layers, and the lists that have an item for each
_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")
_COUNTS += ("num_encoder_layers", "num_decoder_layers")


def models() -> Iterator[tuple[str, nn.Module | None]]:
    """Every model type with a base model, and its model on the device meta, None where it cannot be built."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for name in sorted(CONFIG_MAPPING):
        try:
            config = CONFIG_MAPPING[name]()
            model_class = transformers.MODEL_MAPPING[type(config)]
        except (KeyError, ImportError):
            continue  # no base model of its own
        except Exception:  # a configuration that needs others, or a value
            yield name, None
            continue
        yield name, built(model_class[0] if isinstance(model_class, tuple) else model_class, config)


def built(model_class: Any, config: Any) -> nn.Module | None:
    for fewer in (True, False):  # with fewer layers where its lists of layers allow it
        try:
            with torch.device("meta"):
                return model_class(shallow(config) if fewer else type(config)())
        except Exception:  # of whatever kind: a package that is missing, a tensor that must have values
            continue
    return None


def shallow(config: Any) -> Any:
    """The configuration with LAYERS layers, also in those inside it."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            shallow(value)
        elif name in _COUNTS and isinstance(value, int) and value > LAYERS:
            setattr(config, name, LAYERS)
    return config


class Seen(NamedTuple):
    """found: attention class -> by what. unknown: attention classes. refused: why there are no sites."""

    found: dict[str, str]
    unknown: list[str]
    refused: str


def seen(model: nn.Module) -> Seen:
    attentions = {
        path: module
        for path, module in model.named_modules()
        if (rule := known_rule(module)) is not None and not rule.inner
    }
    found = {
        type(module).__name__: "a rule" if is_tested(module) else "a layout" for module in attentions.values()
    }
    refused = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            find_sites(model)
        except ValueError as error:
            refused = next((reason for words, reason in _REASONS.items() if words in str(error)), "")
    return Seen(found, [type(module).__name__ for module in unknown_attentions(model, attentions)], refused)


def summary(types: Mapping[str, Seen | None]) -> str:
    """What was found, as Markdown. types: model type -> what was seen, None where it was not built."""
    import transformers

    not_built = [name for name, own in types.items() if own is None]
    known = {name: own for name, own in types.items() if own is not None}
    found = {name: by for own in known.values() for name, by in own.found.items()}
    unknown = {name for own in known.values() for name in own.unknown}
    refused: dict[str, list[str]] = {}
    for name, own in known.items():
        if own.refused:
            refused.setdefault(own.refused, []).append(name)
    by = Counter(found.values())
    lines = [
        f"Of transformers {transformers.__version__} {len(known)} of {len(types)} model types were built. "
        f"They have {len(found) + len(unknown)} attention classes: {by['a rule']} have a rule that is "
        f"tested, {by['a layout']} are read by a layout and proved when heads go, and "
        f"{len(unknown)} are unknown.",
        *(f"- {reason}: {', '.join(names)}." for reason, names in refused.items()),
        f"- Unknown: {', '.join(f'`{each}`' for each in sorted(unknown))}.",
        f"- Not built: {', '.join(not_built)}.",
    ]
    return "\n".join([lines[0], "", *lines[1:]])


_REASONS = {
    "as one layer has several": "One layer has several attentions of a kind",
    "cannot tell whether": "An encoder's or a decoder's is not said, so a rule must name `causal`",
}


def write() -> None:
    before, rest = PATH.read_text(encoding="utf-8").split(BEGIN)
    types = {name: None if model is None else seen(model) for name, model in models()}
    PATH.write_text(before + BEGIN + summary(types) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    write()
