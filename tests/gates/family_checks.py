"""What works for a family of models: each check asserts it against an independent computation and returns the
words of its table cell."""

import contextlib
import copy
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from headgates.gates import (
    HeadMap,
    attach,
    detach,
    find_sites,
    heads_left,
    load_pruned,
    remove,
    save_pruned,
)
from headgates.gates.depth import drop_layers
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import group_of
from tests.worlds.families import LAYERS, LENGTH, Family

SHAPES = (2, LENGTH)  # sentences of LENGTH positions: B < L and B = L
NONE = "–"
# the last weight of a feed-forward layer, by its path, and what else has such a name
LAST_WEIGHT = re.compile(
    r"\.(fc2|wo|down_proj|output\.dense|lin2|c_proj|dense_4h_to_h|linear2|Wo|ffn_output|fc_out|output_dense|outer|feed_forward\.output)$"
)
NO_NEURONS = re.compile(r"attn|[aA]ttention|experts|\bhead\b|classifier")
# by which torch.export refuses a forward: Longformer's asks which tokens are global
UNTRACED = (TypeError, AttributeError, GuardOnDataDependentSymNode)
GENERATION = dict(max_new_tokens=6, min_new_tokens=6, num_beams=2, do_sample=False, use_cache=True)
Xi = dict[str, Tensor]


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def some_xi(family: Family, *shape: int) -> Xi:
    """xi (H,) or (B, H) for every site, a third of them exactly 0."""
    generator = torch.Generator().manual_seed(1)
    xi = {site: torch.rand(*shape, family.heads, generator=generator) for site in family.outs}
    for row in xi.values():
        row.view(-1)[::3] = 0.0
    return xi


def gated(family: Family, model: nn.Module, batch: dict[str, Tensor], xi: Xi | HeadMap) -> Tensor:
    """The output with masks on all heads, which are taken off again."""
    attach(model, gate="mask").assign({site: xi[site.name] for site in find_sites(model)})
    try:
        return family.output(model, batch)
    finally:
        detach(model)


def groups(model: nn.Module) -> int:
    module = next(iter(find_sites(model).values()))
    return group_of(module, rule_of(module))


def closing(model: nn.Module, closes: Callable[[int, int, int], bool]) -> HeadMap:
    """True where closes(number of the site, layer, head); heads that share a key head have one number."""
    group = groups(model)
    return HeadMap(
        {
            site: torch.tensor([closes(n, site.layer, h // group) for h in range(site.heads)])
            for n, site in enumerate(find_sites(model))
        }
    )


def uneven(model: nn.Module) -> HeadMap:
    """Other heads and another number of them in each layer, one key head at least left in each."""
    return closing(
        model, lambda number, layer, head: head == number % 3 or (layer == 1 and head == (number + 1) % 3)
    )


def opened(closed: HeadMap) -> HeadMap:
    return closed.map(lambda row: (~row).double())


def generated(family: Family, model: nn.Module) -> Tensor:
    from transformers import GenerationMixin  # Whisper's own generate is for speech in windows

    inputs = {name: tensor for name, tensor in family.batch(2).items() if not name.startswith("decoder")}
    return GenerationMixin.generate(model, **inputs, **GENERATION)


def trace(model: nn.Module) -> list[object]:
    """All that attaching might leave on a module."""
    return [
        (
            path,
            type(module),
            [len(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks")],
            sorted(vars(module)),
        )
        for path, module in model.named_modules()
    ]


# ---------------------------------------------------------------- one a column


def sites(family: Family) -> str:
    found = find_sites(family.model())
    assert {site.name for site in found} == set(family.outs)
    assert all(site.heads == family.heads for site in found)
    return ", ".join(dict.fromkeys(site.kind for site in found))


def held_by(family: Family) -> str:
    """xi = 1 is the bare model, to the bit; xi (H,) is scaled columns of W_O; nothing is left behind."""
    model, xi = family.model(), some_xi(family)
    ones = {site: torch.ones(family.heads) for site in xi}
    state, before = copy.deepcopy(model.state_dict()), trace(model)
    for sentences in SHAPES:
        batch = family.batch(sentences)
        plain, expected = family.output(model, batch), family.explicitly(model, batch, xi)
        assert torch.equal(gated(family, model, batch, ones), plain)
        close(gated(family, model, batch, xi), expected)
        assert (expected - plain).abs().max() > 0.01  # the gates matter
        assert torch.equal(family.output(model, batch), plain)
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], tensor) for name, tensor in state.items())
    assert trace(model) == before
    return mode_of(model)


def mode_of(model: nn.Module) -> str:
    return ", ".join(dict.fromkeys(rule_of(module).mode for module in find_sites(model).values()))


def gates_by_sentence(family: Family) -> str:
    model = family.model()
    for sentences in SHAPES:
        batch, xi = family.batch(sentences), some_xi(family, sentences)
        if "weight" in mode_of(model) or family.windows:
            with pytest.raises(ValueError, match=r"[Rr]un the (sentences|images) one at a time"):
                gated(family, model, batch, xi)
        else:
            close(gated(family, model, batch, xi), family.explicitly(model, batch, xi))
    return "one at a time" if "weight" in mode_of(model) or family.windows else "yes"


def importance(family: Family) -> str:
    """d loss / d xi at xi = 1, through the gates, is that through the scaled columns of W_O; learned gates
    all get a gradient."""
    model, batch = family.model(), family.batch(2)
    ones = {site: torch.ones(family.heads, requires_grad=True) for site in family.outs}
    outputs = gated(family, model, batch, ones), family.explicitly(model, batch, ones)
    slope = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(5))
    got, expected = (torch.autograd.grad(output, list(ones.values()), slope) for output in outputs)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    bank = attach(model.train(), log_alpha=0.0, beta=5.0)  # so warm that no sample is clipped to 0 or 1
    (family.output(model, batch) * slope).sum().backward()
    assert all((gate.log_alpha.grad != 0).all() for _, gate in bank.items())
    return "yes"


def heads_removed(family: Family) -> str:
    """The model without heads is the masked model: uneven, in two steps, all heads of a layer, and in its
    copies."""
    model, batch = family.model(), family.batch(2)
    if family.refuses:
        with pytest.raises(ValueError, match=family.refuses):
            remove(model, uneven(model))
        return "no"
    closed, steps, unpruned = uneven(model), copy.deepcopy(model), copy.deepcopy(model)
    expected = gated(family, model, batch, opened(closed))
    numbers = sum(parameter.numel() for parameter in model.parameters())
    removed = remove(model, closed)
    assert len({site.heads for site in find_sites(model)}) > 1
    assert removed.heads == closed
    assert removed.parameters == numbers - sum(parameter.numel() for parameter in model.parameters()) > 0
    for each in (model, copy.deepcopy(model)):
        close(family.output(each, batch), expected)
    remove(steps, closing(steps, lambda number, layer, head: head == number % 3))
    remove(steps, closed, original=True)
    assert heads_left(steps) == heads_left(model) == ~closed
    assert torch.equal(family.output(steps, batch), family.output(model, batch))
    layer = closing(unpruned, lambda number, layer, head: layer == 0)
    expected = gated(family, unpruned, batch, opened(layer))
    remove(unpruned, layer)
    close(family.output(unpruned, batch), expected)
    return "by key head" if groups(model) > 1 else "yes"


def readme_lines(family: Family) -> str:
    """README.md's lines, as typed, where the gates close a whole layer and some heads elsewhere."""
    model, batch = family.model().train(), family.batch(2)
    bank = attach(model, gate="l0")
    optimizer = torch.optim.AdamW(bank.param_groups(lr=3e-5))
    loss = family.output(model, batch).square().mean()
    loss = loss + 0.01 * bank.penalty()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for site, gate in bank.items():
            gate.log_alpha[:] = -9.0 if site.layer == 1 else 9.0
            gate.log_alpha[1] = -9.0
    expected = family.output(model.eval(), batch)
    zero_heads = rule_of(next(iter(find_sites(model).values()))).zero_heads
    with contextlib.nullcontext() if zero_heads else pytest.warns(UserWarning, match="a head stays at"):
        remove(model, bank)
    close(family.output(model, batch), expected)
    return "yes"


def generates(family: Family) -> str:
    if not family.generates:
        return NONE
    model = family.model()
    closed = uneven(model)
    attach(model, gate="mask", xi=opened(closed))
    expected = generated(family, model)
    remove(model, closed)
    assert torch.equal(generated(family, model), expected)
    return "yes"


def reloaded(family: Family, closes: Callable[[nn.Module], HeadMap]) -> nn.Module | None:
    """A pruned model comes back from its folder; the same by `from_pretrained` alone, None where it
    refuses and says how to load the folder."""
    model, batch = family.model(), family.batch(2)
    remove(model, closes(model))
    theirs = None
    with tempfile.TemporaryDirectory() as folder:
        path = save_pruned(model, Path(folder) / "pruned")
        again = load_pruned(path, model=None if family.library == "transformers" else family.build())
        if family.library == "transformers":
            if "transformers_weights" in (path / "config.json").read_text():
                with pytest.raises(ValueError, match=r"load it with headgates\.load_pruned"):
                    type(model).from_pretrained(path)
            else:
                theirs = type(model).from_pretrained(path)
    assert type(again) is type(model)
    assert heads_left(again) == heads_left(model)
    for each in (again, theirs) if theirs is not None else (again,):
        # equal weights that lie elsewhere in memory may be summed in another order
        torch.testing.assert_close(
            family.output(each, batch), family.output(model, batch), rtol=1e-5, atol=1e-5
        )
        if family.generates:
            assert torch.equal(generated(family, each), generated(family, model))
    return theirs


def saved(family: Family) -> str:
    reloaded(family, uneven)
    return "yes" if family.library == "transformers" else "with `model=`"


def even_by_transformers(family: Family) -> str:
    """With the same heads left in every layer, `from_pretrained` alone reads the folder where the config can
    hold a head's width."""
    if family.library != "transformers":
        return NONE
    theirs = reloaded(family, lambda model: closing(model, lambda number, layer, head: head == 1))
    return "no" if theirs is None else "yes"


def neurons(family: Family) -> str:
    """A gate at 0, zeroed columns of the last weight and removal give the same, others in each layer."""
    model, batch = family.model(), family.batch(2)
    own = [
        path for path, _ in model.named_modules() if LAST_WEIGHT.search(path) and not NO_NEURONS.search(path)
    ]
    found = find_sites(model, "ffn")
    assert len(found) == len(own)
    if not found:
        with pytest.raises(ValueError, match="no heads of the kinds") as error:
            attach(model, kinds="ffn")
        return "no" if "Experts are left alone" in str(error.value) else NONE
    closed = HeadMap({site: torch.arange(site.heads) % 3 == n % 3 for n, site in enumerate(found)})
    zeroed = copy.deepcopy(model)
    with torch.no_grad():
        for path, row in zip(own, closed.values(), strict=True):
            last: Any = zeroed.get_submodule(path)
            (last.weight if hasattr(last, "nf") else last.weight.T)[row] = 0  # Conv1D's is (inputs, outputs)
    expected = family.output(zeroed, batch)
    assert (expected - family.output(model, batch)).abs().max() > 1e-3
    attach(model, gate="mask", kinds="ffn", xi=opened(closed))
    close(family.output(model, batch), expected)
    removed = remove(model, closed)
    close(family.output(model, batch), expected)
    assert removed.parameters > closed.count()
    return "yes"


def layers_dropped(family: Family) -> str:
    """The model without the first layer of each stack is the one whose first layers give what they get; else
    that without the last."""
    inside = {name: path for name, path in family.outs.items() if re.search(r"\.\d+\.", path)}
    lists = {name.rsplit(".", 2)[0]: re.split(r"\.\d+\.", path)[0] for name, path in inside.items()}
    for number, word in ((0, "yes"), (LAYERS - 1, "but the first")):
        model, whole, batch = family.model(), family.model(), family.batch(2)
        for path in lists.values():
            passes_on(whole.get_submodule(f"{path}.{number}"))
        try:
            drop_layers(model, {stack: [number] for stack in lists}, inputs=((), batch))
        except ValueError:
            continue
        assert all(len(model.get_submodule(path)) == LAYERS - 1 for path in lists.values())
        close(family.output(model, batch), family.output(whole, batch))
        if family.generates:
            assert torch.equal(generated(family, model), generated(family, whole))
        return word
    return "no"


def passes_on(layer: Any) -> None:
    """Make a layer give its input in the place of its output."""
    forward = layer.forward

    def passed(*args: Any, **options: Any) -> Any:
        x, output = args[0] if args else options["hidden_states"], forward(*args, **options)
        return x if isinstance(output, Tensor) else (x, *output[1:])

    layer.forward = passed


def without_cache(family: Family) -> dict[str, object]:
    return {**family.batch(2), **({"use_cache": False} if family.generates else {})}


def exports(family: Family) -> str:
    """torch.export takes the model without its heads, unless it does not take the unpruned one."""
    model, batch = family.model(), without_cache(family)
    remove(model, uneven(model))

    def exported(model: nn.Module) -> torch.export.ExportedProgram:
        return torch.export.export(model.requires_grad_(False), (), batch, strict=False)

    try:
        program = exported(model)
    except UNTRACED:
        with pytest.raises(UNTRACED):
            exported(family.model())
        return "no"
    close(family.output(program.module(), batch), family.output(model, batch))
    return "yes"


def compiles(family: Family) -> str:
    """torch.compile takes a model without some heads and with gates on those that are left, which learn as
    without it."""
    model, batch = family.model(), without_cache(family)
    remove(model, uneven(model))
    bank = attach(model, log_alpha=0.5, beta=5.0)
    # traced and guarded as for any backend, without generating code
    compiled = torch.compile(model, backend="eager")
    gradients = []
    try:
        close(family.output(compiled, batch), family.output(model, batch))
        model.train()
        for runner in (model, compiled):
            torch.manual_seed(7)
            bank.zero_grad()
            (family.output(runner, batch).square().mean() + 0.01 * bank.penalty()).backward()
            gradients.append([gate.log_alpha.grad.clone() for _, gate in bank.items()])
    finally:
        torch.compiler.reset()
    torch.testing.assert_close(*gradients)
    return "yes"


def attention_weights(family: Family) -> str:
    """Asked of a kernel that keeps none, they are refused with the cure; after it they come."""
    if family.library != "transformers":
        return NONE
    model, batch = family.model(), family.batch(2)
    attach(model, gate="mask")
    kernels = model._can_set_attn_implementation()
    if model.config._attn_implementation != "eager" and kernels:
        with pytest.raises(ValueError, match=r"'sdpa' keeps no weights.*set_attn_implementation\('eager'\)"):
            model(**batch, output_attentions=True)
        model.set_attn_implementation("eager")
    result = model(**batch, output_attentions=True)
    result = result.text_model_output if "text_model_output" in result else result
    weights = result.encoder_attentions if "encoder_attentions" in result else result.attentions
    assert all(family.heads in layer.shape[1:3] for layer in weights)  # after the blocks, where it has any
    return "eager" if kernels else "yes"


def without_heads(check: Callable[[Family], str]) -> Callable[[Family], str]:
    """The check, of families whose heads can be removed."""
    return lambda family: NONE if family.refuses else check(family)


COLUMNS: dict[str, Callable[[Family], str]] = {
    "sites": sites,
    "held by": held_by,
    "gates by sentence": gates_by_sentence,
    "learned gates, importance": importance,
    "the README's lines": without_heads(readme_lines),
    "attention weights": attention_weights,
    "heads removed, uneven": heads_removed,
    "generates as masked": without_heads(generates),
    "saved, loaded": without_heads(saved),
    "even: `from_pretrained`": without_heads(even_by_transformers),
    "neurons": neurons,
    "layers dropped": layers_dropped,
    "torch.export": without_heads(exports),
    "torch.compile": without_heads(compiles),
}
