"""remove: closed heads leave the weights, the outputs stay those of the masked model, and steps equal one
cut."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from headgates.gates import HeadMap, HeadSite, attach, find_sites, heads_left, remove, set_heads_left
from headgates.gates.depth import drop_layers
from tests.gates.family_checks import opened
from tests.worlds.families import BY_NAME

HEADS, WIDTH, D = 3, 7, 21  # of the small model, which has 2 + 2 layers, so 6 sites
SITES = [(kind, layer) for kind in ("enc-self", "dec-self", "cross") for layer in (0, 1)]


def closing(*rows: str) -> HeadMap:
    """One row for each of SITES, x for a head that closes."""
    return HeadMap(
        {
            HeadSite.at(*place, HEADS): torch.tensor([head == "x" for head in row])
            for place, row in zip(SITES, rows, strict=True)
        }
    )


UNEVEN = closing("x..", "...", "xxx", ".xx", ".x.", "xxx")
ALL, NONE = closing(*["xxx"] * 6), closing(*["..."] * 6)


def close(logits, expected):
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("closed", [ALL, NONE, UNEVEN], ids=["all", "none", "uneven"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_all_heads_none_and_whole_layers_can_go_and_the_gates_with_them(make_model, batch, closed, norm):
    model = make_model(norm=norm)
    names = list(model.state_dict())
    attach(model, gate="mask", xi=opened(closed))
    expected = model(*batch)
    remove(model, closed)
    close(model(*batch), expected)
    assert list(model.state_dict()) == names
    assert all(len(each.q_proj.weight) == each.q_proj.out_features for each in find_sites(model).values())
    left = [int((~row).sum()) for row in closed.values()]
    assert [site.heads for site in find_sites(model)] == left
    if any(left):  # a site without heads gets no gate
        assert [site.heads for site in attach(model).sites] == [heads for heads in left if heads]


@pytest.mark.parametrize("original", [False, True])
def test_folding_gates_into_W_O_equals_the_soft_gates(model, batch, original):
    bank = attach(model)
    with torch.no_grad():
        for i, (_, gate) in enumerate(bank.items()):
            gate.log_alpha.copy_(torch.tensor([5.0, -5.0 if i % 2 else -1.0, 0.3 * i]))
    soft, xi = model(*batch), bank.values()
    assert ((xi.flat() > 0) & (xi.flat() < 1)).sum() > 5
    remove(model, xi.map(lambda row: row == 0), fold=xi, original=original)
    close(model(*batch), soft)


def test_frozen_weights_stay_frozen_and_sites_that_a_map_lacks_keep_their_heads(model, batch):
    some = UNEVEN.select("cross")
    attach(model, gate="mask", kinds=["cross"], xi=opened(some))
    expected = model(*batch)
    model.requires_grad_(False)
    assert remove(model, some).heads.count() == 4
    close(model(*batch), expected)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_model_built_small_is_told_which_heads_are_left(model):
    remove(model, UNEVEN)
    left = heads_left(model)
    assert left == ~UNEVEN
    for module in find_sites(model).values():
        vars(module).pop("heads_left", None)
    assert [site.heads for site in heads_left(model)] == [2, 3, 0, 1, 2, 0]
    set_heads_left(model, left)
    assert heads_left(model) == left
    with pytest.raises(ValueError, match=r"encoder\.0\.enc-self has 2 heads, but 3 of 3 are said to be left"):
        set_heads_left(model, ~NONE)
    with pytest.raises(ValueError, match=r"no attention decoder\.7\.cross"):
        set_heads_left(model, HeadMap({HeadSite.at("cross", 7, 3): torch.ones(3, dtype=torch.bool)}))


HALF = UNEVEN.map(lambda row: row * 0.5 + 0.5)
LATER = HeadSite.at("cross", 7, 3)
WRONG = {
    "no HeadMap": ({"encoder.0.enc-self": [True]}, {}, r"closed: expected a HeadMap, got dict"),
    "unknown site": (HeadMap({LATER: [True] * 3}), {}, r"no attention decoder\.7\.cross; did you mean"),
    "heads": (
        HeadMap({HeadSite.at("cross", 1, 5): [True] * 5}),
        {},
        r"closed has 5 heads for decoder\.1\.cross; the model has 3$",
    ),
    "numbers": (HALF, {}, r"must hold bools.*encoder\.0\.enc-self has numbers"),
    "fold of bools": (NONE, {"fold": ~NONE}, r"fold must hold gates in \(0, 1\], encoder\.0\.enc-self has"),
    "fold of zero": (
        UNEVEN,
        {"fold": NONE.map(lambda row: row * 1.0)},
        r"encoder\.0\.enc-self\.1 has 0\.0; a head whose gate is 0",
    ),
    "fold above one": (UNEVEN, {"fold": HALF.map(lambda row: row * 3)}, r"enc-self\.1 has 1\.5"),
    "fold of another site": (NONE, {"fold": HeadMap({LATER: [0.5] * 3})}, r"no attention decoder\.7\.cross"),
}


@pytest.mark.parametrize(("closed", "options", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_map_is_named_and_changes_neither_weights_nor_gates(model, batch, closed, options, message):
    bank = attach(model, log_alpha=0.0)
    before, state = model(*batch), copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        remove(model, closed, **options)
    assert model.head_gates is bank
    assert torch.equal(model(*batch), before)
    assert list(model.state_dict()) == list(state)


def test_numbers_from_before_a_removal_name_their_option(model):
    remove(model, UNEVEN)
    with pytest.raises(
        ValueError,
        match=r"original=True where heads are numbered as before any removal; the model has 2, of 3 at first",
    ):
        remove(model, UNEVEN)


def test_weights_that_are_shared_or_made_of_others_are_refused(model):
    first, second = (layer.self_attention for layer in model.encoder.layers)
    own = first.q_proj.weight
    first.q_proj.weight = second.q_proj.weight
    with pytest.raises(ValueError, match="two projections share one weight"):
        remove(model, ALL)
    first.q_proj.weight = own
    parametrize.register_parametrization(first.out_proj, "weight", nn.Identity())
    with pytest.raises(ValueError, match="out_proj of MultiHeadAttention has no plain weight; undo"):
        remove(model, UNEVEN)


def test_weights_with_scales_beside_them_are_refused(model):
    """Rows would go, and the scales of blocks of them would stay (FP8)."""
    values = model.encoder.layers[0].self_attention.v_proj
    plain = values.weight
    for weight, scales in ((plain.to(torch.float8_e4m3fn), None), (plain, torch.ones(1, 1))):
        values.weight = nn.Parameter(weight.detach(), requires_grad=False)
        values.register_buffer("weight_scale_inv", scales)
        with pytest.raises(ValueError, match="v_proj of MultiHeadAttention has no plain weight; undo"):
            remove(model, UNEVEN)


def test_gates_that_close_half_open_heads_are_said_with_their_number_and_the_largest(model, recwarn):
    bank = attach(model, heads=16)
    with torch.no_grad():
        for site, gate in bank.items():
            if site.kind == "cross":
                gate.log_alpha[1] = -9.0 if site.layer else 0.5
    largest = float(bank.values()["decoder.0.cross"][1])
    copies = [copy.deepcopy(model) for _ in range(2)]
    with pytest.warns(
        UserWarning, match=f"1 of the gates that close are above 0 .* largest at {largest:.2f}"
    ):
        remove(model, bank)
    with pytest.warns(UserWarning, match="1 of the gates that close"):
        remove(copies[0], copies[0].head_gates.closed())
    copies[1].head_gates.binarise()
    recwarn.clear()
    remove(copies[1], copies[1].head_gates)
    assert not [each for each in recwarn if "gates that close" in str(each.message)]


def test_whispers_times_of_words_are_read_from_the_same_heads_after_removal():
    model = BY_NAME["Whisper"].model()
    pairs = [[0, 1], [1, 2], [1, 0]]
    model.generation_config.alignment_heads = pairs
    attentions = [layer.encoder_attn for layer in model.model.decoder.layers]
    values = {tuple(pair): head_values(attentions[pair[0]], pair[1]) for pair in pairs}
    cross = [site for site in find_sites(model) if site.kind == "cross"]
    remove(model, HeadMap(dict(zip(cross, ([True, False, False], [True, False, False]), strict=True))))
    assert model.generation_config.alignment_heads == [[0, 0], [1, 1]]  # and (1, 0) is gone
    assert torch.equal(head_values(attentions[0], 0), values[0, 1])
    assert torch.equal(head_values(attentions[1], 1), values[1, 2])
    drop_layers(model, {"decoder": [0]})
    assert model.generation_config.alignment_heads == [[0, 1]]
    remove(model, HeadMap({HeadSite.at("cross", 0, 2): [False, True]}))
    assert not hasattr(model.generation_config, "alignment_heads")  # transformers then says so


def head_values(attention, head):
    return attention.v_proj.weight.unflatten(0, (attention.num_heads, -1))[head].clone()
