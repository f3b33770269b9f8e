"""One palette: every named look is its own, a name that it does not have always gets the same one, and no
other file has a colour."""

import re
from itertools import combinations
from pathlib import Path

from headgates.analysis.roles import FAMILIES
from headgates.analysis.survival import NO_ROLE
from headgates.configs.kinds import KINDS
from headgates.configs.learned import LEARNED
from headgates.pruning.choosers import OFFERED, SCORES
from headgates.report import palette
from headgates.report.palette import (
    CARD,
    KIND_LOOKS,
    ROLE_COLOURS,
    Colour,
    css_variables,
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


def test_no_two_systems_look_alike_in_colour_or_in_grey():
    drawn = [name for name in SCORES if name in OFFERED]
    looks = {(name, trained): look_of(name, trained) for name in drawn for trained in (False, True)}
    looks |= {(name, True): look_of(name) for name in LEARNED}
    for one, other in combinations(looks, 2):
        first, second = looks[one], looks[other]
        assert (first.marker, first.dash) != (second.marker, second.dash), (one, other)
    assert list(KIND_LOOKS) == list(KINDS)
    assert list(ROLE_COLOURS) == [*FAMILIES, NO_ROLE]


def test_a_line_can_be_seen_on_its_paper():
    for name in HUES.keys() - set(BACKGROUNDS):
        assert contrast(HUES[name].light, CARD.light) >= 3, name
        assert contrast(HUES[name].dark, CARD.dark) >= 3, name


def test_a_name_that_is_not_here_has_one_look_and_its_trained_twin_the_colour():
    one, trained = look_of("exact-k"), look_of("exact-k", trained=True)
    assert one == look_of("exact-k")
    assert trained.colour == one.colour
    assert trained.marker != one.marker
    assert len({look_of(name).colour for name in OTHERS}) > 80


def test_the_page_knows_every_colour_that_its_styles_and_scripts_use():
    assert page_looks([{"name": "a", "method": "ablation"}])["a"]["colour"] == look_of("ablation").colour.css
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "report").glob("*.[cj]s*")]
    used = {name for text in texts for name in re.findall(r"var\(--([\w-]+)", text)}
    own = {"c", "k", "of", "at", "cell", "size", "dash", "ramp"}  # set where they are used
    assert used - own <= set(re.findall(r"--([\w-]+):", css_variables()))
