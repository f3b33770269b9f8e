"""What ranks tell each other; one process alone needs nobody."""

import pytest

from headgates.data import ranks


def test_a_process_alone_decides_for_itself():
    assert (ranks.world(), ranks.rank(), ranks.is_first(), ranks.speaks_first()) == (1, 0, True, True)
    assert ranks.first(lambda: 7) == 7
    assert ranks.shared_out([1, 2], lambda share: [-each for each in share]) == [-1, -2]
    assert list(ranks.share("abc")) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="no"):
        ranks.first(lambda: (_ for _ in ()).throw(ValueError("no")))
