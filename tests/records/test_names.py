"""What happens where another configuration has the default name of a run."""

import pytest

from headgates.pruning.make import make
from tests.worlds.finished_runs import LEARNED

OTHER = "--gates.lr", "0.2"


def test_a_taken_name_is_refused_where_the_run_was_asked_for_or_gets_a_hash(base, finished, lab_of):
    lab = lab_of(*OTHER, asked=LEARNED)
    with pytest.raises(ValueError, match="holds a run with another configuration"):
        make(lab, base, LEARNED)
    lab.close()
    for flags, asked in (((), None), (("--set", "unique=true"), LEARNED)):
        other = make(lab_of(*OTHER, *flags, asked=asked), base, LEARNED).run
        assert other.path.name.startswith(finished.path.name + "-")
        assert other.config()["unique"] is False  # how the folder was found is not part of the run
