"""The parity check: it lets rounding and near ties pass, states what it compared, and names what is wrong."""

import math

import pytest

from headgates.bridges import parity as parity_module
from headgates.bridges.parity import NEAR_TIE, TOLERANCE, parity
from headgates.models.line_translator import RankedTranslation


class Echo:
    """An exported model that says what the translator says, but for what a test changes."""

    def __init__(self, translator, scores=lambda rows: rows, best=lambda lines, beam, found: found):
        self.translator, self.scores, self.best = translator, scores, best

    def score(self, sources, targets):
        return self.scores(self.translator.score(sources, targets))

    def translate_n_best(self, lines, *, beam=None, length_penalty=None):
        return self.best(
            lines, beam, self.translator.translate_n_best(lines, beam=beam, length_penalty=length_penalty)
        )


@pytest.fixture(scope="module")
def translator(make_translator):
    return make_translator("uneven")


def shifted(by: float):
    return lambda rows: [[value + by for value in row] for row in rows]


def other(text: str, only_beam: int):
    """The first line's best translation becomes `text`."""

    def change(lines, beam, found):
        if beam == only_beam:
            found[0] = [RankedTranslation(text, -1.0, -1.0, 2), *found[0][1:]]
        return found

    return change


def test_a_model_equals_itself_and_the_numbers_say_so(translator, pairs):
    found = parity(translator, Echo(translator), *pairs)
    assert found["sentences"] == 6
    assert found["pieces"] == sum(len(row) for row in translator.score(*pairs))
    assert found["log_prob_max_difference"] == found["log_prob_mean_difference"] == 0
    for name in ("greedy", "beam_3"):
        assert found[name].pop("speedup") > 0
        assert found[name] == {"identical": 1.0, "differing": 0, "largest_score_gap": 0.0}
    assert (found["tolerance"], found["near_tie"]) == (TOLERANCE, NEAR_TIE)


def test_rounding_passes_and_is_reported(translator, pairs):
    found = parity(translator, Echo(translator, shifted(TOLERANCE / 2)), *pairs)
    for name in ("max", "mean"):
        assert found[f"log_prob_{name}_difference"] == pytest.approx(TOLERANCE / 2, rel=1e-3)


@pytest.mark.parametrize("by", [2 * TOLERANCE, -1.0, math.nan, math.inf])
def test_log_probabilities_apart_are_a_failure_that_names_the_sentence(translator, pairs, by):
    with pytest.raises(
        ValueError,
        match=r"parity failed: in the reference of 'the dog sleeps \.' a token has log-probability",
    ):
        parity(translator, Echo(translator, shifted(by)), *pairs)


@pytest.mark.parametrize("beam", [1, 3])
def test_another_translation_is_a_failure_that_shows_both(translator, pairs, beam):
    ours = translator.translate(pairs[0][:1], beam=beam)[0]
    with pytest.raises(
        ValueError, match=rf"with beam {beam} 'the dog sleeps \.' becomes 'eine Katze', the model says "
    ) as caught:
        parity(translator, Echo(translator, best=other("eine Katze", beam)), *pairs)
    assert repr(ours) in str(caught.value)


@pytest.mark.parametrize(("beam", "name"), [(1, "greedy"), (3, "beam_3")])
def test_another_translation_at_a_near_tie_passes_and_is_counted(translator, pairs, monkeypatch, beam, name):
    monkeypatch.setattr(parity_module, "NEAR_TIE", 100.0)
    found = parity(translator, Echo(translator, best=other("eine Katze", beam)), *pairs)
    assert (found[name]["differing"], found[name]["identical"]) == (1, pytest.approx(5 / 6))
    assert 0 < found[name]["largest_score_gap"] < 100
    assert found["greedy" if beam == 3 else "beam_3"]["differing"] == 0


def test_a_tie_of_beam_search_is_of_scores_and_one_of_greedy_search_of_the_first_token_that_differs(
    translator, pairs
):
    line = pairs[0][0]
    a, b = (RankedTranslation(text, 0.0, 0.0, 0) for text in ("der Hund schläft .", "der Hund sieht ."))
    scores = translator.score([line] * 2, [a.text, b.text])
    whole = abs(sum(scores[0]) / len(scores[0]) - sum(scores[1]) / len(scores[1]))
    assert parity_module.score_gap(translator, line, a, b, greedy=False) == pytest.approx(whole)
    ids = translator.target_vocab.encode([a.text, b.text])
    first = next(i for i, pair in enumerate(zip(*ids, strict=False)) if pair[0] != pair[1])
    gap = parity_module.score_gap(translator, line, a, b, greedy=True)
    assert gap == pytest.approx(abs(scores[0][first] - scores[1][first]))
    # one that ends earlier is compared at its end
    short = RankedTranslation("der Hund", 0.0, 0.0, 0)
    ended, whole = translator.score([line] * 2, [short.text, a.text])
    gap = parity_module.score_gap(translator, line, short, a, greedy=True)
    assert gap == pytest.approx(abs(ended[-1] - whole[len(ended) - 1]))


def test_wrong_scores_of_the_right_translation_are_a_failure(translator, pairs):
    def wrong(lines, beam, found):
        return [
            [RankedTranslation(one.text, one.log_prob - 1, one.score, one.tokens) for one in best]
            for best in found
        ]

    with pytest.raises(ValueError, match=r"parity failed: with beam 1 .* has log-probability"):
        parity(translator, Echo(translator, best=wrong), *pairs)


def test_no_lines_prove_nothing(translator):
    with pytest.raises(ValueError, match="at least one line that is not empty"):
        parity(translator, Echo(translator), ["", " "], ["", ""])
