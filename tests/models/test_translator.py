"""Translator: one face that translates lines and scores pairs. The model is untrained; what it says does not
matter here."""

import pytest
import torch

from headgates.data.special_tokens import SpecialTokens
from headgates.models.line_translator import length_batches
from headgates.models.translator import Translator
from tests.worlds.translators import SEARCH, SOURCES, TARGETS, difference, shortened

BOS, EOS = SpecialTokens().beginning, SpecialTokens().end


@pytest.fixture
def translator(make_translator) -> Translator:
    return make_translator(d_model=21, heads=3)


def plain_score(translator: Translator, source: str, target: str) -> list[float]:
    """log p of each piece and the end, token by token, one sentence at a time."""
    source_ids = torch.tensor([[*translator.encode([source])[0], EOS]])
    pieces = [*translator.target_vocab.encode([target])[0], EOS]
    values = []
    with torch.no_grad():
        for i, piece in enumerate(pieces):
            logits = translator.model(source_ids, torch.tensor([[BOS, *pieces[:i]]]))[0, -1]
            values.append(float(logits.double().log_softmax(-1)[piece]))
    return values


@pytest.mark.parametrize("beam", [1, 3])
def test_a_translation_does_not_depend_on_the_lines_around_it(translator, beam):
    alone = [translator.translate([line], beam=beam)[0] for line in SOURCES]
    assert translator.translate(SOURCES, beam=beam) == alone
    assert [bool(line) for line in alone] == [True, False, True, True, False, True]


def test_scores_equal_a_loop_over_log_softmax(translator):
    expected = [plain_score(translator, *pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    assert difference(translator.score(SOURCES, TARGETS), expected) < 1e-4


def test_a_beam_of_none_and_scores_of_fewer_targets_than_sources_are_refused(translator):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        translator.translate(SOURCES, beam=0)
    with pytest.raises(ValueError, match="got 6 sources and 5 targets"):
        translator.score(SOURCES, TARGETS[:5])


@pytest.mark.parametrize("training", [True, False])
def test_translating_and_scoring_leave_the_model_s_mode_and_use_no_dropout(translator, training):
    expected = translator.score(SOURCES, TARGETS), translator.translate(SOURCES)
    translator.model.train(training)
    assert (translator.score(SOURCES, TARGETS), translator.translate(SOURCES)) == expected
    assert translator.model.training == training
    translator.model.eval()


def test_batches_hold_every_line_that_is_not_empty_once_longest_first_within_their_tokens():
    lengths = [3, 0, 11, 5, 100, 0, 1, 4, 9]
    batches = length_batches(lengths, SEARCH.batch_tokens // 2)
    assert [i for batch in batches for i in batch] == [4, 2, 8, 3, 7, 0, 6]
    for batch in batches:
        assert len(batch) == 1 or (max(lengths[i] for i in batch) + 1) * len(batch) * 2 <= SEARCH.batch_tokens


class Masked(torch.nn.Module):
    """An output layer whose other rows have a logit of -inf."""

    def __init__(self, output, rows):
        super().__init__()
        self.output, self.weight, self.rows = output, output.weight, rows

    def forward(self, x):
        logits = self.output(x)
        away = torch.ones(logits.shape[-1], dtype=torch.bool)
        away[self.rows] = False
        return logits.masked_fill(away, -torch.inf)


@pytest.mark.parametrize("beam", [1, 3])
def test_search_with_a_shortlist_is_that_in_which_no_other_piece_has_a_probability(make_translator, beam):
    translator = make_translator(d_model=21, heads=3)
    short, lists = shortened(translator)
    changed = 0
    for line in filter(str.strip, SOURCES):
        (source,) = translator.encode([line])
        listed = {*range(6)}.union(*(lists[piece] for piece in [*source, EOS]))
        allowed = sorted(listed - {*translator.model.target_specials.never_produced})
        output = translator.model.output
        translator.model.output = Masked(output, allowed)
        expected = translator.translate_n_best([line], beam=beam)[0]
        translator.model.output = output
        found = short.translate_n_best([line], beam=beam)[0]
        assert [one.text for one in found] == [one.text for one in expected]
        assert difference(*([[one.log_prob for one in each]] for each in (found, expected))) < 1e-4
        changed += found[0].text != translator.translate([line], beam=beam)[0]
    assert changed  # or the shortlist says nothing
    assert short.score(SOURCES, TARGETS) == translator.score(SOURCES, TARGETS)
