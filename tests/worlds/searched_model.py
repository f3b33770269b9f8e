"""A random model whose searches end at different lengths, its translator, and what it translates: shared by
the tests of searches, ablations, removal and costs."""

import pytest
import torch
from torch import Tensor

from headgates.configs.settings import SearchConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from tests.renumbered import Numbers


def random_model(make_model, **changes) -> Transformer:
    """Its end of sentence comes now and then, so that translations differ in length and reach their limits
    too."""
    model = make_model(seed=20, embeddings="separate", **changes)
    with torch.no_grad():
        model.output.weight *= 3.0
    return model


def translator_of(model: Transformer, min_length: int = 0) -> Translator:
    numbers = Numbers(23, SpecialTokens())  # the target vocabulary has 19
    search = SearchConfig(beam=1, max_ratio=1.0, max_extra=5, min_length=min_length, batch_tokens=61)
    return Translator(model, numbers, numbers, search)


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
