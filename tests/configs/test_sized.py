"""Settings that are chosen for text of one's own."""

import pytest

from headgates.configs.cli import flat
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


def test_what_flags_or_files_say_stays_though_it_is_the_default():
    given = {"train.epochs": 7, "model.dropout": 0.05}
    settings, chosen = suited(Settings(), 4000, given)
    assert (settings.train.epochs, settings.model.dropout) == (7, 0.05)
    assert not chosen.keys() & given
    assert chosen["text.vocab_size"] == settings.text.vocab_size == 2000
