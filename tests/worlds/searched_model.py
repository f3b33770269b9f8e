"""A random model whose searches end at different lengths, its translator, and what it translates: shared by
the tests of searches, ablations, removal and costs."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from headgates.configs.settings import SearchConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import ALL_KINDS, HeadMap, attach, remove
from headgates.models.search import best_hypotheses
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from tests.renumbered import Numbers

GREEDY = SearchConfig(beam=1, max_ratio=1.0, max_extra=5, batch_tokens=61)
BEAM = replace(GREEDY, beam=3)


def random_model(make_model, **changes) -> Transformer:
    """Its end of sentence comes now and then, so that translations differ in length and reach their limits
    too."""
    model = make_model(seed=20, embeddings="separate", **changes)
    with torch.no_grad():
        model.output.weight *= 3.0
    return model


def best_ids(model: Transformer, source: Tensor, search: SearchConfig) -> list[list[list[int]]]:
    """The ids of the best hypotheses of every source."""
    return [[one.ids for one in best] for best in best_hypotheses(model, source, search)]


def masked(model: nn.Module, closed: HeadMap) -> nn.Module:
    """The model with gates, of which the closed ones are 0."""
    attach(model, gate="mask", kinds=ALL_KINDS).assign(closed.map(lambda row: (~row).double()))
    return model


def without(model: Transformer, closed: HeadMap) -> Transformer:
    """A copy of the model without these heads and neurons."""
    smaller = copy.deepcopy(model)
    remove(smaller, closed)
    return smaller


def translator_of(model: Transformer, min_length: int = 0) -> Translator:
    numbers = Numbers(23, SpecialTokens())  # the target vocabulary has 19
    return Translator(model, numbers, numbers, replace(GREEDY, min_length=min_length))


@pytest.fixture
def source() -> Tensor:
    """Sources (7, 9) of many lengths."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 23, (7, 9), generator=generator)
    for row, length in enumerate(torch.randint(1, 9, (7,), generator=generator).tolist()):
        ids[row, length], ids[row, length + 1 :] = 2, 0
    return ids


@pytest.fixture
def lines(source) -> list[str]:
    """The sources as lines, an empty one among them."""
    texts = [" ".join(str(i) for i in row if i > 2) for row in source.tolist()]
    return [*texts[:4], "", *texts[4:]]
