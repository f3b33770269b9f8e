"""remove: closed heads leave the weights, the outputs stay those of the masked model, and steps equal one
cut."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from headgates.gates import HeadMap, HeadSite, attach, detach, find_sites, heads_left, remove, set_heads_left

HEADS, WIDTH, D = 3, 7, 21  # of the small model, which has 2 + 2 layers, so 6 sites
SITES = [("enc-self", 0), ("enc-self", 1), ("dec-self", 0), ("dec-self", 1), ("cross", 0), ("cross", 1)]
few_examples = settings(
    max_examples=17,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
site_masks = st.lists(st.booleans(), min_size=HEADS, max_size=HEADS) | st.just(
    [True] * HEADS
)  # empty layers now and then
masks = st.lists(site_masks, min_size=len(SITES), max_size=len(SITES))


def closing(rows) -> HeadMap:
    """One row for each of SITES."""
    return HeadMap(
        {
            HeadSite.at(*place, len(row)): torch.tensor(row, dtype=torch.bool)
            for place, row in zip(SITES, rows, strict=True)
        }
    )


def masked_logits(model, closed: HeadMap, batch):
    attach(model, gate="mask").assign(closed.map(lambda row: (~row).double()))
    logits = model(*batch)
    detach(model)
    return logits


def close(logits, expected):
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def parameters(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


UNEVEN = closing(
    [[True, False, False], [False] * 3, [True] * 3, [False, True, True], [False, True, False], [True] * 3]
)
ALL = closing([[True] * HEADS] * len(SITES))
NONE = closing([[False] * HEADS] * len(SITES))


def same_state(model, other):
    ours, theirs = model.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert heads_left(model) == heads_left(other)


@pytest.mark.parametrize("closed", [ALL, NONE, UNEVEN], ids=["all", "none", "uneven"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_all_heads_none_and_whole_layers_can_go(make_model, batch, closed, norm):
    model = make_model(norm=norm)
    expected = masked_logits(model, closed, batch)
    remove(model, closed)
    close(model(*batch), expected)
    assert [site.heads for site in find_sites(model)] == [int((~row).sum()) for row in closed.values()]


def test_what_is_left_are_the_rows_and_columns_of_the_target_heads(model):
    before = {site.name: copy.deepcopy(module) for site, module in find_sites(model).items()}
    remove(model, UNEVEN)
    for site, module in find_sites(model).items():
        old, heads = before[site.name], [h for h in range(HEADS) if not UNEVEN[site.name][h]]
        for name in ("q_proj", "k_proj", "v_proj"):
            new, was = getattr(module, name), getattr(old, name)
            assert new.weight.tolist() == [
                was.weight[h * WIDTH + i].tolist() for h in heads for i in range(WIDTH)
            ]
            assert new.bias.tolist() == [was.bias[h * WIDTH + i].item() for h in heads for i in range(WIDTH)]
        assert module.out_proj.weight.T.tolist() == [
            old.out_proj.weight[:, h * WIDTH + i].tolist() for h in heads for i in range(WIDTH)
        ]
        assert torch.equal(module.out_proj.bias, old.out_proj.bias)
        assert (module.q_proj.out_features, module.out_proj.in_features) == (
            len(heads) * WIDTH,
            len(heads) * WIDTH,
        )


def test_the_parameters_that_went_are_counted_exactly(model):
    before = parameters(model)
    removed = remove(model, UNEVEN)
    assert removed.heads == UNEVEN
    assert removed.parameters == UNEVEN.count() * (4 * D * WIDTH + 3 * WIDTH)
    assert before - parameters(model) == removed.parameters


@pytest.mark.parametrize("original", [False, True])
def test_folding_gates_into_W_O_equals_the_soft_gates(model, batch, original):
    bank = attach(model)
    with torch.no_grad():
        for i, (_, gate) in enumerate(bank.items()):
            gate.log_alpha.copy_(torch.tensor([5.0, -5.0 if i % 2 else -1.0, 0.3 * i]))
    soft, xi = model(*batch), bank.values()
    assert ((xi.flat() > 0) & (xi.flat() < 1)).sum() > 5
    detach(model)
    remove(model, xi.map(lambda row: row == 0), fold=xi, original=original)
    close(model(*batch), soft)


def test_folding_where_no_head_goes_keeps_all_heads(model, batch):
    xi = NONE.map(lambda row: torch.tensor([0.5, 1.0, 0.25]))
    attach(model, gate="mask", xi=xi)
    soft = model(*batch)
    detach(model)
    removed = remove(model, HeadMap({}), fold=xi)
    assert (removed.parameters, removed.heads.count()) == (0, 0)
    close(model(*batch), soft)


def test_an_attention_without_heads_computes_nothing(model, batch):
    remove(model, ALL)
    called = []
    for module in find_sites(model).values():
        for part in module.children():
            part.register_forward_hook(lambda part, *_: called.append(part))
    with FlopCounterMode(display=False) as counter:
        model(*batch)
    assert called == []
    counts = {name: sum(flops.values()) for name, flops in counter.get_flop_counts().items()}
    assert sum(flops for name, flops in counts.items() if name.endswith("feed_forward")) > 0
    assert [name for name, flops in counts.items() if name.endswith("attention") and flops] == []


def test_frozen_weights_stay_frozen(model):
    model.requires_grad_(False)
    remove(model, UNEVEN)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_map_of_some_sites_leaves_the_others_alone(model, batch):
    some = UNEVEN.select("cross")
    expected = masked_logits(model, HeadMap({**NONE, **some}), batch)
    assert remove(model, some).heads.count() == 4
    close(model(*batch), expected)


def test_a_model_built_small_is_told_which_heads_are_left(model):
    small = copy.deepcopy(model)
    remove(small, UNEVEN)
    left = heads_left(small)
    assert left == ~UNEVEN
    for module in find_sites(small).values():
        vars(module).pop("heads_left", None)
    assert [site.heads for site in heads_left(small)] == [2, 3, 0, 1, 2, 0]
    set_heads_left(small, left)
    assert heads_left(small) == left
    with pytest.raises(ValueError, match=r"encoder\.0\.enc-self has 2 heads, but 3 of 3 are said to be left"):
        set_heads_left(small, ~NONE)
    with pytest.raises(ValueError, match=r"no attention decoder\.7\.cross"):
        set_heads_left(small, HeadMap({HeadSite.at("cross", 7, 3): torch.ones(3, dtype=torch.bool)}))


HALF = UNEVEN.map(lambda row: row * 0.5 + 0.5)
WRONG = {
    "no HeadMap": ({"encoder.0.enc-self": [True]}, {}, r"closed: expected a HeadMap, got dict"),
    "unknown site": (
        HeadMap({HeadSite.at("cross", 7, 3): [True] * 3}),
        {},
        r"decoder\.7\.cross; did you mean 'decoder\.\d\.cross'\?",
    ),
    "heads": (
        HeadMap({HeadSite.at("cross", 1, 5): [True] * 5}),
        {},
        r"closed has 5 heads for decoder\.1\.cross; the model has 3$",
    ),
    "numbers": (
        HeadMap({**UNEVEN, HeadSite.at("cross", 1, 3): [0.0, 1.0, 1.0]}),
        {},
        r"must hold bools.*decoder\.1\.cross has numbers",
    ),
    "fold of bools": (
        NONE,
        {"fold": ~NONE},
        r"fold must hold gates in \(0, 1\], encoder\.0\.enc-self has bools",
    ),
    "fold of zero": (
        UNEVEN,
        {"fold": NONE.map(lambda row: row * 1.0)},
        r"encoder\.0\.enc-self\.1 has 0\.0; a head whose gate is 0",
    ),
    "fold above one": (
        UNEVEN,
        {"fold": HALF.map(lambda row: row * 3)},
        r"in \(0, 1\] where a head stays, encoder\.0\.enc-self\.1 has 1\.5",
    ),
    "fold of NaN": (UNEVEN, {"fold": HALF.map(lambda row: row * float("nan"))}, r"has nan"),
    "fold of another site": (
        NONE,
        {"fold": HeadMap({HeadSite.at("cross", 2, 3): [0.5] * 3})},
        r"no attention decoder\.2\.cross",
    ),
}


@pytest.mark.parametrize(("closed", "options", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_map_is_named_and_changes_nothing(model, closed, options, message):
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match=message) as error:
        remove(model, closed, **options)
    assert "\n" not in str(error.value)
    same_state(model, before)


def test_gates_are_taken_off_with_the_heads(make_model, batch):
    model, other = make_model(), make_model()
    attach(model, gate="mask", xi=(~UNEVEN).map(lambda row: row.double()))
    expected = model(*batch)
    remove(model, UNEVEN)
    remove(other, UNEVEN)
    same_state(model, other)  # no gates in it
    close(model(*batch), expected)


def test_a_refused_removal_leaves_the_gates_on(model, batch):
    bank = attach(model, log_alpha=0.0)
    before = model(*batch)
    with pytest.raises(ValueError, match="no attention"):
        remove(model, HeadMap({HeadSite.at("cross", 7, 3): [True] * 3}))
    assert model.head_gates is bank
    assert torch.equal(model(*batch), before)


def test_a_model_whose_part_has_gates_says_to_detach_first(model):
    bank = attach(model, kinds=["cross"])
    with pytest.raises(
        ValueError,
        match="already has gates",
    ):
        remove(nn.ModuleDict({"model": model}), bank.closed())


def test_numbers_from_before_a_removal_name_their_option(model):
    remove(model, UNEVEN)
    with pytest.raises(
        ValueError,
        match=r"original=True where heads are numbered as before any removal; the model has 2, of 3 at first",
    ):
        remove(model, UNEVEN)


def test_a_parametrised_weight_says_to_undo_it(model):
    parametrize.register_parametrization(
        model.encoder.layers[0].self_attention.out_proj, "weight", nn.Identity()
    )
    with pytest.raises(ValueError, match="out_proj of MultiHeadAttention has no plain weight; undo"):
        remove(model, UNEVEN)


def test_a_weight_that_two_projections_share_is_refused(model):
    layers = model.encoder.layers
    layers[0].self_attention.q_proj.weight = layers[1].self_attention.q_proj.weight
    with pytest.raises(ValueError, match="two projections share one weight"):
        remove(model, ALL)
