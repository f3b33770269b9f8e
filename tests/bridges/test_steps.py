"""The two programs, not yet exported, under the search and the scoring of the model: the same in every
architecture."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from headgates.bridges.step_search import Arrays, StepTranslator
from headgates.bridges.steps import DecoderProgram, EncoderProgram, past_sizes
from headgates.models.checkpoint import architecture
from headgates.models.description import read_description
from headgates.models.translator import Translator
from tests.worlds.small_model import LIBRARIES
from tests.worlds.translators import check_same_n_best, scores_differ, shortened

LONG = " ".join(f"a{'b' * i}" for i in range(30))
SSRU = {"decoder_mixer": "ssru", "activation": "swish", "embedding_norm": True, "output_bias": True}
ARCHITECTURES = {  # what is closed, and in which architecture
    "pre, tied": ("uneven", {"embeddings": "tied", "joint": True}),
    "post, odd width": ("none", {"norm": "post", "d_model": 21, "heads": 1}),
    "pre, no heads": ("all", {}),
    "post, layers without heads": ("empty layers", {"norm": "post"}),
    "post, dropped layers": ("depth", {"norm": "post"}),
    "ssru": ("none", SSRU),
    **{name: ("none", settings) for name, settings in LIBRARIES.items()},
}


def in_steps(translator: Translator) -> StepTranslator:
    """The translator over the programs as plain modules."""
    model, vocabs = translator.model, (translator.source_vocab, translator.target_vocab)
    description = read_description(json.loads(json.dumps(architecture(model))))
    sizes = [size for layer in model.decoder.layers for size in past_sizes(layer.self_attention).values()]
    encoder, decoder = EncoderProgram(model), DecoderProgram(model)

    def arrays(tensors: Sequence[Tensor]) -> Arrays:
        return [tensor.detach().numpy() for tensor in tensors]

    def decode(ids: np.ndarray, length: int, bias: np.ndarray, cross: Arrays, past: Arrays) -> Arrays:
        new, mask, *both = map(torch.from_numpy, (ids, bias, *cross, *past))
        return arrays(decoder(new, torch.tensor(length), mask, both[: len(cross)], both[len(cross) :]))

    steps = StepTranslator(
        vocabs, description, sizes, lambda source: arrays(encoder(torch.from_numpy(source))), decode
    )
    steps.search = translator.search
    return steps


@pytest.mark.parametrize(("closed", "settings"), ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_scores_and_searches_are_the_model_s_in_every_architecture(make_translator, pairs, closed, settings):
    translator = make_translator(closed, **settings)
    steps = in_steps(translator)
    assert scores_differ(translator, steps, *pairs) < 1e-5
    for beam in (1, 3):
        check_same_n_best(translator, steps, pairs[0], beam)


def test_a_line_longer_than_the_sinusoids_of_the_model_is_translated_as_the_model_does(make_translator):
    translator = make_translator("uneven", max_positions=3)
    assert in_steps(translator).translate([LONG]) == translator.translate([LONG])


@pytest.mark.parametrize("beam", [1, 3])
def test_a_shortlist_holds_for_the_programs_too(make_translator, pairs, beam):
    whole = make_translator()
    short, _ = shortened(whole)
    steps = in_steps(short)
    steps.shortlist = short.shortlist
    check_same_n_best(short, steps, pairs[0], beam)
    assert short.translate(pairs[0], beam=beam) != whole.translate(pairs[0], beam=beam)
