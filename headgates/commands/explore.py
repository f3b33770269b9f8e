"""Type a sentence, shut heads, and see what a trained model does then: a page of this machine alone.

python explore.py runs/toy-en-de-none-s1
"""

import sys
from functools import partial
from typing import TYPE_CHECKING

from headgates.commands import start

if TYPE_CHECKING:
    from headgates.configs.explore import ExploreConfig
    from headgates.report.explore.server import Server


def main() -> int:
    return start(
        "explore",
        "headgates.configs.explore:ExploreConfig",
        explore,
        about=__doc__,
        interrupted="nothing was served yet",
    )


def explore(config: "ExploreConfig") -> None:
    """Open the models and serve their page until Ctrl-C. Raises ValueError and OSError with one line for the
    user."""
    from headgates.records.named_paths import check_run

    check_run(config.source)
    if config.second is not None:
        check_run(config.second[0])
    with server_of(config) as server:
        print(f"{server.url}\nopen this address in a browser of this machine; Ctrl-C ends", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:  # how it ends
            print(file=sys.stderr)


def server_of(config: "ExploreConfig") -> "Server":
    """The server of the models' page, which listens and does not answer yet."""
    # here, because torch takes seconds to import, and a wrong path or flag needs none of it
    import torch

    from headgates.explain.sentence_model import SentenceModel
    from headgates.records.source import open_source
    from headgates.report.explore.answers import Answers
    from headgates.report.explore.page import explore_page, known_cards
    from headgates.report.explore.server import Server

    if config.threads:
        torch.set_num_threads(config.threads)
    wanted = [(config.source, config.system), *([config.second] if config.second else [])]
    sources = [open_source(source, system, device=config.device) for source, system in wanted]
    cards = [known_cards(source) for source in sources]
    models = [SentenceModel(source, longest=config.max_length) for source in sources]
    return Server(Answers(models), partial(explore_page, models, cards), port=config.port)


if __name__ == "__main__":
    sys.exit(main())
