"""What a run folder says to W&B, as plain values."""

from headgates.lightning_modules.wandb_tables import artifact_name, heat_map, last_names, translations
from headgates.workbench.folder import RunFolder
from headgates.workbench.row import Measure, ResultRow


def test_paths_are_reduced_to_their_last_name():
    assert last_names("/a/b/c.en") == last_names("../b/c.en") == last_names("c.en") == "c.en"
    assert last_names(["/a/b.en", "b.de"]) == ["b.en", "b.de"]
    assert (last_names(None), last_names("/a/b/"), last_names([])) == (None, "b", [])


def test_the_picture_has_a_row_a_site_and_a_column_a_head():
    rows = [
        {"site": site, "head": head, "p_open": float(head == 1)}
        for site, heads in (("a", 2), ("b", 3))
        for head in range(heads)
    ]
    small = heat_map(rows, title="")
    wide = heat_map([*rows, *({"site": "a", "head": head, "p_open": 0.0} for head in range(3, 7))], title="")
    tall = heat_map([*rows, {"site": "c", "head": 0, "p_open": 0.0}], title="")
    assert small.ndim == 3
    assert small.shape[2] == 3
    assert (wide.shape[0], tall.shape[1]) == small.shape[:2]
    assert wide.shape[1] > small.shape[1]
    assert tall.shape[0] > small.shape[0]


def test_the_name_of_an_artifact_has_only_characters_that_wandb_takes_and_its_end_stays():
    assert (
        artifact_name(RunFolder("runs/toy-l0-0.01-enc-self+cross-s1"), "l0-removed.pt")
        == "toy-l0-0.01-enc-self-cross-s1-l0-removed"
    )
    long = artifact_name(RunFolder("runs/" + "n" * 200), "gates.json")
    assert len(long) == 128
    assert long.endswith("n-gates")


def test_no_more_than_fifty_translations_are_shown(folder):
    lines = [f"line {i}" for i in range(53)]
    folder.write_text("hypotheses/base.txt", "".join(f"{line}\n" for line in lines))
    row = ResultRow("base", 7, 7, {"enc-self": 7}, {"bleu": Measure(41.0, "nrefs:1")})
    folder.write_json("result.json", {"rows": [row.to_json()]})
    columns, rows = translations(folder, (lines, lines))
    assert columns == ["source", "reference", "base"]
    assert rows == [[line] * 3 for line in lines[:50]]
