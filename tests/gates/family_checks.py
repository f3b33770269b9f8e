"""What works for a family of models: each check asserts it against an independent computation and returns the
words of its table cell."""

import contextlib
import copy
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headgates.gates import (
    HeadMap,
    HeadSite,
    attach,
    detach,
    find_sites,
    heads_left,
    load_pruned,
    remove,
    save_pruned,
)
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import group_of
from tests.gates.families import LENGTH, Family

SHAPES = (2, LENGTH)  # sentences of LENGTH positions: B < L and B = L
NONE, NEVER = "–", "no"
GENERATION = dict(max_new_tokens=6, min_new_tokens=6, num_beams=2, do_sample=False, use_cache=True)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def some_xi(family: Family, *shape: int) -> dict[str, Tensor]:
    """xi (H,) or (B, H) for every site, a third of them exactly 0."""
    generator = torch.Generator().manual_seed(1)
    xi = {site: torch.rand(*shape, family.heads, generator=generator) for site in family.outs}
    for row in xi.values():
        row.view(-1)[::3] = 0.0
    return xi


def by_site(model: nn.Module, xi: dict[str, Tensor]) -> dict[HeadSite, Tensor]:
    return {site: xi[site.name] for site in find_sites(model)}


def groups(model: nn.Module) -> int:
    module = next(iter(find_sites(model).values()))
    return group_of(module, rule_of(module))


def closing(model: nn.Module, closes: Callable[[int, int, int], bool]) -> HeadMap:
    """True where closes(number of the site, layer, head); heads that share a key head have one number."""
    group, sites = groups(model), find_sites(model)
    return HeadMap(
        {
            site: torch.tensor([closes(n, site.layer, h // group) for h in range(site.heads)])
            for n, site in enumerate(sites)
        }
    )


def uneven(model: nn.Module) -> HeadMap:
    """Other heads and another number of them in each layer, one key head at least left in each."""
    return closing(
        model, lambda number, layer, head: head == number % 3 or (layer == 1 and head == (number + 1) % 3)
    )


def masked(family: Family, model: nn.Module, closed: HeadMap) -> Tensor:
    attach(model, gate="mask", xi=closed.map(lambda row: (~row).double()))
    output = family.output(model, family.batch(2))
    detach(model)
    return output


def generated(family: Family, model: nn.Module) -> Tensor:
    from transformers import GenerationMixin  # Whisper's own generate is for speech in windows

    inputs = {name: tensor for name, tensor in family.batch(2).items() if not name.startswith("decoder")}
    return GenerationMixin.generate(model, **inputs, **GENERATION)


def trace(model: nn.Module) -> dict[str, object]:
    """All that attaching might leave on a module."""
    found: dict[str, object] = {}
    for path, module in model.named_modules():
        found[path] = (
            type(module),
            *(len(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks")),
            sorted(vars(module)),
        )
    return found


# ---------------------------------------------------------------- one a column


def sites(family: Family) -> str:
    model = family.model()
    found = find_sites(model)
    assert {site.name for site in found} == set(family.outs)
    assert all(site.heads == family.heads for site in found)
    return ", ".join(dict.fromkeys(site.kind for site in found))


def held_by(family: Family) -> str:
    """xi = 1 is the bare model, to the bit; xi (H,) is scaled columns of W_O; nothing is left behind."""
    model, xi = family.model(), some_xi(family)
    state, before = {name: tensor.clone() for name, tensor in model.state_dict().items()}, trace(model)
    for sentences in SHAPES:
        batch = family.batch(sentences)
        plain = family.output(model, batch)
        bank = attach(model, gate="mask")
        assert torch.equal(family.output(model, batch), plain)
        bank.assign(by_site(model, xi))
        got = family.output(model, batch)
        detach(model)
        expected = family.explicitly(model, batch, xi)
        close(got, expected)
        assert (expected - plain).abs().max() > 0.01  # the gates matter
        assert torch.equal(family.output(model, batch), plain)
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], tensor) for name, tensor in state.items())
    assert trace(model) == before
    return rule_of(next(iter(find_sites(model).values()))).mode


def gates_by_sentence(family: Family) -> str:
    model = family.model()
    for sentences in SHAPES:
        batch, xi = family.batch(sentences), some_xi(family, sentences)
        attach(model, gate="mask").assign(by_site(model, xi))
        if held_by_weight(model):
            with pytest.raises(ValueError, match=r"Run the sentences one at a time"):
                family.output(model, batch)
            detach(model)
        else:
            got = family.output(model, batch)
            detach(model)
            close(got, family.explicitly(model, batch, xi))
    return "one at a time" if held_by_weight(model) else "yes"


def held_by_weight(model: nn.Module) -> bool:
    return any(rule_of(module).mode == "weight" for module in find_sites(model).values())


def importance(family: Family) -> str:
    """d loss / d xi at xi = 1, through the gates, is that through the scaled columns of W_O; learned gates
    all get a gradient."""
    model, batch = family.model(), family.batch(2)
    ones = {site: torch.ones(family.heads, requires_grad=True) for site in family.outs}
    slope = torch.randn(family.output(model, batch).shape, generator=torch.Generator().manual_seed(5))
    expected = torch.autograd.grad(family.explicitly(model, batch, ones), list(ones.values()), slope)
    attach(model, gate="mask").assign(by_site(model, ones))
    got = torch.autograd.grad(family.output(model, batch), list(ones.values()), slope)
    detach(model)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    bank = attach(model.train(), log_alpha=0.0, beta=5.0)  # so warm that no draw is clipped to 0 or 1
    (family.output(model, batch) * slope).sum().backward()
    for site, gate in bank.items():
        assert gate.log_alpha.grad is not None, site.name
        assert (gate.log_alpha.grad != 0).all(), site.name
    return "yes"


def heads_removed(family: Family) -> str:
    """The model without heads is the masked model: uneven, in two steps, all heads of a layer, and in its
    copies."""
    model, batch = family.model(), family.batch(2)
    closed = uneven(model)
    expected, steps, whole = masked(family, model, closed), copy.deepcopy(model), copy.deepcopy(model)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    removed = remove(model, closed)
    assert len({site.heads for site in find_sites(model)}) > 1
    assert removed.heads == closed
    assert removed.parameters == numbers - sum(parameter.numel() for parameter in model.parameters()) > 0
    close(family.output(model, batch), expected)
    close(family.output(copy.deepcopy(model), batch), expected)
    first = closing(steps, lambda number, layer, head: head == number % 3)
    remove(steps, first)
    remove(steps, closed, original=True)
    assert heads_left(steps) == heads_left(model) == ~closed
    assert torch.equal(family.output(steps, batch), family.output(model, batch))
    layer = closing(whole, lambda number, layer, head: layer == 0)
    expected = masked(family, whole, layer)
    remove(whole, layer)
    close(family.output(whole, batch), expected)
    return "by key head" if groups(model) > 1 else "yes"


def generates(family: Family) -> str:
    if not family.generates:
        return NONE
    model = family.model()
    closed = uneven(model)
    attach(model, gate="mask", xi=closed.map(lambda row: (~row).double()))
    expected = generated(family, model)
    detach(model)
    remove(model, closed)
    assert torch.equal(generated(family, model), expected)
    return "yes"


def saved(family: Family) -> str:
    model, batch = family.model(), family.batch(2)
    remove(model, uneven(model))
    with tempfile.TemporaryDirectory() as folder:
        new = {} if family.library == "transformers" else {"model": family.build()}
        again = load_pruned(save_pruned(model, Path(folder) / "pruned"), **new)
    assert type(again) is type(model)
    assert heads_left(again) == heads_left(model)
    assert torch.equal(family.output(again, batch), family.output(model, batch))
    if family.generates:
        assert torch.equal(generated(family, again), generated(family, model))
    return "with `model=`" if new else "yes"


def even_by_transformers(family: Family) -> str:
    """With the same heads left in every layer, `from_pretrained` alone reads the folder where the config can
    hold a head's width."""
    if family.library != "transformers":
        return NONE
    model, batch = family.model(), family.batch(2)
    remove(model, closing(model, lambda number, layer, head: head == 1))
    with tempfile.TemporaryDirectory() as folder:
        path = save_pruned(model, Path(folder) / "pruned")
        again = load_pruned(path)
        assert heads_left(again) == heads_left(model)
        assert torch.equal(family.output(again, batch), family.output(model, batch))
        theirs = None
        with contextlib.suppress(RuntimeError):  # sizes that do not fit
            theirs = type(model).from_pretrained(path)
        if theirs is not None:
            assert torch.equal(family.output(theirs, batch), family.output(model, batch))
    return NEVER if theirs is None else "yes"


def exports(family: Family) -> str:
    """torch.export takes the model without its heads."""
    model, batch = family.model(), family.batch(2)
    remove(model, uneven(model))
    model.requires_grad_(False)
    options = {"use_cache": False} if family.generates else {}
    program = torch.export.export(model, (), {**batch, **options}, strict=False)
    close(family.output(program.module(), {**batch, **options}), family.output(model, {**batch, **options}))
    return "yes"


@torch.no_grad()
def compiles(family: Family) -> str:
    """torch.compile takes a model without some heads and with gates on those that are left."""
    model, batch = family.model(), {**family.batch(2), **({"use_cache": False} if family.generates else {})}
    remove(model, uneven(model))
    plain = family.output(model, batch)
    attach(
        model,
        gate="mask",
        xi=HeadMap({site: torch.linspace(0.3, 0.7, site.heads) for site in find_sites(model)}),
    )
    compiled = torch.compile(
        model, backend="eager"
    )  # traced and guarded as for any backend, without generating code
    try:
        got, expected = family.output(compiled, batch), family.output(model, batch)
    finally:
        torch.compiler.reset()
    close(got, expected)
    assert (expected - plain).abs().max() > 0.01
    return "yes"


def attention_weights(family: Family) -> str:
    """Asked of a kernel that keeps none, they are refused with the cure; after it they come."""
    if family.library != "transformers":
        return NONE
    model, batch = family.model(), family.batch(2)
    attach(model, gate="mask")
    kernel = model.config._attn_implementation
    if kernel != "eager":
        with pytest.raises(ValueError, match=r"'sdpa' keeps no weights.*set_attn_implementation\('eager'\)"):
            model(**batch, output_attentions=True)
        model.set_attn_implementation("eager")
    result = model(**batch, output_attentions=True)
    weights = result.encoder_attentions if "encoder_attentions" in result else result.attentions
    assert all(layer.shape[1] == family.heads for layer in weights)
    return "eager"


COLUMNS: dict[str, Callable[[Family], str]] = {
    "sites": sites,
    "held by": held_by,
    "gates by sentence": gates_by_sentence,
    "learned gates, importance": importance,
    "attention weights": attention_weights,
    "heads removed, uneven": heads_removed,
    "generates as masked": generates,
    "saved, loaded": saved,
    "even: `from_pretrained`": even_by_transformers,
    "torch.export": exports,
    "torch.compile": compiles,
}
