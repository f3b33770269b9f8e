"""Type a sentence, close heads, and see what a trained model does then: a page of this machine alone.

python explore.py runs/toy-en-de-none-s1
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headgates.commands import start
from headgates.configs.fields import REQUIRED, check_ranges, setting
from headgates.records.foreign_source import is_foreign

if TYPE_CHECKING:
    from headgates.report.explore.server import Server

LONGEST_SENTENCE = 64  # pieces: every head that is looked at costs a pass over them


@dataclass(frozen=True)
class ExploreOptions:
    """Type a sentence, close heads, and see what a model does then, on a page of this machine alone.

    python explore.py runs/toy-en-de-none-s1
    python explore.py runs/toy-en-de-none-s1 --against runs/toy-en-de-l0-0.01-e3-s1
    python explore.py hf:Helsinki-NLP/opus-mt-en-de --port 0
    """

    source: str = setting(REQUIRED, "a run folder, or a model such as hf:NAME, fairseq:FILE", positional=True)
    system: str | None = setting(
        None, "System of the run: base, base-continued or pruned. Default its own; analyze looks at the base."
    )
    against: str | None = setting(
        None, "A second model beside the first: RUN, RUN:SYSTEM, or a model such as hf:NAME."
    )
    port: int = setting(8765, "Port on 127.0.0.1; 0 for any that is free.", at_least=0, at_most=65535)
    threads: int = setting(0, "CPU threads for torch, 0 for all.", at_least=0)
    device: str | None = setting(None, "cpu, cuda or cuda:1; without it the first GPU, if any.")

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def second(self) -> tuple[str, str | None] | None:
        """SOURCE and system of --against."""
        if self.against is None:
            return None
        source, colon, system = self.against.rpartition(":")
        return (self.against, None) if is_foreign(self.against) or not colon else (source, system)


def main() -> int:
    return start("explore", ExploreOptions, explore, interrupted="nothing was served yet")


def explore(options: ExploreOptions, given: Mapping[str, Any]) -> None:
    """Open the models and serve their page until Ctrl-C. Raises ValueError and OSError with one line for the
    user."""
    from headgates.records.named_paths import check_run

    check_run(options.source)
    if options.second is not None:
        check_run(options.second[0])
    with server_of(options) as server:
        try:
            print(f"{server.url}\nopen this address in a browser of this machine; Ctrl-C ends", flush=True)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:  # how it ends, also by a kill
            print(f"\nended; {server.answered} questions were answered", file=sys.stderr)


def server_of(options: ExploreOptions) -> "Server":
    """The server of the models' page, which listens and does not answer yet."""
    # here, because torch takes seconds to import, and a wrong path or flag needs none of it
    import torch

    from headgates.explain.sentence_model import SentenceModel
    from headgates.records.source import open_source
    from headgates.report.explore.answers import Answers
    from headgates.report.explore.page import explore_page, known
    from headgates.report.explore.server import Server

    if options.threads:
        torch.set_num_threads(options.threads)
    wanted = [(options.source, options.system), *([options.second] if options.second else [])]
    sources = [open_source(source, system, device=options.device) for source, system in wanted]
    kept = [known(source) for source in sources]
    models = [SentenceModel(source, longest=LONGEST_SENTENCE) for source in sources]
    return Server(Answers(models), partial(explore_page, models, kept), port=options.port)
