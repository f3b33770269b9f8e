"""A Transformer with some of its pieces: their rows of the embeddings and of the output layer, in a new
order. Nothing else changes, so a piece that stays has the logit that it had."""

from functools import partial

import torch

from headgates.data.trimming import Kept
from headgates.models.checkpoint import architecture, as_json, build, filled
from headgates.models.transformer import Transformer


def with_pieces(model: Transformer, kept: Kept) -> Transformer:
    """The model, on the CPU, whose id i is the i-th of `kept` on each side; weights that stay whole are
    shared where they can be. Its special tokens are renumbered, and must be kept. Raises ValueError where one
    table would have to be two."""
    source, target = kept
    if model.config.embeddings == "tied" and source != target:
        raise ValueError("one table for both sides needs the same pieces on both; the tokenizer has others")
    rows = {"source_embedding.weight": source, "target_embedding.weight": target}
    rows |= {"output.weight": target, "output.bias": target}
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    state |= {name: state[name][torch.tensor(ids)] for name, ids in rows.items() if name in state}
    description = architecture(model) | {
        "source_vocab": len(source),
        "target_vocab": len(target),
        "source_specials": as_json(model.source_specials.renumbered(source)),
        "target_specials": as_json(model.target_specials.renumbered(target)),
    }
    return filled(partial(build, description), description["model"], state)
