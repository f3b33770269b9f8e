"""The hint at a mistyped name."""

from headgates.configs.did_you_mean import did_you_mean


def test_the_name_most_like_it_is_shown():
    assert did_you_mean("vaild", ("train", "valid", "test")) == " (did you mean 'valid'?)"
    assert did_you_mean("bse", {"base": 1, "l0": 2}, prefix="runs/") == " (did you mean 'runs/base'?)"


def test_there_is_no_hint_where_no_name_is_like_it():
    assert did_you_mean("chess", ("train", "valid")) == did_you_mean("chess", ()) == ""
