"""torch.export programs: encoder.pt2 and decoder.pt2, which torch alone loads and runs; what they take and
give is in steps.py.

decoder = torch.export.load("decoder.pt2").module()
logits, *past = decoder(ids, length, bias, cross, past)
"""

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from headgates.bridges.formats.program_check import check_program
from headgates.bridges.formats.steps import StepTranslator, step_translator, trace, without_warnings
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


def open(folder: Path, threads: int = 0) -> StepTranslator:
    """The translator of such a folder. threads: of torch, and so of the whole process; 0 leaves them. Raises
    ValueError at a file that is missing or broken."""
    if threads:
        torch.set_num_threads(threads)
    encoder, decoder = load(folder / "encoder.pt2"), load(folder / "decoder.pt2")

    def decode(
        ids: Tensor, length: int, bias: Tensor, cross: list[Tensor], past: list[Tensor]
    ) -> Sequence[Tensor]:
        return decoder(ids, torch.tensor(length), bias, cross, past)

    # not the encoder itself: as a part of a module it would be asked to go into evaluation mode, which
    # programs refuse
    return step_translator(folder, lambda source: encoder(source), decode)


def load(path: Path) -> torch.fx.GraphModule:
    if not path.is_file():
        raise ValueError(f"{path} is missing; export the run again")
    content = path.read_bytes()  # once: what is checked is what is opened
    try:
        check_program(content)
        with without_warnings():
            return torch.export.load(io.BytesIO(content)).module()
    except Exception as error:  # strange bytes send the reader anywhere
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"{path} is not a whole torch.export program ({reason}); export the run again"
        ) from error
