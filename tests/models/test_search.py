"""Cached, batched search against plain searches that run the whole model again for every token."""

import pytest
import torch
from torch import nn

from headgates.configs.settings import SearchConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.models import decoder_state
from headgates.models.search import best_hypotheses

PAD, BOS, EOS = SpecialTokens().padding, SpecialTokens().beginning, SpecialTokens().end

LIMITS = {"max_ratio": 1.0, "max_extra": 3}


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    """Keys and values are moved to a larger place every other step."""
    monkeypatch.setattr(decoder_state, "ROOM", 2)


@pytest.fixture
def model(make_model):
    """Random, but with an end of sentence that comes now and then, so that hypotheses differ in length."""
    model = make_model(seed=20)
    model.output = biased(model, EOS, 1.0)
    return model


def biased(model, token: int, by: float) -> nn.Linear:
    """The model's output projection with a constant added to one token's logit."""
    output = nn.Linear(model.output.in_features, model.output.out_features)
    with torch.no_grad():
        output.weight.copy_(model.output.weight)
        output.bias.zero_()[token] = by
    return output


@pytest.fixture
def source() -> torch.Tensor:
    """Sources (5, 7): four sentences and an empty one."""
    return torch.tensor(
        [
            [7, 5, 11, 4, 9, 13, 2],
            [8, 6, 22, 2, 0, 0, 0],
            [12, 4, 4, 17, 2, 0, 0],
            [2, 0, 0, 0, 0, 0, 0],
            [9, 9, 15, 16, 3, 2, 0],
        ]
    )


@torch.no_grad()
def log_probs(model, row, ids):
    """log p of each token after `ids`, by a whole pass over one sentence without padding."""
    log_p = model(row[row != PAD][None], torch.tensor([[BOS, *ids]]))[0, -1].double().log_softmax(-1)
    log_p[[PAD, BOS]] = -torch.inf
    return log_p.tolist()


def limit_of(row, least: int = 0) -> int:
    return max(int((row != PAD).sum()) - 1 + 3, least + 1)  # LIMITS, the end counted


def plain_beam(model, row, beam: int, least: int):
    """[(ids, log probability)] in the order in which they ended."""
    live, ended = [([], 0.0)], []
    limit = limit_of(row, least)
    for n in range(1, limit + 1):
        candidates = [
            (total + value, ids, token)
            for ids, total in live
            for token, value in enumerate(log_probs(model, row, ids))
            if token not in (PAD, BOS) and (n > least if token == EOS else n < limit)
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        ended += [(ids, total) for total, ids, token in candidates[:beam] if token == EOS]
        if len(ended) >= beam:
            break
        live = [([*ids, token], total) for total, ids, token in candidates if token != EOS][:beam]
    return ended


def n_best(model, source, beam: int, **options):
    return best_hypotheses(model, source, SearchConfig(beam=beam, **options))


@pytest.mark.parametrize(
    ("beam", "length_penalty", "least"),
    [
        *((1, 1.0, 0), (1, 1.0, 1), (1, 1.0, 4)),
        *((2, 0.0, 0), (3, 1.0, 0), (5, 1.0, 0), (5, 1.0, 1), (3, 0.0, 4), (3, -0.7, 0)),
    ],
)
def test_a_search_equals_a_plain_one_of_whole_passes(model, source, beam, length_penalty, least):
    found = n_best(model, source, beam, length_penalty=length_penalty, min_length=least, **LIMITS)
    for row, best in zip(source, found, strict=True):
        expected = sorted(
            plain_beam(model, row, beam, least), key=lambda one: -one[1] / (len(one[0]) + 1) ** length_penalty
        )[:beam]
        assert [one.ids for one in best] == [ids for ids, _ in expected]
        assert [one.log_prob for one in best] == pytest.approx([total for _, total in expected], rel=1e-4)
    assert (
        beam > 1 or len({len(best[0].ids) for best in found}) > 2
    )  # sentences leave the batch at different steps


@pytest.mark.parametrize("beam", [1, 4])
def test_the_end_is_forced_at_the_length_limit_and_at_the_last_learned_position(
    make_model, model, source, beam
):
    model.output = biased(model, EOS, -100.0)  # it would never come by itself
    found = n_best(model, source, beam, **LIMITS)
    assert [len(best[0].ids) + 1 for best in found] == [limit_of(row) for row in source]
    assert all(best[0].log_prob < -50 for best in found)  # the forced end is paid for
    model = make_model(positions="learned", max_positions=7)
    model.output = biased(model, EOS, -100.0)
    assert max(len(best[0].ids) + 1 for best in n_best(model, source, beam)) == 7


def test_a_limit_of_one_token_leaves_the_end_alone(model, source):
    found = n_best(model, source, 3, max_ratio=0.0, max_extra=1)
    assert [[one.ids for one in best] for best in found] == [[[]]] * 5


@pytest.mark.parametrize("beam", [1, 3])
def test_weights_that_are_no_numbers_are_refused(model, source, beam):
    model.output = biased(model, EOS, torch.nan)
    with pytest.raises(ValueError, match="no finite probability to any next token"):
        n_best(model, source, beam, **LIMITS)
