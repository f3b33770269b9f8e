"""What heads are worth and do in a model whose special tokens have other ids is what they do in the model
with ours."""

import pytest
import torch

from headgates.analysis.alignment import Alignment, Entropy
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.lrp import relevance
from headgates.analysis.positions import Positions
from headgates.analysis.rare_words import RareWords
from headgates.analysis.ratio_walk import RatioWalk
from headgates.analysis.scores.importance import raw_importance
from tests.renumbered import OTHERWISE, PAIRS, SOURCE_VOCAB, batches, twins


@pytest.mark.parametrize("specials", OTHERWISE.values(), ids=OTHERWISE)
def test_what_heads_do_and_are_worth_is_the_same(specials):
    links = {number: [(0, t) for t in range(len(target))] for number, (_, target) in enumerate(PAIRS)}
    found = []
    for translator in twins(specials):
        model, data = translator.model, batches(translator)
        counts = torch.zeros(SOURCE_VOCAB, dtype=torch.int64)
        counts[translator.source_vocab.ids] = torch.arange(100, 100 + SOURCE_VOCAB)
        rare, alignment, entropy = RareWords(counts, 11), Alignment(links), Entropy()
        positions = Positions()
        observe_attention(model, data, [rare, alignment, entropy, positions])
        shares = [relevance(model, data, walk=walk) for walk in (None, RatioWalk)]
        maps = [rare.two_rarest(), alignment.agreement(), entropy.nats(), *(each.share for each in shares)]
        maps += [positions.best().share, raw_importance(model, data)]
        numbers = rare.sentences, rare.queries, *rare.chance(), *(each.steps for each in shares)
        found.append((numbers, torch.cat([each.flat() for each in maps])))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-6)
