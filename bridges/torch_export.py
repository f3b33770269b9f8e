"""torch.export programs: encoder.pt2 and decoder.pt2, which torch alone loads and runs; what they take and
give is in steps.py.

decoder = torch.export.load("decoder.pt2").module()
logits, *past = decoder(ids, length, bias, cross, past)
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from headgates.bridges.steps import step_translator, trace, without_warnings
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator


def write(translator: Translator, folder: Path) -> None:
    """encoder.pt2 and decoder.pt2 of a model without gates."""
    for name, program in trace(translator.model).items():
        try:
            with without_warnings():
                torch.export.save(program.traced, folder / f"{name}.pt2")
        except RuntimeError as error:  # torch's writer has no other word for a disk that is full
            raise OSError(
                f"cannot write {name}.pt2 in {folder.parent}: {str(error).splitlines()[0]}"
            ) from error


def open(folder: Path, shape: Transformer) -> Translator:
    """The translator of the folder that `write` has just written, for the parity check alone: loading a
    program can run code, so no folder is opened later."""
    encoder, decoder = load(folder / "encoder.pt2"), load(folder / "decoder.pt2")

    def decode(
        ids: Tensor, length: int, bias: Tensor, cross: list[Tensor], past: list[Tensor]
    ) -> Sequence[Tensor]:
        return decoder(ids, torch.tensor(length), bias, cross, past)

    # not the encoder itself: as a part of a module it would be asked to go into evaluation mode, which
    # programs refuse
    return step_translator(folder, shape, lambda source: encoder(source), decode)


def load(path: Path) -> torch.fx.GraphModule:
    with without_warnings():
        return torch.export.load(path).module()
