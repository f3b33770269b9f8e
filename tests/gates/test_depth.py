"""Layers of other libraries' models are dropped as if the model had been built without them."""

import copy

import pytest
import torch
from torch import nn

from headgates.gates import HeadMap, find_sites, load_pruned, remove, save_pruned
from headgates.gates.depth import drop_layers, layers_left, skipped
from tests.gates.family_checks import close, closing, generated
from tests.worlds.families import BY_NAME, Family, causal, llama, masked

EXPERTS = dict(moe_intermediate_size=8, n_routed_experts=2, num_experts=2, num_experts_per_tok=1)
OUT = "model.layers.{}.self_attn.o_proj"
FAMILIES = BY_NAME | {
    family.name: family
    for family in (
        causal("GLM 4", "Glm4Moe", OUT, **EXPERTS, first_k_dense_replace=1, n_group=1, topk_group=1),
        causal("Qwen2, experts", "Qwen2Moe", OUT, **EXPERTS, mlp_only_layers=[1], decoder_sparse_step=1),
        llama(  # layers with caches of two kinds
            "Gemma 3, hybrid",
            "Gemma3",
            config="Gemma3Text",
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=3,
        ),
        masked("ESM C", "Esmc", "esmc.layers.{}.attn.out_proj"),
    )
}
FIRST = {"encoder": [0], "decoder": [0]}
# a family for each way in which layers are held -> paths of its lists; fields that say one layer fewer, by
# hand; what the first layer makes for all
BY_HAND: dict[str, tuple[dict[str, str], dict[str, object], list[str]]] = {
    "BERT": ({"encoder": "bert.encoder.layer"}, {"num_hidden_layers": 1}, []),
    "GPT-2": ({"decoder": "transformer.h"}, {"n_layer": 1}, []),  # a cache by layer numbers
    "Gemma 3": (  # a list with an entry for each layer
        {"decoder": "model.layers"},
        {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
        [],
    ),
    "GPT-Neo": (
        {"decoder": "transformer.h"},
        {"num_layers": 1, "attention_types": [[["local"], 1]], "attention_layers": ["local"]},
        [],
    ),
    "BART": (  # one configuration for both stacks
        {"encoder": "model.encoder.layers", "decoder": "model.decoder.layers"},
        {"encoder_layers": 1, "decoder_layers": 1},
        [],
    ),
    "T5": (
        {"encoder": "encoder.block", "decoder": "decoder.block"},
        {"num_layers": 1, "num_decoder_layers": 1},
        ["relative_attention_bias"],
    ),
    "Whisper": (  # proved by a sound
        {"encoder": "model.encoder.layers", "decoder": "model.decoder.layers"},
        {"encoder_layers": 1, "decoder_layers": 1},
        [],
    ),
    "Wav2Vec2": ({"encoder": "wav2vec2.encoder.layers"}, {"num_hidden_layers": 1}, []),
    "GLM 4": (  # a number of first layers without experts
        {"decoder": "model.layers"},
        {"num_hidden_layers": 1, "first_k_dense_replace": 0},
        [],
    ),
    "Qwen2, experts": (  # the numbers of the layers without experts
        {"decoder": "model.layers"},
        {"num_hidden_layers": 1, "mlp_only_layers": [0]},
        [],
    ),
    "SeamlessM4T, text": (  # whose common name for a number of layers is the decoder's
        {"encoder": "text_encoder.layers", "decoder": "text_decoder.layers"},
        {"encoder_layers": 1, "decoder_layers": 1},
        [],
    ),
}


def built_without(family: Family, model: nn.Module) -> nn.Module:
    """A new model whose only layers have the weights of the second ones."""
    lists, fields, of_first = BY_HAND[family.name]
    config = copy.deepcopy(model.config)
    for name, value in fields.items():
        setattr(config, name, value)
    smaller, weights = type(model)(config).eval(), model.state_dict()
    moved = {f"{path}.0.": f"{path}.1." for path in lists.values()}
    for name, weight in smaller.state_dict().items():
        new = next((each for each in moved if name.startswith(each)), None)
        if new is None or any(part in name for part in of_first):
            weight.copy_(weights[name])
        else:
            weight.copy_(weights[name.replace(new, moved[new], 1)])
    return smaller


@pytest.mark.filterwarnings("ignore::UserWarning:transformers")
@pytest.mark.parametrize("name", BY_HAND)
def test_a_model_without_its_first_layers_is_the_one_built_without_them(name, tmp_path):
    family = FAMILIES[name]
    model = family.model()
    batch, expected, like = family.batch(2), built_without(family, model), copy.deepcopy(model)
    layers = {stack: FIRST[stack] for stack in BY_HAND[name][0]}
    logits = family.output(expected, batch)
    assert (family.output(model, batch) - logits).abs().max() > 0.01
    with skipped(model, layers):
        close(family.output(model, batch), logits)
    close(family.output(model, batch), family.output(like, batch))
    drop_layers(model, layers)
    close(family.output(model, batch), logits)
    assert layers_left(model) == {stack: [False, True] for stack in layers}
    assert {key: weight.shape for key, weight in model.state_dict().items()} == {
        key: weight.shape for key, weight in expected.state_dict().items()
    }
    if family.generates:
        assert torch.equal(generated(family, model), generated(family, expected))
    again = type(model)(model.config)  # the configuration says it
    again.load_state_dict(model.state_dict())
    close(family.output(again.eval(), batch), logits)
    remove(model, closing(model, lambda number, layer, head: head == 0))
    pruned = load_pruned(save_pruned(model, tmp_path / "pruned"))
    close(family.output(pruned, batch), family.output(model, batch))


@pytest.mark.parametrize("name", ["Llama", "Gemma 3, hybrid"])
def test_a_static_cache_finds_keys_and_values_by_the_new_layer_numbers(name):
    family = FAMILIES[name]
    model = family.model()
    drop_layers(model, {"decoder": [0]})
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, **family.batch(2)}
    expected = model.generate(**options, use_cache=False)
    assert torch.equal(model.generate(**options, cache_implementation="static"), expected)
    assert torch.equal(model.generate(**options), expected)


@pytest.mark.parametrize("heads_first", [True, False])
def test_t5s_bias_is_made_by_the_first_layer_that_stays_for_heads_that_differ(heads_first):
    family = BY_NAME["T5"]
    model, batch = family.model(), family.batch(2)
    rows = {0: [True, False, False], 1: [False, True, True]}  # in each layer the heads that the other lacks
    closed = {site: torch.tensor(rows[site.layer]) for site in find_sites(model)}
    if heads_first:
        remove(model, HeadMap(closed))
    with skipped(model, FIRST):
        expected = family.output(model, batch)
    drop_layers(model, FIRST)
    close(family.output(model, batch), expected)
    left = {site: torch.tensor(rows[1][-site.heads :]) for site in find_sites(model)}
    if not heads_first:
        remove(model, HeadMap(left))
        with skipped(twin := family.model(), FIRST):
            remove(twin, HeadMap(closed))
            expected = family.output(twin, batch)
        close(family.output(model, batch), expected)
    assert model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.shape[1] == 1
    assert sum("relative_attention_bias" in name for name in model.state_dict()) == 2


def test_another_model_of_the_same_configuration_keeps_its_layers():
    model = BY_NAME["BERT"].model()
    other = type(model)(model.config)
    drop_layers(model, {"encoder": [1]})
    assert other.config.num_hidden_layers == len(other.bert.encoder.layer) == 2


def test_layers_whose_removal_nothing_proves_stay():
    family = BY_NAME["torch.nn.TransformerEncoder"]
    model, batch = family.model(), family.batch(2)
    with pytest.raises(ValueError, match=r"no forward pass could be run that proves the removal; give"):
        drop_layers(model, {"encoder": [0]})
    with skipped(model, {"encoder": [0]}):
        expected = family.output(model, batch)
    drop_layers(model, {"encoder": [0]}, inputs=((), batch))
    close(family.output(model, batch), expected)
    assert model.num_layers == 1


class CountsItsLayers(nn.TransformerEncoder):
    """Scales its output by the number of layers that it had at first and asks for as many."""

    def forward(self, src):
        for number in range(2):
            src = self.layers[number](src)
        return src


def test_a_model_whose_forward_needs_all_layers_is_put_back():
    layer = nn.TransformerEncoderLayer(12, 3, 17, dropout=0.0, batch_first=True)
    model, x = CountsItsLayers(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 5, 12)
    expected = model(x)
    with pytest.raises(
        ValueError, match="layers of CountsItsLayers cannot be dropped: without them a forward"
    ):
        drop_layers(model, {"encoder": [0]}, inputs=((x,), {}))
    assert torch.equal(model(x), expected)
    assert len(model.layers) == model.num_layers == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "ModernBERT",
            r"its class builds model\.layers\.0\.attn_norm\.weight otherwise",
        ),  # no norm in the first
        ("ESM C", "not close"),  # the residual stream is scaled by the number of layers
    ],
)
def test_layers_stay_where_no_configuration_says_that_they_are_gone(name, said):
    family = FAMILIES[name]
    model, batch = family.model(), family.batch(2)
    expected = family.output(model, batch)
    with pytest.raises(ValueError, match=f"cannot be dropped: .*{said}"):
        drop_layers(model, {"encoder": [0]})
    assert torch.equal(family.output(model, batch), expected)
    assert layers_left(model) == {"encoder": [True, True]}


def test_layers_that_several_passes_share_are_refused():
    model = BY_NAME["ALBERT"].model()
    with pytest.raises(ValueError, match=r"the encoder has 2 layers, its configuration says .*: 4"):
        drop_layers(model, {"encoder": [0]})
    assert len(find_sites(model)) == 2
