"""One sample of xi serves all sites and passes of a training step; gates that no pass asks for are an error,
not a silent shutdown."""

import copy

import pytest
import torch

from headgates.gates import HardConcrete, attach, detach
from headgates.gates.hard_concrete import sample_gate


@pytest.fixture
def bank(model):
    return attach(model.train(), log_alpha=0.0)


def asked(bank):
    """The xi that each site's gate answers."""
    return torch.cat([gate() for _, gate in bank.items()])


def test_every_pass_of_a_step_uses_one_sample_and_the_next_step_another(model, batch, bank):
    bank.sample()
    sampled, first = asked(bank), model(*batch)
    assert torch.equal(asked(bank), sampled)  # a pass keeps the sample that was made for it
    assert torch.equal(model.output(model.decode(*model.encode(batch[0]), batch[1])), first)
    first.sum().backward()
    second = model(*batch)
    assert not torch.allclose(second, first)
    second.sum().backward()  # a graph of its own
    assert all(gate.samples == 2 for _, gate in bank.items())


def test_the_sites_sample_in_the_bank_s_order_and_nothing_else_is_random(model, batch, bank):
    torch.manual_seed(5)
    bank.sample()
    state = torch.get_rng_state()
    torch.manual_seed(5)
    expected = [
        sample_gate(torch.zeros(site.heads), torch.rand(site.heads), beta=0.33, gamma=-0.1, zeta=1.1)
        for site in bank.sites
    ]
    assert torch.equal(asked(bank), torch.cat(expected))
    model(*batch)
    model.eval()
    assert torch.equal(model(*batch), model(*batch))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_gradient_through_xi_is_that_of_the_same_numbers_as_masks(model, batch, bank):
    torch.manual_seed(5)
    bank.sample()
    sampled = {site: gate().detach() for site, gate in bank.items()}
    model(*batch).square().sum().backward()
    got = [gate.log_alpha.grad for _, gate in bank.items()]
    detach(model)
    xi = {site: row.requires_grad_() for site, row in sampled.items()}
    attach(model, gate="mask").assign(xi)
    to_xi = torch.autograd.grad(model(*batch).square().sum(), list(xi.values()))
    torch.manual_seed(5)
    for gradient, through in zip(got, to_xi, strict=True):
        log_alpha = torch.zeros(len(gradient), requires_grad=True)
        sample_gate(log_alpha, torch.rand(len(gradient)), beta=0.33, gamma=-0.1, zeta=1.1).backward(through)
        torch.testing.assert_close(gradient, log_alpha.grad)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_pass_without_gradient_leaves_a_sample_that_learns(model, batch, bank, mode):
    with mode():
        model(*batch)
    model(*batch).sum().backward()
    assert all(gate.log_alpha.grad is not None for _, gate in bank.items())


def test_frozen_gates_keep_their_noise(model, batch, bank):
    bank.requires_grad_(False)
    assert not torch.allclose(model(*batch), model(*batch))


def test_a_copy_made_in_the_middle_of_a_step_samples_for_itself(model, batch, bank):
    first = model(*batch)
    other = copy.deepcopy(model)
    assert not torch.allclose(other(*batch), first)
    assert torch.equal(model(*batch), first)


def test_gates_without_a_bank_sample_alone():
    gate = HardConcrete(7, log_alpha=0.0).train()
    first = gate()
    assert torch.equal(gate(), first)
    first.sum().backward()
    assert not torch.equal(gate(), first)


@pytest.mark.parametrize(
    ("gate", "options"), [("l0", {"log_alpha": 0.0}), ("subset", {"target_heads": 5, "anneal_steps": 7})]
)
def test_more_of_a_step_samples_the_same_after_the_same_seed_and_counts_as_one(model, gate, options):
    bank = attach(model.train(), gate=gate, **options)
    bank.sample()
    found = []
    for again in (False, True):
        torch.manual_seed(11)
        bank.sample(again=again)
        found.append((asked(bank).tolist(), [getattr(each, "temperature", 0) for _, each in bank.items()]))
    assert found[0] == found[1]
    assert {each.samples for _, each in bank.items()} == {2}


# ---------------------------------------------------------------- gates that nobody asks


def test_gates_that_no_pass_asks_are_named_after_twenty_steps(model, batch, bank):
    # as a forward that never reads its slot
    object.__setattr__(model.decoder.layers[1].cross_attention, "gate", None)
    for _ in range(21):
        bank.penalty()  # LayerDrop, too, leaves some out for a step or two
        model(*batch).sum().backward()
    with pytest.raises(
        ValueError,
        match=r"has not reached the gates of decoder\.1\.cross in 20 steps.*kinds=.*mode='hook'",
    ):
        bank.penalty()


def encode_only(model, batch, bank):
    model(*batch).sum().backward()  # the others were asked once
    for _ in range(3):
        model.encode(batch[0])[0].sum().backward()


def penalty_first(model, batch, bank):
    for _ in range(3):
        bank.sample()
        (bank.penalty() + model(*batch).sum()).backward()


def frozen_unused_gates(model, batch, bank):
    for site, gate in bank.items():
        gate.requires_grad_(site.kind == "enc-self")
    for _ in range(3):
        model.encode(batch[0])[0].sum().backward()


def binarised(model, batch, bank):
    bank.binarise()
    for _ in range(3):
        bank.sample()


def evaluation(model, batch, bank):
    bank.sample()
    bank.sample()
    model.eval()


@pytest.mark.parametrize("use", [encode_only, penalty_first, frozen_unused_gates, binarised, evaluation])
def test_what_people_may_do_has_a_penalty(model, batch, bank, use):
    use(model, batch, bank)
    assert 0 <= bank.penalty().item() <= 18
