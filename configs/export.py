"""Settings of `export.py`: which system of a run to write, in which format, and what to check it on; or to
time it."""

from dataclasses import dataclass
from typing import Literal

from headgates.configs.fields import REQUIRED, check_ranges, setting
from headgates.configs.source import SourceOptions

ABOUT = "export.json"  # the file that makes a folder an exported one
# What bridges/formats.py can write, a line for each there too.
EXPORT_FORMATS = {
    "onnx": "ONNX graphs, run by onnxruntime",
    "ct2": "a CTranslate2 model, run by its own C++ search; opened with compute_type float32 or int8",
    "hf": "a Hugging Face folder that from_pretrained reads, or gates.load_pruned where sites have "
    "different numbers of heads",
    "fairseq": "a checkpoint of fairseq with its dictionaries",
    "marian": "Marian's .npz, read back by our own model; closed heads are heads of zeros in it",
}


@dataclass(frozen=True)
class ExportConfig(SourceOptions):
    """`export.py`: a run for other runtimes, without its closed heads; or how fast it is beside the
    unpruned model.

    python export.py runs/toy-en-de-l0-0.01-s1 --to onnx
    python export.py runs/toy-en-de-l0-0.01-s1 --report speed
    """

    source: str = setting(REQUIRED, "a run folder", positional=True)
    to: str | None = setting(
        None, "; ".join(f"{name}: {about}" for name, about in EXPORT_FORMATS.items()), choices=EXPORT_FORMATS
    )
    system: str | None = setting(
        None, "system of the run; default l0-removed if it has it, else the run's own"
    )
    out: str | None = setting(None, "folder to write; default SOURCE/exported/SYSTEM-FORMAT")
    sentences: int = setting(
        100,
        "test sentences on which scores and translations must agree with the run's model, or that are timed "
        "(200 at most); 0 for all",
        at_least=0,
    )
    threads: int = setting(0, "CPU threads, 0 for all", at_least=0)
    fresh: bool = setting(False, "replace an exported folder")
    report: Literal["speed"] | None = setting(
        None, "speed: instead of writing, time the system beside the unpruned model, by every runtime"
    )
    batch: int = setting(32, "with --report: sentences at once", at_least=1, rare=True)
    beam: int = setting(1, "with --report: beam width; 1 is greedy", at_least=1, rare=True)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.to is None and self.report is None:
            raise ValueError(f"nothing to do: give --to {', '.join(EXPORT_FORMATS)}, or --report speed")
        if self.to is not None and self.report is not None:
            raise ValueError("--report writes no model; leave --to out")
