"""Which ids special tokens may have."""

import pytest

from headgates.data.special_tokens import SpecialTokens


@pytest.mark.parametrize("ids", [(0, 1, 0, 3), (-1, 1, 2, 0)])
def test_special_tokens_without_an_id_or_a_padding_of_their_own_are_refused(ids):
    with pytest.raises(ValueError, match="special tokens need ids from 0 on"):
        SpecialTokens(*ids)
