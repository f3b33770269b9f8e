"""How fast does our search translate beside Hugging Face's generate and CTranslate2? A part of `peers.py`.

All have the weights of one random Marian (training_peers.py), take the same batches of Multi30k's lengths in
turns, and search every sentence to the same number of tokens, as what random weights write has no end.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.training_peers import (
    PADDING,
    TRAINING_SEED,
    VOCABULARY_SIZE,
    make_batches,
    marian,
    our_marian,
)
from headgates.bridges.ct2 import write
from headgates.data.special_tokens import SpecialTokens
from headgates.lab.measure import alternate, median_and_range, ratio_by_round
from headgates.models.translator import Translator
from headgates.pruning.runtime_cost import clock_of

TOKENS = 16  # of every translation, its end counted
MOST = 16  # batches of a round
OURS, GENERATE = "ours", "HF generate"
ENGINES = {"CTranslate2": "float32", "CTranslate2 int8": "int8"}
Search = Callable[[list[list[int]], int], object]  # sources with their ends, beam


class Numbers:
    """A vocabulary whose pieces are their ids."""

    specials = SpecialTokens()

    def __len__(self) -> int:
        return VOCABULARY_SIZE

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(i) for i in ids]


def generated(model: Any, sources: list[list[int]], beam: int) -> object:
    import transformers

    longest = max(map(len, sources))
    ids = torch.tensor([row + [PADDING] * (longest - len(row)) for row in sources])
    asked = transformers.GenerationConfig(
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        num_beams=beam,
        do_sample=False,
        pad_token_id=PADDING,
        eos_token_id=Numbers.specials.end,
        decoder_start_token_id=PADDING,
    )
    with torch.inference_mode():
        return model.generate(ids, attention_mask=ids != PADDING, generation_config=asked)


def searches(width: int, stack: ExitStack) -> dict[str, Search]:
    """Ours and the peers', with the same weights."""
    import ctranslate2

    torch.manual_seed(TRAINING_SEED)
    theirs = marian(width, 0.0).eval()
    theirs.generation_config.forced_eos_token_id = None
    vocab: Any = Numbers()
    ours = Translator(our_marian(theirs).eval(), vocab, vocab)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgates-")))
    write(ours, folder)
    found: dict[str, Search] = {
        OURS: lambda sources, beam: ours.search_to(sources, beam, TOKENS),
        GENERATE: partial(generated, theirs),
    }
    for name, compute_type in ENGINES.items():
        engine = ctranslate2.Translator(
            str(folder), compute_type=compute_type, intra_threads=torch.get_num_threads()
        )
        found[name] = partial(translated, engine)
    return found


def translated(engine: Any, sources: list[list[int]], beam: int) -> object:
    pieces = [Numbers().pieces(row[:-1]) for row in sources]  # it adds the end
    return engine.translate_batch(
        pieces, beam_size=beam, min_decoding_length=TOKENS, max_decoding_length=TOKENS
    )


def measure_search(
    width: int, *, batches: Sequence[int], beams: Sequence[int], lines: int, rounds: int
) -> list[dict[str, Any]]:
    """For each beam and size of a batch the sentences per second of each, and how many times as fast as each
    peer ours is."""
    end = Numbers.specials.end
    rows = [[i for i in row if i > end] for batch in make_batches(2) for row in batch.source.tolist()]
    sources = [[*row, end] for row in sorted(rows[:lines], key=len, reverse=True)]
    found = []
    with ExitStack() as stack:
        by_name = searches(width, stack)
        for beam, size in product(beams, batches):
            parts = [sources[begin : begin + size] for begin in range(0, len(sources), size)]
            parts = parts[:: -(-len(parts) // MOST)]
            count = sum(map(len, parts))
            blocks = {name: partial(search_all, each, parts, beam) for name, each in by_name.items()}
            seconds = alternate(blocks, rounds=rounds, clock=clock_of(0))
            speeds = {n: median_and_range([count / s for s in each]) for n, each in seconds.items()}
            over = {name: ratio_by_round(seconds[name], seconds[OURS]) for name in seconds if name != OURS}
            found.append(
                {"d_model": width, "beam": beam, "batch": size, "sentences_per_second": speeds, "over": over}
            )
    return found


def search_all(search: Search, parts: Sequence[list[list[int]]], beam: int) -> None:
    for part in parts:
        search(part, beam)
