"""How long does explore.py's page wait for an answer after two heads were shut?

Questions go through HTTP to the page's own server, each with two other heads shut, so that nothing is
answered from what was kept. "say" is the translation with its probabilities and the attention of one site;
"effects" is the exact effect of every head beside those that are shut.
"""

import argparse
import json
import sys
import threading
import time
import urllib.request
from statistics import median

from benchmarks.benchmark import Answer, Flag, count_flag, run
from headgates.commands.explore import server_of
from headgates.configs.explore import ExploreConfig
from headgates.report.explore.server import TOKEN_HEADER

QUESTION = "the page of explore.py answers within 200 ms when two heads are shut"


def answer(options: argparse.Namespace) -> Answer:
    times: dict[str, list[float]] = {"say": [], "effects": []}
    config = ExploreConfig(source=options.run, port=0, threads=options.threads)
    with server_of(config) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        model = server.answers.models[0]
        heads = list(model.heads)
        site = next(name.rpartition(".")[0] for name in reversed(heads))

        def ask(name: str, number: int) -> float:
            shut = [heads[(5 * number) % len(heads)], heads[(11 * number + 7) % len(heads)]]
            content = {"text": options.sentence, "shut": shut} | ({"sites": [site]} if name == "say" else {})
            url = f"http://127.0.0.1:{server.server_port}/api/{name}"
            request = urllib.request.Request(url, json.dumps(content).encode(), {TOKEN_HEADER: server.token})
            began = time.perf_counter()
            urllib.request.urlopen(request).read()
            return 1000 * (time.perf_counter() - began)

        for name, found in times.items():
            ask(name, 1)  # torch makes its threads, and the unpruned translation is found
            found += [ask(name, number) for number in range(2, options.questions + 2)]
        tokens = len(model.as_it_is(options.sentence).ids)
        parameters = sum(each.numel() for each in model.model.parameters())
        server.shutdown()
    rows = [[name, *(f"{f(each):.0f}" for f in (median, min, max))] for name, each in times.items()]
    numbers = {
        "milliseconds": {name: [round(each, 1) for each in found] for name, found in times.items()},
        "heads": len(heads),
        "parameters": parameters,
        "target_tokens": tokens,
    }
    title = f"{len(heads)} heads, {parameters:,} parameters, {tokens} target tokens"
    return Answer(numbers, ["question", "median ms", "least", "most"], rows, title=title)


FLAGS: list[Flag] = [
    ("--run", {"default": "runs/multi30k-en-de-none-s1", "help": "the run (default: %(default)s)"}),
    (
        "--sentence",
        {
            "default": "A man in a blue shirt is standing on a ladder cleaning a window.",
            "help": "what is typed (default: %(default)s)",
        },
    ),
    count_flag("--questions", 15, "questions of each kind that are timed"),
]

if __name__ == "__main__":
    sys.exit(run("explore_speed", QUESTION, __doc__, FLAGS, answer))
