"""Patching against passes whose outputs of heads are exchanged by hooks at paths written out by hand."""

import copy

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
    """The logits, where change(path, x) stands for what each W_O reads."""
    model = copy.deepcopy(model)
    for path, module in model.named_modules():
        if path.endswith("out_proj"):
            module.register_forward_pre_hook(lambda _, inputs, path=path: (change(path, inputs[0]),))
    return logits(model, batch)


def place(site: HeadSite, head: int) -> tuple[str, slice]:
    """Where our model has a head's output: the path of the projection, and columns."""
    attention = f"{site.stack}.layers.{site.layer}.{'cross' if site.kind == 'cross' else 'self'}_attention"
    return f"{attention}.out_proj", slice(K * head, K * head + K)


def taking(given: dict[str, Tensor], path: str, columns: slice):
    """The change by which these columns are those of `given`."""

    def change(at: str, x: Tensor) -> Tensor:
        x = x.clone()
        if at == path:
            x[..., columns] = given[at][..., columns]
        return x

    return change


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
        senders, exchange = closing([sender]), taking(theirs, *place(*sender))
        found = patching.activation(senders)
        torch.testing.assert_close(found, passed(model, batch, exchange))
        moved = max(moved, float((found - patching.clean).abs().max()))
        direct = passed(model, batch, lambda at, x, exchange=exchange: exchange(at, ours[at]))
        torch.testing.assert_close(patching.path(senders), direct)
        if sender[0].stack == "encoder":  # only through the heads of cross-attention
            torch.testing.assert_close(direct, patching.clean)
    assert moved > 1e-2


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
    torch.testing.assert_close(value(model, batch), patching.clean)  # no hook stays


def test_what_cannot_be_patched_is_refused_in_words():
    model, (batch, other) = small(), both()
    with pytest.raises(ValueError, match="equal lengths"):
        Patching(model, batch, collate([(pair[0][1:], pair[1]) for pair in OTHERS], [0, 1], 1), logits)
    with pytest.raises(ValueError, match="calls the output projection of MultiHeadAttention 2 times"):
        Patching(model, batch, other, lambda *given: logits(*given) - logits(*given))
    patching = Patching(model, batch, other, logits)
    with pytest.raises(ValueError, match=r"no decoder\.7\.cross of 3 heads"):
        patching.activation(HeadMap({HeadSite.at("cross", 7, 3): [True] * 3}))
    attach(model, gate="mask")
    with pytest.raises(ValueError, match=r"0 times.*Detach gates first"):
        Patching(model, batch, other, logits)
