"""How fast do we translate beside real peers?   The aim: our own search at least 0.8 of CTranslate2 in fp32,
at batch 16 and 64.

Ours in fp32, Hugging Face's MarianMTModel.generate, and CTranslate2, in fp32 and int8, of our own export, all
with the same weights: those of the sizes of benchmarks/training_peers.py (3+3 layers at d=128 and 256, 6+6 at
512, ffn 4d, 8 heads, vocabulary 8,000), drawn so that translations differ from sentence to sentence. All take
the same ids in the same batches in turns, longest sentences first, padded; no text is cut or joined. Every
translation takes the same number of decoder steps, because the end has no probability before it is forced; so
no sentence ends before the others of its batch, which spares generate the rows that it does not drop. Ours
returns all hypotheses of a beam, the peers the best one. Before the clock starts the hypotheses are compared.
Speeds are sentences per second of wall time.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.benchmark import Answer, Benchmark, at_least_one, count_flag
from benchmarks.training_peers import SEED, VOCAB, marian, our_marian, sized
from headgates.bridges.ct2 import write
from headgates.bridges.formats import require_packages
from headgates.data.batch import pad
from headgates.data.special_tokens import SpecialTokens
from headgates.models.search import beam_search, greedy_search
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from headgates.report.speed.measure import alternate, interval_text, median_and_range, ratio_by_round

AIM, AIMED_BATCHES = 0.8, (16, 64)
OURS, GENERATE, CT2, CT2_INT8 = "ours", "HF generate", "CTranslate2", "CTranslate2 int8"
EXACT = (GENERATE, CT2)  # the peers that compute in fp32, as we do
SPECIALS = SpecialTokens()
# of the layers' weights: at 1 the source, at 0.4 the last token decides nearly alone, and translations are
# one piece over and over
GAIN = 0.7
NEVER = -100.0  # logit of padding, beginning and end
CHECKED = 16  # sentences whose hypotheses are compared
ALIKE = 0.9  # the least share of them that a peer in fp32 has as ours; a near tie may go either way
MOST_BATCHES = 16  # of a block
# (sources (B, S) with their ends, beam, decoder steps, hypotheses) -> each source's hypotheses as ids, best
# first
Search = Callable[[Tensor, int, int, int], list[list[list[int]]]]


class Numbers:
    """A vocabulary whose pieces are their ids."""
    specials = SPECIALS

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(i) for i in ids]


def drawn(width: int) -> Any:
    """A MarianMTModel of random weights that never produces padding, beginning or end of its own."""
    torch.manual_seed(SEED)
    model = marian(sized(width, 0.0), VOCAB).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and weight.requires_grad:
                weight.normal_(std=(1.0 if "shared" in name else GAIN) * weight.shape[1] ** -0.5)
        # with tied embeddings the token that was read last would be the most probable next one
        model.model.decoder.layers[-1].final_layer_norm.weight.normal_()
        model.final_logits_bias[:, [SPECIALS.padding, SPECIALS.beginning, SPECIALS.end]] = NEVER
    model.generation_config.forced_eos_token_id = None  # which would stand in for a None that is asked for
    return model


def our_search(model: Transformer) -> Search:

    def search(source: Tensor, beam: int, steps: int, n_best: int) -> list[list[list[int]]]:
        """The end is one of the steps, so hypotheses have a piece less than there are steps."""
        if beam == 1:
            return [[one.ids] for one in greedy_search(model, source, max_ratio=0.0, max_extra=steps)]
        return [
            [one.ids for one in best[:n_best]]
            for best in beam_search(model, source, beam=beam, max_ratio=0.0, max_extra=steps)
        ]

    return search


def generate_search(model: Any) -> Search:
    import transformers

    ids = {
        "pad_token_id": SPECIALS.padding,
        "eos_token_id": SPECIALS.end,
        "decoder_start_token_id": SPECIALS.beginning,
    }

    def search(source: Tensor, beam: int, steps: int, n_best: int) -> list[list[list[int]]]:
        asked = transformers.GenerationConfig(
            max_new_tokens=steps, num_beams=beam, num_return_sequences=n_best, do_sample=False, **ids
        )
        with torch.inference_mode():
            found = model.generate(source, attention_mask=source != SPECIALS.padding, generation_config=asked)
        return found[:, 1:].unflatten(0, (len(source), n_best)).tolist()  # without the beginning

    return search


def ctranslate2_search(folder: Path, compute_type: str) -> Search:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=compute_type, intra_threads=torch.get_num_threads()
    )
    apart = {SPECIALS.padding, SPECIALS.end}  # it adds the end itself

    def search(source: Tensor, beam: int, steps: int, n_best: int) -> list[list[list[int]]]:
        pieces = [[str(i) for i in row if i not in apart] for row in source.tolist()]
        found = translator.translate_batch(
            pieces, beam_size=beam, num_hypotheses=n_best, max_decoding_length=steps
        )
        return [
            [[int(piece) for piece in hypothesis] for hypothesis in result.hypotheses] for result in found
        ]

    return search


def make_searches(width: int) -> dict[str, Search]:
    """Ours and the peers', with the same weights."""
    theirs = drawn(width)
    ours = our_marian(theirs).eval()
    vocab: Any = Numbers(VOCAB)
    with tempfile.TemporaryDirectory() as folder:
        write(Translator(ours, vocab, vocab), Path(folder))
        engines = {
            CT2: ctranslate2_search(Path(folder), "float32"),
            CT2_INT8: ctranslate2_search(Path(folder), "int8"),
        }
    return {OURS: our_search(ours), GENERATE: generate_search(theirs), **engines}


def draw_sources(count: int) -> list[list[int]]:
    """Sentences of Multi30k's lengths with their ends, longest first."""
    rng = np.random.default_rng(SEED)
    lengths = np.clip(rng.normal(14, 4, count).round(), 3, 40).astype(int)
    return [
        [*rng.integers(SPECIALS.unknown + 1, VOCAB, length).tolist(), SPECIALS.end]
        for length in sorted(lengths, reverse=True)
    ]


def cut(sources: Sequence[Sequence[int]], size: int) -> list[Tensor]:
    """Batches of so many neighbouring sentences, every few of them where there are more than MOST_BATCHES."""
    batches = [pad(sources[first : first + size], SPECIALS) for first in range(0, len(sources), size)]
    return batches[:: -(-len(batches) // MOST_BATCHES)]


def check_parity(searches: Mapping[str, Search], source: Tensor, beam: int, steps: int) -> dict[str, Any]:
    """For how many of the sources each peer has the same `beam` hypotheses as ours, in any order, and how
    many different ones ours has.

    Raises ValueError where a peer in fp32 has them for less than ALIKE of the sources, or where translations
    hardly differ."""
    n_best = {
        name: search(source, beam, steps if name == OURS else steps - 1, beam)  # the end is a step of ours
        for name, search in searches.items()
    }
    as_sets = {name: [{tuple(ids) for ids in best} for best in found] for name, found in n_best.items()}
    same = {
        name: sum(a == b for a, b in zip(as_sets[OURS], found, strict=True))
        for name, found in as_sets.items()
        if name != OURS
    }
    for name in EXACT:
        if same.get(name, len(source)) < ALIKE * len(source):
            raise ValueError(
                f"ours and {name} have the same hypotheses for {same[name]} of {len(source)} sentences only, "
                f"with beam {beam}"
            )
    different = len({tuple(best[0]) for best in n_best[OURS]})
    if 2 * different < len(source):
        raise ValueError(
            f"{len(source)} sentences have {different} different translations only; "
            "such weights show no difference of peers"
        )
    return {
        "beam": beam,
        "sentences": len(source),
        "same_hypotheses": same,
        "different_translations": different,
    }


def run_block(search: Search, batches: Sequence[Tensor], beam: int, steps: int) -> None:
    for source in batches:
        search(source, beam, steps, 1)


def measure(width: int, options: argparse.Namespace) -> dict[str, Any]:
    """What was compared, and for each beam and batch size the speeds of all and the ratio of ours to each
    peer's."""
    searches, steps = make_searches(width), options.pieces + 1
    sources = draw_sources(options.sentences)
    checked = pad(sources[:: max(1, len(sources) // CHECKED)][:CHECKED], SPECIALS)
    parity = [check_parity(searches, checked, beam, steps) for beam in options.beams]
    rows = []
    for beam in options.beams:
        for size in options.batches:
            batches = cut(sources, size)
            blocks = {
                name: partial(run_block, search, batches, beam, steps) for name, search in searches.items()
            }
            seconds = alternate(blocks, rounds=options.rounds)
            rows.append({"beam": beam, "batch": size, **figures(seconds, sum(map(len, batches)))})
    return {"d_model": width, "parity": parity, "rows": rows}


def figures(seconds: Mapping[str, Sequence[float]], sentences: int) -> dict[str, Any]:
    """Sentences per second of all, and how many times as fast as each peer ours is, from the seconds of each
    round."""
    return {
        "sentences": sentences,
        "sentences_per_second": {
            name: median_and_range([sentences / s for s in each]) for name, each in seconds.items()
        },
        "over": {name: ratio_by_round(each, seconds[OURS]) for name, each in seconds.items() if name != OURS},
    }


def answer(options: argparse.Namespace) -> Answer:
    require_packages(("transformers", "ctranslate2"))
    results = [measure(width, options) for width in options.widths]
    rows = [
        [
            result["d_model"],
            row["beam"],
            row["batch"],
            *(interval_text(over) for over in row["over"].values()),
        ]
        for result in results
        for row in result["rows"]
    ]
    header = ["d", "beam", "batch", *(f"ours / {name}" for name in (*EXACT, CT2_INT8))]
    title = f"sentences/s {options.pieces} pieces each; {AIM:g} of {CT2} is the aim"
    aim = {"over": CT2, "at_least": AIM, "batches": AIMED_BATCHES}
    numbers = {
        "aim": aim,
        "pieces": options.pieces,
        "rounds": options.rounds,
    }
    return Answer({**numbers, "measurements": results}, header, rows, title=title, seed=SEED)


main = Benchmark(
    "decoding_peers",
    "search: sentences/s of ours over Hugging Face's and CTranslate2's, same weights and batches: "
    "at least 0.8 of CTranslate2 in fp32 at batch 16 and 64",
    __doc__,
    [
        (
            "--widths",
            {"type": int, "nargs": "+", "default": [128, 256, 512], "help": "(default: 128 256 512)"},
        ),
        ("--beams", {"type": at_least_one, "nargs": "+", "default": [1, 5], "help": "(default: 1 5)"}),
        (
            "--batches",
            {
                "type": at_least_one,
                "nargs": "+",
                "default": [1, 16, 64],
                "help": "sentences at once (default: 1 16 64)",
            },
        ),
        count_flag("--sentences", 128, f"of a block, which has {MOST_BATCHES} batches at most"),
        count_flag("--pieces", 16, "of every translation, its end not counted"),
        count_flag("--rounds", 5, "timed blocks of each"),
    ],
    answer,
    peers=["transformers", "ctranslate2"],
).main

if __name__ == "__main__":
    sys.exit(main())
