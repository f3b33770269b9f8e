"""What ranks tell each other; one process alone needs nobody."""

import subprocess
import sys

import pytest

from headgates.data import ranks


def test_a_process_alone_decides_for_itself():
    assert (ranks.world(), ranks.rank(), ranks.is_first(), ranks.speaks_first()) == (1, 0, True, True)
    assert ranks.first(lambda: 7) == 7
    assert ranks.shared_out([1, 2], lambda share: [-each for each in share]) == [-1, -2]
    assert list(ranks.share("abc")) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="no"):
        ranks.first(lambda: (_ for _ in ()).throw(ValueError("no")))


def test_importing_it_needs_no_torch():
    code = "import sys; from headgates.data import atomic_file, ranks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
