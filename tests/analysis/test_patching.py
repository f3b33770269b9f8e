"""Patching against a forward pass written out by hand, and where the path is planted."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headgates.analysis.batches import sites_of
from headgates.analysis.interactions import closing
from headgates.analysis.patching import Patching
from headgates.configs.schema import ModelConfig
from headgates.data.batch import collate
from headgates.gates import HeadMap, HeadSite, attach
from headgates.models.transformer import Transformer
from tests.worlds.families import BY_NAME
from tests.worlds.planted import HEADS, ID, planted_model, target_id
from tests.worlds.small_model import stirred

PAIRS = [([7, 5, 11, 4, 9], [5, 7, 18]), ([8, 6, 22], [18, 4, 9, 11, 6])]
OTHERS = [([7, 5, 13, 4, 9], [5, 7, 18]), ([8, 15, 22], [18, 4, 9, 11, 6])]
NORMS = [{"norm": "pre"}, {"norm": "post"}, {"norm": "post", "decoder_norm": "pre", "final_norm": "decoder"}]


def logits(model, batch) -> Tensor:
    return model(batch.source, batch.target_in)


def small(**settings) -> Transformer:
    torch.manual_seed(3)
    sizes = {"d_model": 15, "ffn": 7, "heads": 3, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.2}
    config = ModelConfig(**sizes, embeddings="separate", **settings)
    return stirred(Transformer(config, 23, 19), 0.3).double()


def by_hand(model, batch, output: Callable = lambda name, z: z, part: Callable = lambda name, part, x: x):
    """The logits, step by step. output (site, z (B, H, L, K)) and part (site, "q", x (B, H, L, K)) may change
    what they are given."""

    def attend(name, attention, x, memory, mask):
        def heads(y):
            return torch.stack(y.chunk(attention.heads, -1), 1)

        names = zip("qkv", (x, memory, memory), strict=True)
        q, k, v = (part(name, p, heads(getattr(attention, f"{p}_proj")(y))) for p, y in names)
        scores = torch.einsum("bhik,bhjk->bhij", q, k) / math.sqrt(q.shape[-1])
        z = output(name, (scores + mask).softmax(-1) @ v)
        columns = attention.out_proj.weight.chunk(attention.heads, 1)
        return sum(z[:, head] @ own.T for head, own in enumerate(columns)) + attention.out_proj.bias

    def added(residual, x, f):
        return x + f(residual.norm(x)) if residual.pre else residual.norm(x + f(x))

    def feed(layer):
        return lambda x: F.linear(
            F.relu(F.linear(x, layer.inner.weight, layer.inner.bias)), layer.outer.weight, layer.outer.bias
        )

    padding = torch.where(batch.source == 0, -torch.inf, 0.0).double()[:, None, None]
    x = model.embed(batch.source, "source")
    for i, layer in enumerate(model.encoder.layers):
        name = f"encoder.{i}.enc-self"
        x = added(
            layer.self_residual,
            x,
            lambda h, layer=layer, name=name: attend(name, layer.self_attention, h, h, padding),
        )
        x = added(layer.feed_residual, x, feed(layer.feed_forward))
    memory, y = model.encoder.norm(x), model.embed(batch.target_in, "target")
    length = y.shape[1]
    causal = torch.full((length, length), -torch.inf, dtype=torch.float64).triu(1)
    for i, layer in enumerate(model.decoder.layers):
        y = added(
            layer.self_residual,
            y,
            lambda h, layer=layer, i=i: attend(f"decoder.{i}.dec-self", layer.self_attention, h, h, causal),
        )
        y = added(
            layer.cross_residual,
            y,
            lambda h, layer=layer, i=i: attend(
                f"decoder.{i}.cross", layer.cross_attention, h, memory, padding
            ),
        )
        y = added(layer.feed_residual, y, feed(layer.feed_forward))
    return model.output(model.decoder.norm(y))


def outputs_by_hand(model, batch) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def keep(name, z):
        found[name] = z
        return z

    by_hand(model, batch, keep)
    return found


def both() -> tuple:
    return collate(PAIRS, [0, 1], 1), collate(OTHERS, [0, 1], 1)


def every(model, chosen: bool = True) -> HeadMap:
    return HeadMap({site: [chosen] * site.heads for site in sites_of(model, None)})


def places(model) -> list:
    return [(site, head) for site in sites_of(model, None) for head in range(site.heads)]


@torch.no_grad()
@pytest.mark.parametrize("settings", NORMS)
def test_an_activation_patch_is_the_forward_pass_with_that_output_exchanged(settings):
    model, (batch, other) = small(**settings), both()
    patching, theirs = Patching(model, batch, other, logits), outputs_by_hand(model, other)
    torch.testing.assert_close(patching.clean, by_hand(model, batch))
    torch.testing.assert_close(patching.corrupted, by_hand(model, other))
    moved = 0.0
    for site, head in places(model):

        def exchange(name, z, site=site, head=head):
            z = z.clone()
            if name == site.name:
                z[:, head] = theirs[name][:, head]
            return z

        found = patching.activation(closing([(site, head)]))
        torch.testing.assert_close(found, by_hand(model, batch, exchange))
        moved = max(moved, float((found - patching.clean).abs().max()))
    assert moved > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("settings", NORMS)
def test_a_path_is_the_forward_pass_with_all_other_heads_as_they_were(settings):
    model, (batch, other) = small(**settings), both()
    patching = Patching(model, batch, other, logits)
    ours, theirs = outputs_by_hand(model, batch), outputs_by_hand(model, other)
    torch.testing.assert_close(patching.path(every(model, False)), patching.clean)
    for site, head in places(model):
        parts: dict = {}

        def frozen(name, z, site=site, head=head):
            z = ours[name].clone()
            if name == site.name:
                z[:, head] = theirs[name][:, head]
            return z

        def keep(name, part, x, parts=parts):
            parts[name, part] = x
            return x

        direct = by_hand(model, batch, frozen, keep)
        senders = closing([(site, head)])
        torch.testing.assert_close(patching.path(senders), direct)
        if site.stack == "encoder":  # only through the heads of cross-attention
            torch.testing.assert_close(direct, patching.clean)
        for receiver, part in product(places(model)[head::5], "qkv"):

            def received(name, own, x, receiver=receiver, part=part, parts=parts):
                x = x.clone()
                if (name, own) == (receiver[0].name, part):
                    x[:, receiver[1]] = parts[name, own][:, receiver[1]]
                return x

            found = patching.path(senders, into={part: closing([receiver])})
            torch.testing.assert_close(found, by_hand(model, batch, part=received))


def test_patching_everything_gives_the_corrupted_run_and_nothing_the_clean_one():
    model, (batch, other) = small(norm="post"), both()
    patching = Patching(model, batch, other, logits)
    assert (patching.clean - patching.corrupted).abs().max() > 0.1
    torch.testing.assert_close(patching.activation(every(model)), patching.corrupted)
    torch.testing.assert_close(patching.path(every(model)), patching.corrupted)
    torch.testing.assert_close(patching.activation(every(model, False)), patching.clean)
    into = dict.fromkeys("qkv", every(model))
    torch.testing.assert_close(patching.path(every(model, False), into=into), patching.clean)
    assert not any(module.training for module in model.modules())
    assert torch.equal(logits(model, batch), patching.clean), "no hook stays"


@pytest.mark.parametrize("name", ["BART", "T5", "GPT-2", "Llama", "BERT"])
def test_all_heads_of_other_libraries_models_carry_all_but_the_word_itself(name):
    model = BY_NAME[name].model()
    torch.manual_seed(1)
    ids = torch.randint(3, 31, (2, 7))
    others = torch.cat([(ids[:, :1] - 2) % 28 + 3, ids[:, 1:]], 1)
    named = {"labels": torch.randint(3, 31, (2, 5))} if name in ("BART", "T5") else {}

    def value(model, batch):
        return model(**batch).logits[:, -3:]  # of tokens that are the same

    patching = Patching(model, {"input_ids": ids, **named}, {"input_ids": others, **named}, value)
    assert (patching.clean - patching.corrupted).abs().max() > 1e-4
    assert torch.equal(patching.activation(every(model, False)), patching.clean)
    torch.testing.assert_close(patching.activation(every(model)), patching.corrupted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(patching.path(every(model)), patching.corrupted, atol=1e-5, rtol=1e-4)
    nobody = patching.path(every(model, False), into=dict.fromkeys("qkv", every(model)))
    torch.testing.assert_close(nobody, patching.clean, atol=1e-5, rtol=1e-4)
    last = places(model)[-1]
    if name in ("GPT-2", "Llama", "BERT"):  # a head of the last layer has no way but the direct one
        ends = [patch(closing([last])) for patch in (patching.activation, patching.path)]
        torch.testing.assert_close(*ends)
        assert (ends[0] - patching.clean).abs().max() > 1e-6


def test_the_planted_path_carries_the_contrast_and_no_other_does():
    """The first layer's `previous` head hands the word before on; the aligned head of cross-attention reads
    it by its v and writes it."""
    sentence, other = (f"the {noun} often bites a stone".split() for noun in ("cat", "dog"))
    target = [target_id("PREV", ID["cat"]), target_id("NEXT", ID["bites"])]
    right, wrong = (target_id("PREV", ID[noun]) for noun in ("cat", "dog"))
    batch, corrupted = (
        collate([([ID[word] for word in words], [4] * 4 + target)], [0], 1) for words in (sentence, other)
    )

    def two_passes(model, batch):
        return logits(model, batch)[:, 4, right] - logits(model, batch)[:, 4, wrong]

    def one_pass(model, batch):
        found = logits(model, batch)
        return found[:, 4, right] - found[:, 4, wrong]

    model = planted_model()
    patching = Patching(model, batch, corrupted, one_pass)
    assert patching.clean > 1
    torch.testing.assert_close(patching.corrupted, -patching.clean)
    by_name = {(site.name, head): (site, head) for site, head in places(model)}
    previous, aligned = by_name[HEADS["previous"][0]], by_name[HEADS["aligned"][0]]
    for place in by_name.values():
        found = patching.activation(closing([place]))
        carried = patching.corrupted if place in (previous, aligned) else patching.clean
        torch.testing.assert_close(found, carried, atol=1e-3, rtol=0)
        direct = patching.path(closing([place]))
        torch.testing.assert_close(
            direct, patching.corrupted if place == aligned else patching.clean, atol=1e-3, rtol=0
        )
        for receiver, part in product(by_name.values(), "qkv"):
            found = patching.path(closing([place]), into={part: closing([receiver])})
            on_the_path = (place, receiver, part) == (previous, aligned, "v")
            carried = patching.corrupted if on_the_path else patching.clean
            torch.testing.assert_close(found, carried, atol=1e-3, rtol=0)
    with pytest.raises(ValueError, match="calls the output projection of MultiHeadAttention 2 times"):
        Patching(model, batch, corrupted, two_passes)


def test_a_receiver_in_a_weight_of_q_k_and_v_is_its_own_columns():
    model = BY_NAME["GPT-2"].model()
    first, second = (layer.attn for layer in model.transformer.h)
    ids = torch.randint(3, 31, (2, 7), generator=torch.Generator().manual_seed(5))
    batch, other = {"input_ids": ids}, {"input_ids": ids.flip(1)}
    seen: dict = {}

    def value(model, batch):
        return model(**batch).logits

    def run(batch, **hooks):
        places = {"z0": first.c_proj, "z1": second.c_proj}
        handles = [
            places[name].register_forward_pre_hook(hook) for name, hook in hooks.items() if name in places
        ]
        if "qkv" in hooks:
            handles.append(second.c_attn.register_forward_hook(hooks["qkv"]))
        with torch.no_grad():
            found = value(model.eval(), batch)
        for handle in handles:
            handle.remove()
        return found

    run(other, z0=lambda _, inputs: seen.update(z0=inputs[0]))
    run(batch, z1=lambda _, inputs: seen.update(z1=inputs[0]))
    run(
        batch,
        z0=lambda *_: (seen["z0"],),
        z1=lambda *_: (seen["z1"],),
        qkv=lambda _, __, output: seen.update(qkv=output),
    )
    width = first.c_proj.weight.shape[0]
    columns = slice(2 * width + width // 3, 2 * width + 2 * width // 3)  # the v of head 1 of 3

    def received(_, __, output):
        output = output.clone()
        output[..., columns] = seen["qkv"][..., columns]
        return output

    expected = run(batch, qkv=received)
    sites = list(sites_of(model, None))
    senders, receiver = closing([(sites[0], head) for head in range(3)]), closing([(sites[1], 1)])
    patching = Patching(model, batch, other, value)
    torch.testing.assert_close(patching.path(senders, into={"v": receiver}), expected)
    assert (expected - patching.clean).abs().max() > 1e-6


def test_what_cannot_be_patched_is_refused_in_words():
    model, (batch, other) = small(), both()
    with pytest.raises(ValueError, match="equal lengths"):
        Patching(model, batch, collate([(pair[0][1:], pair[1]) for pair in OTHERS], [0, 1], 1), logits)
    patching = Patching(model, batch, other, logits)
    with pytest.raises(ValueError, match=r"part of a receiver.*'z'"):
        patching.path(every(model), into={"z": every(model)})
    with pytest.raises(ValueError, match=r"no decoder\.7\.cross of 3 heads"):
        patching.activation(HeadMap({HeadSite.at("cross", 7, 3): [True] * 3}))
    attach(model, gate="mask")
    with pytest.raises(ValueError, match=r"0 times.*Detach gates first"):
        Patching(model, batch, other, logits)
    layer = torch.nn.TransformerEncoderLayer(12, 3, 7, batch_first=True)
    encoder, text = (
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        {"src": torch.ones(2, 5, 12)},
    )
    with pytest.raises(ValueError, match="MultiheadAttention 0 times"):
        Patching(encoder, text, text, lambda model, batch: model(**batch))


def test_receivers_that_share_a_key_head_are_named_together():
    model = BY_NAME["Llama"].model()  # two heads to a key head
    site, *_ = sites_of(model, None)
    ids = torch.randint(3, 31, (2, 5))
    patching = Patching(
        model,
        {"input_ids": ids},
        {"input_ids": ids.flip(0)},
        lambda model, batch: model(**batch).logits,
    )
    with pytest.raises(ValueError, match="2 heads share a key head"):
        patching.path(every(model), into={"k": closing([(site, 0)])})
    patching.path(every(model), into={"q": closing([(site, 0)]), "k": closing([(site, 0), (site, 1)])})
