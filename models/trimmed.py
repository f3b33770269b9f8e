"""A translator with some of its pieces: their rows of the embeddings and of the output layer, and a tokenizer
of these alone. A piece that stays has the logit that it had.

    less, kept = trim(translator, folder, sources, targets, written)  # written: the ids of its translations
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from headgates.data.text import DataError
from headgates.data.trimming import Kept, trimmed_vocabs
from headgates.data.vocab import Vocabulary, load_vocabs
from headgates.models.checkpoint import architecture, as_json, build, filled, load_model, save_model
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

BEST_FILE = "best.pt"


def trim_model(
    whole: Translator,
    folder: Path,
    sources: Sequence[str],
    targets: Sequence[str],
    written: Sequence[Sequence[int]],
) -> tuple[Translator, Kept]:
    """Write best.pt and the tokenizer into a folder, with the pieces that the source lines, the target lines
    and translations (ids) need, and return the translator that is read from there, and which pieces these
    are.

    Raises DataError where the tokenizer cannot be trimmed so that these lines are cut as before."""
    used = (
        set[int]().union(*whole.source_vocab.encode(sources)),
        set[int]().union(*written, *whole.target_vocab.encode(targets)),
    )
    kept = trimmed_vocabs(folder, whole.source_vocab, whole.target_vocab, used)
    save_model(folder / BEST_FILE, with_pieces(whole.model, kept))
    model = load_model(folder / BEST_FILE).to(whole.device)
    vocabs = load_vocabs(folder, model.source_specials, model.target_specials)
    less = Translator(model, *vocabs, whole.search)
    sides = ((whole.source_vocab, sources), (whole.target_vocab, targets))
    for (old, lines), new, ids in zip(sides, vocabs, kept, strict=True):
        if new.pieces(range(len(new))) != old.pieces(ids):  # what is read back is what was meant
            raise DataError(
                f"the tokenizer in {old.path.parent} numbers its pieces in a way that trimming does not "
                "keep; close heads or neurons instead, which leave the tokenizer as it is"
            )
        if cut := cut_otherwise(old, new, lines):
            raise DataError(
                f"with fewer pieces the tokenizer in {old.path.parent} cuts {cut:,} lines of the text in "
                "another way, so it cannot be trimmed without loss; close heads or neurons instead"
            )
    return less, kept


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


def cut_otherwise(old: Vocabulary, new: Vocabulary, lines: Sequence[str]) -> int:
    """How many lines a vocabulary cuts into other pieces than another one."""
    pairs = zip(old.encode(lines), new.encode(lines), strict=True)
    return sum(old.pieces(before) != new.pieces(after) for before, after in pairs)
