"""The colours and markers of every figure and of the report page: of systems, methods, kinds of attention and
roles.

The hues are Okabe and Ito's (2008), told apart by the colour-blind, dark enough that a thin line has a
contrast of 3:1 on white; each has a lighter twin for dark paper, 3:1 on it. A system or method that is not
named here gets a colour and marker from its name, always the same.
"""

import colorsys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Colour:
    """light: on white or light paper, and in every figure; dark: on the dark paper of the page."""

    light: str
    dark: str

    @property
    def css(self) -> str:
        return f"light-dark({self.light}, {self.dark})"


BLACK = Colour("#000000", "#c9ced6")
BLUE = Colour("#0067a5", "#6bb8f0")
GREEN = Colour("#00785a", "#45cfa0")
VERMILION = Colour("#b84a00", "#ff9a5c")
PINK = Colour("#9c3f86", "#ec9fd4")
ORANGE = Colour("#b87a00", "#eeb544")
SKY = Colour("#2f8fc4", "#8fd0f5")
OLIVE = Colour("#6d5b00", "#dcc64a")
VIOLET = Colour("#6a3fc0", "#b79cf2")
TEAL = Colour("#007a87", "#4fd0dc")
GREY = Colour("#777777", "#8b9099")
PALE = Colour("#8b9099", "#7b818c")

INK = Colour("#1b1d21", "#eceef1")
SOFT = Colour("#5b616b", "#a3a9b3")  # words and lines that stand back
RULE = Colour("#e3e4e2", "#2e3137")  # grids
CARD = Colour("#ffffff", "#1b1d21")
PAPER = {"paper": Colour("#f7f7f5", "#131417"), "card": CARD, "fill": Colour("#efefec", "#25282d")}
HEAT = {  # from little to much; the brightest is much on dark paper, the darkest on light
    "heat-low": Colour("#f6ebc4", "#3d3626"),
    "heat-middle": Colour("#f0913f", "#b95f28"),
    "heat-high": Colour("#8c1437", "#ffdd94"),
}
ON_MARK = Colour("#ffffff", "#131417")  # letters on a mark


@dataclass(frozen=True)
class Look:
    """dash: lengths drawn and left out in turn, none for a solid line."""

    colour: Colour
    marker: str
    dash: tuple[float, ...] = ()

    @property
    def line(self) -> Any:
        """The line's style, for matplotlib."""
        return (0, self.dash) if self.dash else "-"


KIND_LOOKS = {"enc-self": Look(BLUE, "o"), "dec-self": Look(VERMILION, "s"), "cross": Look(GREEN, "^")}
KIND_COLOURS = {kind: look.colour.light for kind, look in KIND_LOOKS.items()}
# roles as analysis.roles and analysis.survival name them: importing those takes a second
ROLE_COLOURS = {
    "positional": BLUE,
    "syntactic": GREEN,
    "rare words": VERMILION,
    "aligned": PINK,
    "no role": PALE,
}
# what chooses has one colour; trained on after it, it has another marker and dashes
LOOKS = {
    "l0": Look(VERMILION, "o"),
    "subset": Look(SKY, "p"),
    "importance": Look(BLACK, "v"),
    "raw-importance": Look(GREY, "v", (4, 2)),
    "random": Look(BLUE, "X", (7, 2, 1.5, 2)),
    "ablation": Look(ORANGE, "d", (6, 3)),
    "obs": Look(VIOLET, "o", (8, 2)),
    "obs-swap": Look(VIOLET, "p", (8, 2)),
    "fisher": Look(TEAL, "s", (8, 2)),
    "loss": Look(ORANGE, "s", (5, 1)),
    "loss-swap": Look(ORANGE, "p", (5, 1)),
    "plan": Look(GREEN, "s"),
    "unpruned": Look(GREY, "*"),
}
TRAINED_MARKERS = dict(zip("ov^Xd>spH<D", "DshP<88Hphd", strict=True))
SHADES = (BLACK, BLUE, ORANGE, GREEN, PINK, SKY, VERMILION)  # layers, in turn


def look_of(choose: str, trained: bool = False) -> Look:
    """The look of what chooses, and of the same trained on. What has no look of its own gets a colour and a
    marker from its name, always the same."""
    look = LOOKS.get(choose)
    if look is None:
        bits = zlib.crc32(choose.encode())
        hue = bits % 360 / 360
        look = Look(Colour(from_hue(hue, 0.29), from_hue(hue, 0.72)), "pd>"[bits // 360 % 3])
    if not trained:
        return look
    return Look(look.colour, TRAINED_MARKERS.get(look.marker, look.marker), look.dash or (3, 2))


def from_hue(hue: float, lightness: float) -> str:
    return "#" + "".join(f"{round(255 * share):02x}" for share in colorsys.hls_to_rgb(hue, lightness, 0.8))


def css_variables() -> str:
    """The page's colours as CSS: --ink, --soft, ..., --positional, ..., and --l0 for the states of learned
    gates."""
    roles = {
        "none" if role == "no role" else role.split()[0]: colour for role, colour in ROLE_COLOURS.items()
    }
    colours = {
        **PAPER,
        **HEAT,
        "ink": INK,
        "soft": SOFT,
        "rule": RULE,
        "on": ON_MARK,
        **roles,
        "other": OLIVE,
        "l0": LOOKS["l0"].colour,
    }
    return ":root {\n" + "".join(f"  --{name}: {colour.css};\n" for name, colour in colours.items()) + "}"


def page_looks(curves: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The look of every curve, by name, as the page's script needs it: colour, dashes and marker."""
    looks = {str(each["name"]): look_of(each["method"], bool(each.get("trained"))) for each in curves}
    return {
        name: {
            "colour": look.colour.css,
            "dash": " ".join(f"{length:g}" for length in look.dash) or "none",
            "marker": look.marker,
        }
        for name, look in looks.items()
    }
