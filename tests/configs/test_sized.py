"""Settings that are chosen for text of one's own."""

from itertools import pairwise

import pytest

from headgates.configs.cli import flat, from_dict
from headgates.configs.fields import to_dict
from headgates.configs.settings import Settings
from headgates.configs.sized import suited


@pytest.mark.parametrize("pairs", [1, 300, 4000, 9999, 10_000, 40_000, 4_000_000])
def test_more_text_gets_a_larger_model_and_vocabulary_and_fewer_epochs(pairs):
    (small, _), (large, chosen) = suited(Settings(), pairs, ()), suited(Settings(), 11 * pairs, ())
    assert small.train.epochs >= large.train.epochs >= 3
    assert small.text.vocab_size <= large.text.vocab_size
    assert small.model.encoder_layers <= large.model.encoder_layers
    assert small.model.dropout >= large.model.dropout
    plain = flat(to_dict(large))
    assert chosen.items() <= plain.items()
    changed = {name for name, value in flat(to_dict(Settings())).items() if plain[name] != value}
    assert changed <= chosen.keys()


@pytest.mark.parametrize("given", [{}, {"train.epochs": 1}])
@pytest.mark.parametrize("pairs", [1, 300, 4000, 40_000, 200_000, 400_000, 1_000_000, 4_000_000])
def test_warm_up_takes_at_most_a_third_of_the_steps(pairs, given):
    plain = from_dict(Settings, flat(to_dict(Settings())) | given)
    settings, _ = suited(plain, pairs, given)
    tokens = settings.text.max_tokens * settings.train.accumulate
    steps = settings.train.epochs * max(1, pairs * 25 / tokens)
    assert settings.train.warmup_steps <= steps / 3


def test_each_character_of_a_text_has_a_piece():
    """A text of Chinese has more characters than a small text has pieces otherwise."""
    assert suited(Settings(), 600, (), characters=936)[0].text.vocab_size > 936 + 4
    assert suited(Settings(), 600, (), characters=80)[0] == suited(Settings(), 600, ())[0]


def test_sizes_rise_in_steps_and_the_smallest_stays_as_it_is():
    sizes = [suited(Settings(), pairs, ())[0] for pairs in (4000, 40_000, 200_000, 400_000, 4_000_000)]
    assert [size.model.d_model for size in sizes] == [128, 128, 256, 256, 512]
    for small, large in pairwise(sizes):
        assert small.model.encoder_layers <= large.model.encoder_layers
        assert small.text.max_tokens <= large.text.max_tokens
        assert small.text.vocab_size <= large.text.vocab_size
    assert (sizes[0].train.epochs, sizes[0].train.warmup_steps) == (40, 200)


def test_what_flags_or_files_say_stays_though_it_is_the_default():
    given = {"train.epochs": 7, "model.dropout": 0.05}
    settings, chosen = suited(Settings(), 4000, given)
    assert (settings.train.epochs, settings.model.dropout) == (7, 0.05)
    assert not chosen.keys() & given
    assert chosen["text.vocab_size"] == settings.text.vocab_size == 2000
