"""Patching against passes whose outputs of heads are exchanged by hooks at paths written out by hand."""

import copy
from itertools import product

import pytest
import torch
from torch import Tensor

from headgates.analysis.batches import sites_of
from headgates.analysis.patching import Patching
from headgates.analysis.without_heads import closing
from headgates.configs.settings import ModelConfig
from headgates.data.batch import collate
from headgates.gates import HeadMap, HeadSite, attach
from headgates.models.transformer import Transformer
from tests.worlds.families import BY_NAME
from tests.worlds.small_model import stirred

PAIRS = [([7, 5, 11, 4, 9], [5, 7, 18]), ([8, 6, 22], [18, 4, 9, 11, 6])]
OTHERS = [([7, 5, 13, 4, 9], [5, 7, 18]), ([8, 15, 22], [18, 4, 9, 11, 6])]
NORMS = [{"norm": "pre"}, {"norm": "post"}, {"norm": "post", "decoder_norm": "pre", "final_norm": "decoder"}]
K = 5  # the width of a head of ours


def logits(model, batch) -> Tensor:
    return model(batch.source, batch.target_in) if hasattr(batch, "source") else model(**batch).logits


def small(**settings) -> Transformer:
    torch.manual_seed(3)
    sizes = {"d_model": 3 * K, "ffn": 7, "heads": 3, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.2}
    return stirred(Transformer(ModelConfig(**sizes, embeddings="separate", **settings), 23, 19), 0.3).double()


@torch.no_grad()
def passed(model, batch, change) -> Tensor:
    """The logits, where change(path, x) stands for what each W_O reads and each projection to q, k or v
    gives."""
    model = copy.deepcopy(model)
    for path, module in model.named_modules():
        if path.endswith(("out_proj", "attn.c_proj")):
            module.register_forward_pre_hook(lambda _, inputs, path=path: (change(path, inputs[0]),))
        elif path.endswith(("q_proj", "k_proj", "v_proj", "c_attn")):
            module.register_forward_hook(lambda _, __, output, path=path: change(path, output))
    return logits(model, batch)


def place(site: HeadSite, head: int, part: str = "out") -> tuple[str, slice]:
    """Where our model has a head's output, q, k or v: the path of the projection, and columns."""
    attention = f"{site.stack}.layers.{site.layer}.{'cross' if site.kind == 'cross' else 'self'}_attention"
    return f"{attention}.{part}_proj", slice(K * head, K * head + K)


def taking(given: dict[str, Tensor], path: str, columns: slice):
    """The change by which these columns are those of `given`."""

    def change(at: str, x: Tensor) -> Tensor:
        x = x.clone()
        if at == path:
            x[..., columns] = given[at][..., columns]
        return x

    return change


def freezing(own: dict[str, Tensor], senders, seen: dict[str, Tensor]):
    """The change by which all heads give what is their own, changed by `senders`; q, k and v go into
    `seen`."""
    return lambda at, x: senders(at, own[at]) if "out_" in at or "c_proj" in at else seen.setdefault(at, x)


def both() -> tuple:
    return collate(PAIRS, [0, 1], 1), collate(OTHERS, [0, 1], 1)


def every(model, chosen: bool = True) -> HeadMap:
    return HeadMap({site: [chosen] * site.heads for site in sites_of(model, None)})


def places(model) -> list:
    return [(site, head) for site in sites_of(model, None) for head in range(site.heads)]


@pytest.mark.parametrize("settings", NORMS)
def test_a_patch_exchanges_that_output_and_a_path_keeps_all_other_heads_as_they_were(settings):
    model, (batch, other) = small(**settings), both()
    patching, ours, theirs, moved = Patching(model, batch, other, logits), {}, {}, 0.0
    passed(model, batch, ours.setdefault)
    passed(model, other, theirs.setdefault)
    for sender in places(model):
        senders, exchange, seen = closing([sender]), taking(theirs, *place(*sender)), {}
        found = patching.activation(senders)
        torch.testing.assert_close(found, passed(model, batch, exchange))
        moved = max(moved, float((found - patching.clean).abs().max()))
        direct = passed(model, batch, freezing(ours, exchange, seen))
        torch.testing.assert_close(patching.path(senders), direct)
        if sender[0].stack == "encoder":  # only through the heads of cross-attention
            torch.testing.assert_close(direct, patching.clean)
        for receiver, part in product(places(model)[sender[1] :: 13], "qkv"):
            found = patching.path(senders, into={part: closing([receiver])})
            expected = passed(model, batch, taking(seen, *place(*receiver, part)))
            torch.testing.assert_close(found, expected)
    assert moved > 1e-2


def test_a_receiver_in_a_weight_of_q_k_and_v_is_its_own_columns():
    model, ours, theirs, seen = BY_NAME["GPT-2"].model(), {}, {}, {}
    ids = torch.randint(3, 31, (2, 7), generator=torch.Generator().manual_seed(5))
    batch, other = {"input_ids": ids}, {"input_ids": ids.flip(1)}
    passed(model, batch, ours.setdefault)
    passed(model, other, theirs.setdefault)
    senders = taking(theirs, "transformer.h.0.attn.c_proj", slice(None))
    passed(model, batch, freezing(ours, senders, seen))
    v_of_head_1 = taking(seen, "transformer.h.1.attn.c_attn", slice(2 * 12 + 4, 2 * 12 + 8))
    expected, (first, second) = passed(model, batch, v_of_head_1), sites_of(model, None)
    patching = Patching(model, batch, other, logits)
    found = patching.path(closing((first, head) for head in range(3)), into={"v": closing([(second, 1)])})
    torch.testing.assert_close(found, expected)
    assert (expected - patching.clean).abs().max() > 1e-6


@pytest.mark.parametrize("name", ["our own Transformer", "BART", "T5", "GPT-2", "Llama", "BERT"])
def test_all_heads_carry_all_but_the_word_itself_and_no_head_nothing(name):
    family, close = BY_NAME[name], {"atol": 1e-5, "rtol": 1e-4}
    model, batch = family.model(), family.batch(2)
    ids, *_ = batch.values()
    other = batch | {next(iter(batch)): torch.cat([(ids[:, :1] - 2) % 28 + 3, ids[:, 1:]], 1)}

    def value(model, batch):
        return family.output(model, batch)[:, -3:]  # of tokens that are the same

    patching = Patching(model, batch, other, value)
    assert (patching.clean - patching.corrupted).abs().max() > 1e-4
    for patch in (patching.activation, patching.path):
        torch.testing.assert_close(patch(every(model, False)), patching.clean, **close)
        torch.testing.assert_close(patch(every(model)), patching.corrupted, **close)
    nobody = patching.path(every(model, False), into=dict.fromkeys("qkv", every(model)))
    torch.testing.assert_close(nobody, patching.clean, **close)
    torch.testing.assert_close(value(model, batch), patching.clean)  # no hook stays


def test_what_cannot_be_patched_is_refused_in_words():
    model, (batch, other) = small(), both()
    with pytest.raises(ValueError, match="equal lengths"):
        Patching(model, batch, collate([(pair[0][1:], pair[1]) for pair in OTHERS], [0, 1], 1), logits)
    with pytest.raises(ValueError, match="calls the output projection of MultiHeadAttention 2 times"):
        Patching(model, batch, other, lambda *given: logits(*given) - logits(*given))
    patching = Patching(model, batch, other, logits)
    with pytest.raises(ValueError, match=r"part of a receiver.*'z'"):
        patching.path(every(model), into={"z": every(model)})
    with pytest.raises(ValueError, match=r"no decoder\.7\.cross of 3 heads"):
        patching.activation(HeadMap({HeadSite.at("cross", 7, 3): [True] * 3}))
    attach(model, gate="mask")
    with pytest.raises(ValueError, match=r"0 times.*Detach gates first"):
        Patching(model, batch, other, logits)


def test_receivers_that_share_a_key_head_are_named_together():
    model = BY_NAME["Llama"].model()  # two heads to a key head
    site, *_ = sites_of(model, None)
    ids = torch.randint(3, 31, (2, 5))
    patching = Patching(model, {"input_ids": ids}, {"input_ids": ids.flip(0)}, logits)
    with pytest.raises(ValueError, match="2 heads share a key head"):
        patching.path(every(model), into={"k": closing([(site, 0)])})
    patching.path(every(model), into={"q": closing([(site, 0)]), "k": closing([(site, 0), (site, 1)])})
