"""What a page keeps of the page before it: pages gain, and lose nothing."""

from typing import Any

from headgates.report.fill import gain


def role(family: str, score: float) -> dict[str, Any]:
    return {"family": family, "score": score, "baseline": 0.25}


def page(
    roles: list[Any], asked: list[str], what: list[str], split: str = "valid", **more: Any
) -> dict[str, Any]:
    """The data of one head. more: of it and of the page."""
    known = ("confidence", "lrp_share", "lrp_signed", "entropy", "offsets")
    head = {"site": "decoder.0.cross", "head": 3, "roles": roles, "asked": asked}
    head |= {name: more.pop(name, None) for name in known}
    rows = {name: [] for name in ("examples", "sentences", "contrasts", "survival", "tests", "correlations")}
    facts = {name: {"n": len(what)} for name in what}
    settings = {"read": {name: {"split": split} for name in what}, "facts": facts, "weights": "w"}
    return {"heads": [head], "settings": settings, "causes": None, **rows, **more}


def test_what_was_found_before_stays_and_what_was_looked_for_again_is_the_new():
    before = page([role("positional", 0.5), role("aligned", 0.75)], ["positional", "aligned"], ["positions"])
    before["heads"][0] |= {"confidence": 0.5, "entropy": 1.5, "offsets": [[1, 0.5]]}
    roles, asked = [role("syntactic", 1.0)], ["positional", "syntactic"]
    now = page(roles, asked, ["syntax"], "test", entropy=0.0, offsets=[])
    gain(now, before)
    (head,) = now["heads"]
    assert [each["family"] for each in head["roles"]] == ["syntactic", "aligned"], "the clearest first"
    assert head["asked"] == ["positional", "syntactic", "aligned"]
    assert (head["confidence"], head["entropy"], head["offsets"]) == (0.5, 0.0, [[1, 0.5]])
    assert now["settings"]["read"] == {"positions": {"split": "valid"}, "syntax": {"split": "test"}}
    assert now["settings"]["facts"] == {"positions": {"n": 1}, "syntax": {"n": 1}}


def test_the_readers_own_sentences_stay_and_tables_have_one_row_of_each_thing():
    examples = [{"text": name, "source": [name], "own": name != "text"} for name in ("mine", "ours", "text")]
    one_run = [{"run": "L0 gates", "kind": "all", "heads": 3}]
    runs = [{"run": name, "kind": "all", "heads": 3} for name in ("run-s1", "run-s2")]
    tables = {"tests": [{"kind": "all", "p": 0.5}, {"kind": "cross", "p": 0.1}], "survival": one_run}
    tables |= {"correlations": [{"first": "lrp", "kind": "all", "rho": 0.5}]}
    before = page([], [], ["lrp"], examples=examples, contrasts=[{"name": "a", "n": 1}], **tables)
    found = {"tests": [{"kind": "all", "p": 0.25}], "survival": runs}
    found |= {"correlations": [{"first": "loss", "kind": "all", "rho": 0.25}]}
    now = page([], [], [], examples=examples[:1], contrasts=[{"name": "b"}], **found)
    gain(now, before)
    assert [each["source"] for each in now["examples"]] == [["mine"], ["ours"], ["text"]]
    assert [each["name"] for each in now["contrasts"]] == ["a", "b"]
    assert sorted(now["tests"], key=str) == [{"kind": "all", "p": 0.25}, {"kind": "cross", "p": 0.1}]
    assert now["survival"] == runs, "a run is called otherwise where there is another one like it"
    assert [row["first"] for row in now["correlations"]] == ["lrp", "loss"]
    assert now["settings"] == before["settings"], "nothing was analysed now"
