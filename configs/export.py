"""Settings of `export.py`: which system of a run to write, in which format, and what to check it on; or what
to measure."""

from dataclasses import dataclass
from typing import Literal

from headgates.configs.fields import REQUIRED, check_ranges, setting
from headgates.configs.source import SourceOptions

ABOUT = "export.json"  # the file that makes a folder an exported one
# What bridges/formats.py can write, a line for each there too.
EXPORT_FORMATS = {
    "torch": "torch.export programs, run by torch alone",
    "onnx": "ONNX graphs, run by onnxruntime",
    "ct2": "a CTranslate2 model, run by its own C++ search; opened with compute_type float32 or int8",
    "hf": "a Hugging Face folder that from_pretrained reads, or gates.load_pruned where sites have "
    "different numbers of heads",
    "fairseq": "a checkpoint of fairseq with its dictionaries",
    "marian": "Marian's .npz, read back by our own model; closed heads are heads of zeros in it",
}


@dataclass(frozen=True)
class ExportConfig(SourceOptions):
    """`export.py`: a run for other runtimes, without its closed heads; or a report of what their removal is
    worth in time and space.

    python export.py runs/toy-en-de-l0-0.01-s1 --to onnx
    python export.py runs/toy-en-de-l0-0.01-s1 --report speed --quick
    python export.py runs/toy-en-de-none-s1 --report speed --closed 0.5
    """

    source: str = setting(REQUIRED, "a run folder", positional=True)
    to: str | None = setting(
        None, "; ".join(f"{name}: {about}" for name, about in EXPORT_FORMATS.items()), choices=EXPORT_FORMATS
    )
    system: str | None = setting(
        None, "system of the run; default l0-removed if it has it, else the run's own"
    )
    out: str | None = setting(
        None, "folder to write; default SOURCE/exported/SYSTEM-FORMAT, or SOURCE/speed for the report"
    )
    sentences: int = setting(
        100,
        "test sentences on which scores and translations must agree with the run's model, 0 for all",
        at_least=0,
    )
    threads: int = setting(0, "CPU threads, 0 for all", at_least=0)
    fresh: bool = setting(False, "replace an exported folder, repeat a report")
    report: Literal["speed"] | None = setting(
        None, "speed: measure the run's systems and formats instead of exporting one"
    )
    batch_sizes: list[int] = setting([1, 4, 16, 64], "report: sentences at once", at_least=1, rare=True)
    beams: list[int] = setting([1, 5], "report: beam widths; 1 is greedy", at_least=1, rare=True)
    repeats: int = setting(
        5, "report: timed rounds in which all systems take turns, after one of warm-up", at_least=1, rare=True
    )
    closed: float | None = setting(
        None,
        "report: close this share of the base's heads, those of lowest gradient importance, in place of "
        "what gates learned",
        above=0,
        at_most=1,
    )
    quick: bool = setting(False, "report: one length, batch sizes 1 and 16, 2 rounds")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.to is None and self.report is None:
            raise ValueError(f"nothing to do: give --to {', '.join(EXPORT_FORMATS)}, or --report speed")
        if self.to is not None and self.report is not None:
            raise ValueError("--report measures all formats; leave --to out")
        if self.closed is not None and self.report is None:
            raise ValueError("--closed is for a report; add --report speed, or leave it out")
