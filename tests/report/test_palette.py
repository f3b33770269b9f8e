"""One palette: every named look is its own, a name that it does not have always gets the same one, and no
other file has a colour."""

import re
from itertools import combinations
from pathlib import Path

import pytest

from headgates.analysis.roles import FAMILIES
from headgates.analysis.survival import NO_ROLE
from headgates.configs.schema import KINDS
from headgates.configs.scores import ZERO, all_score_rows
from headgates.configs.systems import all_systems
from headgates.report import palette
from headgates.report.palette import (
    CARD,
    KIND_LOOKS,
    LOOKS,
    ROLE_COLOURS,
    Colour,
    Look,
    css_variables,
    curve_looks,
    look_of,
    page_looks,
)

ROOT = Path(__file__).resolve().parents[2]
OTHERS = [f"method-{number}" for number in range(97)]
HUES = {
    name: value for name, value in vars(palette).items() if isinstance(value, Colour) and name.isupper()
} | {name: look_of(name).colour for name in OTHERS}
BACKGROUNDS = ("RULE", "ON_MARK", "CARD")


def luminance(colour: str) -> float:
    """Of #rrggbb, as WCAG 2 defines it."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_no_file_but_the_palette_has_a_colour_of_its_own():
    rooms = ("speed", "report", "lightning_modules", "protocol", "sweeps", "pruning", "analysis")
    files = [
        path
        for room in rooms
        for end in ("py", "css", "js", "html")
        for path in (ROOT / room).rglob(f"*.{end}")
    ]
    wrong = [
        path.relative_to(ROOT).as_posix()
        for path in files
        if re.search(r"#[0-9a-fA-F]{6}\b", path.read_text(encoding="utf-8"))
    ]
    assert wrong == ["report/palette.py"]


def test_every_system_kind_and_role_is_named_and_no_two_systems_look_alike():
    closed = {
        name for name, row in all_score_rows().items() if row.closing != ZERO
    }  # too many for looks of their own: told by their names
    assert {
        name
        for name in all_systems()
        if name not in closed and not name.endswith(("-soft", "-removed", "-scratch"))
    } <= LOOKS.keys()
    assert list(KIND_LOOKS) == list(KINDS)
    assert list(ROLE_COLOURS) == [*FAMILIES, NO_ROLE]
    for one, other in combinations([name for name in LOOKS if name != "gradient"], 2):
        assert LOOKS[one] != LOOKS[other]
        assert (LOOKS[one].marker, LOOKS[one].dash) != (LOOKS[other].marker, LOOKS[other].dash), (
            "told apart in grey too"
        )
    assert LOOKS["gradient"].colour == LOOKS["greedy"].colour, "greedy prunes by it"


@pytest.mark.parametrize("name", [name for name in HUES if name not in BACKGROUNDS])
def test_a_line_can_be_seen_on_its_paper(name):
    assert contrast(HUES[name].light, CARD.light) >= 3
    assert contrast(HUES[name].dark, CARD.dark) >= 3


def test_a_name_that_is_not_here_has_one_look_for_ever_and_its_fine_tuned_twin_the_colour():
    assert look_of("exact-k") == Look(Colour("#0f8564", "#7ef1d0"), "p")
    assert look_of("exact-k-finetuned").colour == look_of("exact-k").colour
    assert look_of("exact-k-finetuned").marker != look_of("exact-k").marker
    assert len({look_of(name).colour for name in OTHERS}) > 80


def test_a_method_drawn_kind_by_kind_has_the_looks_of_the_kinds():
    assert curve_looks(["gradient-enc-self", "gradient-cross"]) == {
        "gradient-enc-self": KIND_LOOKS["enc-self"],
        "gradient-cross": KIND_LOOKS["cross"],
    }
    assert curve_looks(["gradient", "random"]) == {"gradient": LOOKS["gradient"], "random": LOOKS["random"]}


def test_the_page_is_told_the_same_colours():
    assert f"--l0: light-dark({LOOKS['l0'].colour.light}, {LOOKS['l0'].colour.dark});" in css_variables()
    look = page_looks(["ablation", "gradient"])
    assert look["ablation"] == {"colour": LOOKS["ablation"].colour.css, "dash": "6 3", "marker": "d"}
    assert look["gradient"]["dash"] == "none"
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "report").glob("*.[cj]s*")]
    used = {name for text in texts for name in re.findall(r"var\(--([\w-]+)", text)}
    own = {"c", "k", "of", "at", "cell", "size", "dash"}  # set where they are used
    assert used - own <= set(re.findall(r"--([\w-]+):", css_variables()))
