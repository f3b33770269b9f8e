"""Masks that are given: by head, by sentence, by position; a closed gate is a head whose columns of W_O are
zero."""

import copy

import pytest
import torch

from headgates.gates import HeadMask, HeadSite, attach, find_sites, gate_heads
from headgates.models.search import beam_search, greedy_search

HEADS, WIDTH = 3, 7


def without_columns(model, closed: dict[HeadSite, list[int]]):
    """A copy of the model in which the columns of W_O that read the closed heads are zero."""
    other = copy.deepcopy(model)
    for site, module in find_sites(other).items():
        for head in closed.get(site, []):
            module.out_proj.weight.data[:, head * WIDTH : (head + 1) * WIDTH] = 0
    return other


def masks(model, rows: int, length: dict[str, int] | None = None) -> dict[HeadSite, torch.Tensor]:
    """Random 0/1 masks (rows, H) or, with a length a kind, (rows, H, L)."""
    generator = torch.Generator().manual_seed(3)
    return {
        site: torch.randint(
            2, (rows, HEADS, *([length[site.kind]] if length else [])), generator=generator
        ).float()
        for site in find_sites(model)
    }


def test_with_all_heads_closed_attention_gives_the_bias_of_W_O_alone(model, batch):
    outputs = {}
    for site, module in find_sites(model).items():
        module.register_forward_hook(
            lambda module, _, output, site=site: outputs.update({site: (output[0], module.out_proj.bias)})
        )
    attach(model, gate="mask", xi=torch.zeros(HEADS))
    model(*batch)
    assert set(outputs) == set(find_sites(model))
    assert all(torch.equal(output, bias.expand_as(output)) for output, bias in outputs.values())


def test_a_mask_by_sentence_acts_on_sentences_when_there_are_as_many_as_tokens_or_heads(model):
    size = HEADS  # B = S = T = H: an axis taken for another would give no error
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(3, 19, (size, size), generator=generator)
    by_sentence = masks(model, rows=size)
    expected = torch.cat(
        [
            without_columns(
                model, {site: [h for h in range(HEADS) if not xi[b, h]] for site, xi in by_sentence.items()}
            )(source[b : b + 1], source[b : b + 1])
            for b in range(size)
        ]
    )
    attach(model, gate="mask").assign(by_sentence)
    torch.testing.assert_close(model(source, source), expected)


def test_a_mask_by_position_acts_on_the_queries_of_that_position(model, batch):
    site = HeadSite.at("dec-self", 0, HEADS)
    module = find_sites(model)[site]
    xi = torch.randint(2, (3, HEADS, 5), generator=torch.Generator().manual_seed(2)).float()
    bank = attach(model, gate="mask")
    bank.assign({site: xi})
    got = output_of(module, model, batch)
    for b in range(3):
        for t in range(
            5
        ):  # the slow way: one mask for the whole batch, and of its output this position alone
            bank.assign({site: xi[b, :, t]})
            torch.testing.assert_close(got[b, t], output_of(module, model, batch)[b, t])


def output_of(module, model, batch):
    """The output of one attention module in a forward pass of the model."""
    seen = []
    handle = module.register_forward_hook(lambda _, __, output: seen.append(output[0]))
    model(*batch)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("by_position", [False, True], ids=["by sentence", "by position"])
def test_cached_decoding_with_masks_equals_every_sentence_alone(model, batch, by_position):
    source, _ = batch
    length = (
        {"enc-self": source.shape[1], "dec-self": 24, "cross": 24} if by_position else None
    )  # 24: the longest hypothesis
    own = masks(model, rows=3, length=length)
    bank = attach(model, gate="mask")
    alone = []
    for b in range(3):
        bank.assign({site: xi[b : b + 1] for site, xi in own.items()})
        alone.append(
            (greedy_search(model, source[b : b + 1])[0], beam_search(model, source[b : b + 1], beam=3)[0])
        )
    bank.assign(own)
    together = list(zip(greedy_search(model, source), beam_search(model, source, beam=3), strict=True))
    assert [greedy.ids for greedy, _ in together] == [greedy.ids for greedy, _ in alone]
    assert [[one.ids for one in best] for _, best in together] == [
        [one.ids for one in best] for _, best in alone
    ]
    for (_, best), (_, expected) in zip(together, alone, strict=True):
        assert [one.log_prob for one in best] == pytest.approx([one.log_prob for one in expected], rel=1e-4)


def test_cached_decoding_with_position_masks_equals_the_whole_pass(model, batch):
    source, target_in = batch
    own = masks(model, rows=3, length={"enc-self": 7, "dec-self": 5, "cross": 5})
    attach(model, gate="mask").assign(own)
    state = model.start(source)
    steps = torch.stack([model.step(ids, state) for ids in target_in.T], dim=1)
    torch.testing.assert_close(steps, model(source, target_in))


def test_decoding_beyond_a_position_mask_says_how_long_it_must_be(model, batch):
    attach(model, gate="mask", kinds=["dec-self"], xi=torch.ones(3, HEADS, 1))
    state = model.start(batch[0])
    model.step(batch[1][:, 0], state)
    with pytest.raises(ValueError, match="covers 1 positions, position 2 was asked for"):
        model.step(batch[1][:, 1], state)


@pytest.mark.parametrize("shape", [(), (4,), (HEADS, 5), (5, 4, HEADS), (1, 1, HEADS, 1)])
def test_a_mask_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"expected xi of shape .* with H = 3, got"):
        HeadMask(HEADS, torch.ones(shape))


def test_a_mask_by_sentence_has_no_value_a_head():
    with pytest.raises(ValueError, match="differs by sentence"):
        HeadMask(HEADS, torch.ones(5, HEADS)).test_value()


def test_the_gradient_reaches_a_mask_that_asks_for_it(model, batch):
    bank = attach(model, gate="mask")
    xi = {site: torch.ones(3, HEADS, requires_grad=True) for site in bank.sites}
    bank.assign(xi)
    model(*batch).square().sum().backward()
    assert all(row.grad is not None and (row.grad != 0).all() for row in xi.values())


def test_a_mask_goes_to_the_device_of_the_one_before():
    gate = HeadMask(HEADS).to("meta")
    gate.assign(torch.ones(HEADS))
    assert gate.xi.device.type == "meta"


def test_only_a_mask_by_head_is_part_of_the_state_dict():
    gate = HeadMask(HEADS)
    assert set(gate.state_dict()) == {"xi"}
    gate.assign(torch.ones(5, HEADS))
    assert set(gate.state_dict()) == set()
    gate.assign(torch.ones(HEADS))
    assert set(gate.state_dict()) == {"xi"}


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 5, 3)])
def test_gate_heads_multiplies_each_head_s_output(shape):
    z = torch.randn(2, 5, 3, 7, generator=torch.Generator().manual_seed(0))
    xi = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    got = gate_heads(z, xi)
    for b in range(2):
        for h in range(5):
            for t in range(3):
                factor = xi[(h,) if xi.dim() == 1 else (b, h) if xi.dim() == 2 else (b, h, t)]
                assert torch.equal(got[b, h, t], z[b, h, t] * factor)


def test_gating_keeps_the_type_of_the_head_outputs():
    assert gate_heads(torch.ones(2, 5, 3, 7, dtype=torch.bfloat16), torch.ones(5)).dtype == torch.bfloat16
