"""How fast does headgates train, search, start and plan beside what people use otherwise?

    python -m benchmarks.peers --threads 1 --record

training   training_peers.py: target tokens per second beside Hugging Face's Marian, by width, and how many
           times as long a step takes as its products at the fastest product's speed
search     search_peers.py: beside Hugging Face's generate and CTranslate2
start      `headgates translate` of one line of the toy run in a process of its own, beside the shortest
           programs that translate by CTranslate2, and that generate from eight ids by a Marian of Hugging
           Face's with random weights and width 128
plan       `hg.prune(model, batches, speedup=2)` of a BERT that says the first word, beside Torch-Pruning's
           choice (Taylor) at four shares, of which two are near the speed; ours refits, theirs does not

Of one thread the process's CPU seconds count, of several the clock's; of a start the clock's. A ratio is how
many times as fast ours is, taken round by round: the median, the lowest and the highest.
"""

import argparse
import copy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.any_model import SHARES, made, share_for, speeds, torch_pruning
from benchmarks.benchmark import ROOT, Answer, Flag, count_flag, run
from benchmarks.peers_table import HEADER, ROWS, peer_rows
from benchmarks.search_peers import measure_search
from benchmarks.toy_bases import loss_of
from benchmarks.training_peers import marian, measure_training
from headgates import prune
from headgates.bridges.ct2 import write
from headgates.bridges.formats import copy_vocabs
from headgates.lab.measure import alternate, median_and_range, ratio_by_round
from headgates.records.source import open_source

QUESTION = "how many times as fast as its peers does headgates train, search, start and plan?"
TOY = ROOT / "examples/toy_run/toy-en-de-none-s1"
LINE = "the old cat sees a dog"
PACKAGES = {
    "training": ["transformers"],
    "search": ["transformers", "ctranslate2"],
    "start": ["transformers", "ctranslate2"],
    "plan": ["transformers", "torch-pruning"],
}
SPEEDUP, BERT_WIDTH, STEPS = 2.0, 256, 90
BY_CTRANSLATE2 = """
import sys, ctranslate2, sentencepiece
pieces = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1] + "/vocab.model")
engine = ctranslate2.Translator(sys.argv[1], compute_type="int8", intra_threads=1)
print(pieces.decode(engine.translate_batch([pieces.encode(sys.argv[2], out_type=str)])[0].hypotheses[0]))
"""
BY_GENERATE = """
import sys, torch, transformers
torch.set_num_threads(1)
model = transformers.MarianMTModel.from_pretrained(sys.argv[1])
print(model.generate(torch.arange(4, 12)[None], num_beams=4, max_new_tokens=8).tolist())
"""


def measure_start(rounds: int) -> dict[str, Any]:
    """Seconds of each program by the clock, and how many times as fast ours are as theirs."""
    with tempfile.TemporaryDirectory(prefix="headgates-") as place:
        exported, theirs, toy = (Path(place, name) for name in ("ct2", "marian", TOY.name))
        exported.mkdir()
        shutil.copytree(TOY, toy)  # where it keeps its export
        translator = open_source(toy, device="cpu").translator
        copy_vocabs(translator, exported)
        write(translator, exported)
        marian(128, 0.0).save_pretrained(theirs)

        def program(arguments: Sequence[str], line: str = "") -> None:
            subprocess.run(
                [sys.executable, *arguments], input=line, text=True, check=True, capture_output=True
            )

        translate = ["-m", "headgates", "translate", str(toy), "--threads", "1"]
        seconds = alternate(
            {
                "ours, int8": partial(program, [*translate, "--runtime", "int8"], LINE + "\n"),
                "CTranslate2": partial(program, ["-c", BY_CTRANSLATE2, str(exported), LINE]),
                "ours, torch": partial(program, [*translate, "--runtime", "torch"], LINE + "\n"),
                "HF generate": partial(program, ["-c", BY_GENERATE, str(theirs)]),
            },
            rounds=rounds,
        )
    return {
        "seconds": {name: median_and_range(each) for name, each in seconds.items()},
        "over": {
            "CTranslate2": ratio_by_round(seconds["CTranslate2"], seconds["ours, int8"]),
            "HF generate": ratio_by_round(seconds["HF generate"], seconds["ours, torch"]),
        },
    }


def learned_bert() -> tuple[Any, list[dict[str, Tensor]]]:
    """A model that has learned to say the first word everywhere, and batches of text."""
    import transformers

    torch.manual_seed(1)
    configuration: Any = transformers.BertConfig  # whose types know no num_labels
    config = configuration(
        vocab_size=32,
        num_labels=32,
        hidden_size=BERT_WIDTH,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=4 * BERT_WIDTH,
    )
    model = transformers.BertForTokenClassification(config)
    words = torch.randint(3, 32, (STEPS, 32, 16))
    batches = [{"input_ids": each, "labels": each[:, :1].repeat(1, 16)} for each in words]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for batch in batches:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), batches[:8]


def measure_plan() -> dict[str, Any]:
    """CPU seconds of both, how many times as fast each made the model, and the losses."""
    whole, batches = learned_bert()
    batch, peer = batches[0], partial(choice_at_speed, whole, batches)
    begin, ours = time.process_time(), copy.deepcopy(whole)
    prune(ours, batches, speedup=SPEEDUP, run=lambda model: model(**batch))
    middle = time.process_time()
    models = {"ours": ours, "Torch-Pruning": peer()}
    seconds = {"ours": middle - begin, "Torch-Pruning": time.process_time() - middle}
    reached = dict(zip(models, speeds(whole, [*models.values()], batch), strict=True))
    losses = {name: loss_of(model, batches) for name, model in ({"unpruned": whole} | models).items()}
    over = seconds["Torch-Pruning"] / seconds["ours"]
    return {"seconds": seconds, "reached": reached, "losses": losses, "over": over}


def choice_at_speed(whole: Any, batches: Sequence[Mapping[str, Any]]) -> Any:
    """What Torch-Pruning makes of a model at the share that comes nearest the speed, refitted nowhere."""
    base: Any = SimpleNamespace(fit=batches)
    choose = torch_pruning(whole, base, taylor=True, everywhere=False)
    curve, models = [(0.0, 1.0)], list[Any]()
    for place in range(len(SHARES) + 2):
        share = SHARES[place] if place < len(SHARES) else share_for(curve, SPEEDUP)
        models.append(made(whole, choose(share)))
        (found,) = speeds(whole, models[-1:], batches[0])
        curve.append((share, found["median"]))
    return models[-1]


def answer(options: argparse.Namespace) -> Answer:
    rounds = options.rounds
    parts: dict[str, Callable[[], Any]] = {
        "training": lambda: measure_training(options.widths, steps=options.steps, rounds=rounds),
        "search": lambda: [
            row
            for width in options.widths
            for row in measure_search(
                width, batches=[1, 16, 64], beams=[1, 5], lines=options.lines, rounds=rounds
            )
        ],
        "start": lambda: measure_start(rounds),
        "plan": measure_plan,
    }
    measured = {name: parts[name]() for name in options.parts}
    precision = measured["training"][0]["precision"] if "training" in measured else "32"
    packages = sorted({package for name in measured for package in PACKAGES[name]})
    numbers = {"measured": measured, "rounds": rounds}
    return Answer(numbers, HEADER, peer_rows(measured), precision=precision, peers=packages)


FLAGS: list[Flag] = [
    ("--parts", {"nargs": "+", "choices": [*ROWS], "default": [*ROWS], "help": "some of the four"}),
    ("--widths", {"type": int, "nargs": "+", "default": [128, 256, 512]}),
    count_flag("--steps", 3, "steps, and batches, of a block of training"),
    count_flag("--lines", 64, "that are searched"),
    count_flag("--rounds", 4, "timed rounds"),
]

if __name__ == "__main__":
    sys.exit(run("peers", QUESTION, __doc__, FLAGS, answer))
