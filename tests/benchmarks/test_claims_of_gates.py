"""The verdicts on C10 to C18, on points and tables made by hand."""

import pytest

from benchmarks.claims import Findings
from benchmarks.claims_of_gates import GATE_CLAIMS
from benchmarks.records import Lead, Point, Roles, lead_of

JUDGE = {claim.number: claim.judge for claim in GATE_CLAIMS}
KINDS = {"enc-self": 24, "dec-self": 24, "cross": 24}


def point(
    heads: float,
    difference: float,
    *,
    method: str = "l0-target",
    learned: bool = True,
    epochs: int = 3,
    half: float = 0.5,
    **more,
):
    """A point of 72 heads that is 38 BLEU without its difference; half: half of its interval's width."""
    more = {"kinds": KINDS, "total": 72} | more
    return Point(
        method,
        learned,
        epochs,
        heads,
        value=38 + difference,
        difference=difference,
        interval=(difference - half, difference + half),
        **more,
    )


def greedy(
    heads: float, difference: float, *, epochs: int = 3, method: str = "greedy", half: float = 0.5
) -> Point:
    return point(heads, difference, method=method, learned=False, epochs=epochs, half=half)


def encoder(left: int, difference: float, **more) -> Point:
    return point(48 + left, difference, by_kind={"enc-self": left, "dec-self": 24, "cross": 24}, **more)


def kinds(encoder: int, decoder: int, cross: int, **more) -> Point:
    return point(
        encoder + decoder + cross,
        -1.0,
        by_kind={"enc-self": encoder, "dec-self": decoder, "cross": cross},
        **more,
    )


def sites(decoder: list[int], cross: list[int]) -> dict[str, float]:
    of_kind = (("dec-self", decoder), ("cross", cross))
    return {
        f"decoder.{layer}.{kind}": heads for kind, layers in of_kind for layer, heads in enumerate(layers)
    }


def words(number: str, **found) -> str:
    verdict = JUDGE[number](Findings("x", **found))
    assert verdict is not None
    return verdict.summary


def test_what_was_not_run_has_no_verdict():
    assert [JUDGE[claim](Findings("x")) for claim in JUDGE] == [None] * 9


def test_encoder_heads_must_close_to_the_papers_shares():
    both = [encoder(5, -0.1), encoder(2, -0.2)]
    assert words("C10", encoder_only=both) == "holds"
    assert (
        words("C10", encoder_only=[encoder(6, 0.0), *both[1:]]) == "holds in part"
    )  # 18 of 24 are too few for the first, 22 too dear
    assert words("C10", encoder_only=[encoder(5, -0.16), encoder(2, -0.2)]) == "holds in part"
    assert words("C10", encoder_only=[encoder(5, -0.1)]) == "holds in part"
    assert (
        words(
            "C10",
            encoder_only=[
                encoder(5, -0.2),
                encoder(2, -0.3),
                encoder(2, 0.0, learned=False, method="greedy"),
            ],
        )
        == "does not hold here"
    )
    assert JUDGE["C10"](Findings("x", encoder_only=[encoder(5, 0.0, epochs=0)])) is None


def test_half_of_the_heads_and_more_must_close():
    assert words("C11", points=[point(36, -0.25), greedy(18, -0.2)]) == "holds"
    assert (
        words("C11", points=[point(36, -0.2), point(18, -0.3), point(9, -0.1, epochs=0)]) == "holds in part"
    )
    assert words("C11", points=[point(36, -0.3), point(18, -0.9)]) == "does not hold here"
    assert JUDGE["C11"](Findings("x", points=[point(37, 0.0)])) is None


def test_pruned_must_beat_the_same_heads_from_scratch():
    def pair(lead: float) -> tuple[Point, Point]:
        return point(18, -0.2), point(18, -0.2 - lead, method="l0-target-scratch", learned=False)

    assert (
        words("C12", scratch=[pair(1.0), pair(2.0)]) == "holds"
    )  # independent intervals of 0.5 either side are 0.71 together
    assert words("C12", scratch=[pair(1.0), pair(0.1)]) == "holds in part"
    assert words("C12", scratch=[pair(1.0), pair(-0.1)]) == "does not hold here"


def test_the_encoder_closes_first_and_layers_decide_the_rest():
    low, high = [8, 4, 0], [2, 4, 8]
    assert words("C13", points=[kinds(4, 12, 14, by_site=sites(low, high))]) == "holds"
    assert words("C13", points=[kinds(4, 12, 14, by_site=sites(high, high))]) == "holds in part"
    assert words("C13", points=[kinds(14, 12, 4, by_site=sites(low, high[::-1]))]) == "does not hold here"
    assert words("C13", points=[kinds(4, 12, 20)]) == "holds"  # no layers recorded: one condition
    assert words("C13", points=[kinds(4, 12, 20), kinds(20, 12, 4)]) == "does not hold here"
    whole = {"decoder.0.dec-self": 24.0, "decoder.0.cross": 24.0}
    assert len(JUDGE["C13"](Findings("x", points=[kinds(4, 24, 24, by_site=whole)])).conditions) == 1
    assert JUDGE["C13"](Findings("x", points=[greedy(36, 0.0), kinds(24, 24, 24)])) is None


def roles(
    *, rho: float = 0.6, p: float = 0.001, share: float = 0.5, held: tuple[int, ...] = (0,), **tables
) -> Roles:
    """A layer of two encoder heads, the first with `share` of the relevance; held: which of them have a
    role."""
    rows = [
        {"first": "LRP share", "second": "confidence", "kind": kind, "spearman": rho, "p_value": p}
        for kind in ("all", "enc-self")
    ]
    found = [{"site": "encoder.0.enc-self", "layer": 0, "head": head, "family": "syntactic"} for head in held]
    aligned = {
        "site": "encoder.0.enc-self",
        "layer": 0,
        "head": 1,
        "family": "aligned",
    }  # no role of the paper's
    empty: dict = {"nearest": [], "syntax": [], "survival": []}
    shares = {"encoder.0.enc-self": [share, 1 - share]}
    return Roles(**({"roles": [*found, aligned], "correlations": rows, "shares": shares} | empty | tables))


def test_relevant_heads_must_be_confident_and_specialised():
    assert words("C14", roles=roles(share=0.7)) == "holds"
    assert words("C14", roles=roles(share=0.7, p=0.02)) == "holds in part"
    assert words("C14", roles=roles(share=0.7, rho=-0.6)) == "holds in part"
    assert words("C14", roles=roles(share=0.3, p=0.5)) == "does not hold here"
    assert words("C14", roles=roles(held=())) == "holds in part"
    assert JUDGE["C14"](Findings("x", roles=roles(shares={}))) is None


def test_specialised_heads_must_live_longer():
    def survival(difference: float | None, p: float | None) -> Roles:
        row = {
            "kind": "all",
            "within": "kind",
            "runs": 4,
            "specialised": 3,
            "difference": difference,
            "p_value": p,
        }
        row |= {"lifetime_specialised": 2.0 + (difference or 0), "lifetime_others": 2.0}
        return roles(survival=[row | {"within": "layer", "difference": -9.0}, row])

    assert words("C15", roles=survival(1.0, 0.04)) == "holds"
    assert words("C15", roles=survival(1.0, 0.06)) == "holds in part"
    assert words("C15", roles=survival(-1.0, 0.06)) == "does not hold here"
    assert words("C15", roles=survival(None, None)) == "does not hold here"
    assert JUDGE["C15"](Findings("x", roles=roles())) is None


def test_syntax_and_rare_words_are_three_conditions():
    def found(nsubj: str, dobj: str, rare: float, layer: int = 0) -> Roles:
        gain = {"accuracy": 0.6, "baseline": 0.4, "gain_low": 0.1, "gain_high": 0.3}
        syntax = [
            {"label": label, "syntactic": beats} | gain
            for label, beats in (("nsubj", nsubj), ("dobj", dobj), ("amod", "True"))
        ]
        head = {"family": "rare words", "layer": layer, "score": rare, "baseline": 0.1, "needed": 0.5}
        return roles(syntax=syntax, nearest=[head])

    assert words("C16", roles=found("True", "True", 0.5)) == "holds"
    assert words("C16", roles=found("True", "True", 0.9, layer=1)) == "holds in part"
    assert words("C16", roles=found("False", "True", 0.4)) == "holds in part"
    assert words("C16", roles=found("False", "False", 0.4)) == "does not hold here"
    assert JUDGE["C16"](Findings("x", roles=roles())) is None


def test_gates_must_beat_greedy_before_and_after_training():
    alone = [greedy(heads, -9.0, epochs=0) for heads in (36, 18, 9)]
    gates = [point(heads, -0.5) for heads in (36, 18, 9)]
    behind, ahead = [greedy(heads, -2.0, method="greedy-stream") for heads in (36, 18)], [greedy(9, -0.2)]
    assert words("C17", points=[*alone, *gates, *behind, *ahead]) == "holds"  # 2 of 3
    assert words("C17", points=[*alone, *gates, *behind[:1], *ahead]) == "holds in part"  # 1 of 2
    assert words("C17", points=[greedy(9, -0.6, epochs=0), *gates, *ahead]) == "does not hold here"
    assert (
        words("C17", points=[*alone, *gates, *behind, greedy(36, -0.4), greedy(18, -0.4)]) == "holds in part"
    )  # the best greedy counts
    assert (
        JUDGE["C17"](Findings("x", points=[*alone, *gates, greedy(36, -2.0, epochs=6)])) is None
    )  # trained for longer


def test_a_recorded_lead_decides_and_can_be_read_from_either_side():
    gates, scored = point(18, -0.5), greedy(18, -0.6)
    recorded = {("greedy", "l0-target", 3, 18): Lead(-0.1, (-0.15, -0.05), paired=True)}
    assert lead_of(gates, scored, recorded) == Lead(0.1, (0.05, 0.15), paired=True)
    assert lead_of(scored, gates, recorded).interval == (-0.15, -0.05)
    assert words("C17", points=[gates, scored, greedy(18, -9.0, epochs=0)], leads=recorded) == "holds"
    guessed = lead_of(gates, scored, {})
    assert not guessed.paired
    assert guessed.interval == pytest.approx(
        (0.1 - 0.5**0.5, 0.1 + 0.5**0.5)
    )  # half widths 0.5 and 0.5, in squares


def test_exact_gates_must_not_be_behind_either():
    subset, l0, scored = (point(18, -0.5, method="subset"), point(18, -0.6), greedy(18, -0.4))
    assert words("C18", points=[subset, l0, scored]) == "holds"
    assert words("C18", points=[subset, l0, greedy(18, 0.9)]) == "holds in part"
    assert words("C18", points=[subset, point(18, 0.9), greedy(18, 0.9)]) == "does not hold here"
    assert JUDGE["C18"](Findings("x", points=[subset, l0])) is None
