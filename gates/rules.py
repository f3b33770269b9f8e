"""The site rules: for each attention class, how its heads are held and which projections they have.

A key is a class's name or, where the name alone would fit others' classes, its module and name. A class that
has no rule takes the first layout that fits its attributes, its projections and their sizes; what `remove`
makes of it is proved by a forward pass (proof.py). For a class that no layout fits, add a line:

    SITE_RULES["MyAttention"] = SiteRule(heads="num_heads", mode="hook")  # it calls its out_proj
    SITE_RULES["MyAttention"] = SiteRule(heads="num_heads", mode="weight")  # it reads out_proj.weight itself
    SITE_RULES["MyAttention"] = SiteRule(heads="num_heads", slot="gate")  # it calls self.gate() itself

So that heads of it can be removed too, the rule names its projections where they are not q_proj, k_proj,
v_proj and out_proj. A forward that needs heads * head width = model width is refitted then.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from torch import nn

from . import (
    codegen_attention,
    fsmt_attention,
    longformer_attention,
    refit,
    torch_attention,
    wavlm_attention,
)
from .site_rule import SiteRule, attribute, check_columns, heads_of, projection, sizes_of

# layouts, most of which many classes share
BART = SiteRule(heads="num_heads", mode="hook", widths=("embed_dim",))
GPTJ = replace(BART, heads="num_attention_heads")
BERT = SiteRule(
    heads="self.num_attention_heads",
    mode="hook",
    q="self.query",
    k="self.key",
    v="self.value",
    out="output.dense",
    widths=("self.all_head_size",),
    causal="self.is_causal",
)
DEBERTA2 = replace(
    BERT,
    q="self.query_proj",
    k="self.key_proj",
    v="self.value_proj",
    causal="",
    also=("self.pos_key_proj", "self.pos_query_proj"),
)
DEBERTA = replace(
    DEBERTA2,
    q="self.in_proj",
    k="self.in_proj",
    v="self.in_proj",
    fused="heads",
    also=("self.q_bias", "self.v_bias", "self.pos_proj", "self.pos_q_proj"),
    refit=refit.deberta,
)
ALBERT = SiteRule(
    heads="num_attention_heads",
    mode="hook",
    q="query",
    k="key",
    v="value",
    out="dense",
    widths=("all_head_size",),
)
DISTILBERT = SiteRule(heads="n_heads", mode="hook", q="q_lin", k="k_lin", v="v_lin", out="out_lin")
MPNET = replace(ALBERT, q="q", k="k", v="v", out="o", arguments=("position_bias",))
T5 = SiteRule(
    heads="n_heads",
    mode="hook",
    q="q",
    k="k",
    v="v",
    out="o",
    widths=("inner_dim",),
    bias="relative_attention_bias",
)
UMT5 = replace(T5, bias="", also=("relative_attention_bias",))  # each layer makes its own bias
LLAMA = SiteRule(
    head_width="head_dim",
    mode="hook",
    out="o_proj",
    group="num_key_value_groups",
    norms=("q_norm", "k_norm"),
    causal="is_causal",
    also=("sinks",),  # GPT-OSS
)
GATED_LLAMA = replace(LLAMA, own_widths=True)  # q_proj gives a head's query, then its gate
LATENT = SiteRule(
    heads="num_heads",
    mode="hook",
    q="q_b_proj",
    k="kv_b_proj",
    v="kv_b_proj",
    fused="heads",
    own_widths=True,
    out="o_proj",
    causal="is_causal",
)
LATENTS = (LATENT, replace(LATENT, q="q_proj"))
PHI = replace(LLAMA, out="dense")
PHI3 = replace(
    LLAMA,
    head_width="",
    heads="config.num_attention_heads",
    q="qkv_proj",
    k="qkv_proj",
    v="qkv_proj",
    keys="num_key_value_heads",
)
VIT = SiteRule(
    heads="num_attention_heads",
    mode="hook",
    out="o_proj",
    causal="is_causal",
    also=("relative_position_bias.relative_position_bias_table",),  # Swin
)
DINO = replace(VIT, heads="num_heads")
BEIT = SiteRule(
    heads="attention.num_attention_heads",
    mode="hook",
    q="attention.query",
    k="attention.key",
    v="attention.value",
    out="output.dense",
    widths=("attention.all_head_size",),
    also=("attention.relative_position_bias.relative_position_bias_table",),
    arguments=("relative_position_bias",),
)
MPT = SiteRule(
    heads="n_heads", mode="hook", q="Wqkv", k="Wqkv", v="Wqkv", out="out_proj", arguments=("position_bias",)
)
MODERNBERT = SiteRule(head_width="head_dim", mode="hook", q="Wqkv", k="Wqkv", v="Wqkv", out="Wo")
BLOOM = SiteRule(
    heads="num_heads",
    mode="hook",
    q="query_key_value",
    k="query_key_value",
    v="query_key_value",
    fused="heads",
    out="dense",
    arguments=("alibi",),
)
FALCON = replace(BLOOM, keys="num_kv_heads", arguments=("alibi", "attention_mask"))
NEOX = replace(BLOOM, heads="", head_width="head_size", arguments=())
GPT2 = SiteRule(
    heads="num_heads",
    mode="hook",
    q="c_attn",
    k="c_attn",
    v="c_attn",
    out="c_proj",
    transposed=True,
    widths=("split_size",),
    causal="is_causal",
)
CONFORMER = SiteRule(
    heads="num_heads",
    mode="hook",
    q="linear_q",
    k="linear_k",
    v="linear_v",
    out="linear_out",
    also=("linear_pos", "pos_bias_u", "pos_bias_v"),
)
LONGFORMER = SiteRule(
    heads="self.num_heads",
    mode="hook",
    q="self.query",
    k="self.key",
    v="self.value",
    out="output.dense",
    also=("self.query_global", "self.key_global", "self.value_global"),
    refit=longformer_attention.longformer_refit,
)
LED = replace(
    LONGFORMER,
    heads="longformer_self_attn.num_heads",
    q="longformer_self_attn.query",
    k="longformer_self_attn.key",
    v="longformer_self_attn.value",
    out="output",
    also=tuple(f"longformer_self_attn.{name}_global" for name in ("query", "key", "value")),
)
PROPHETNET = SiteRule(
    heads="num_attn_heads",
    mode="hook",
    q="query_proj",
    k="key_proj",
    v="value_proj",
    refit=refit.prophetnet,
)
LAYOUTS = (
    replace(LLAMA, head_width="", heads="num_heads", keys="num_key_value_heads"),  # StableLM
    *(LLAMA, PHI, PHI3, BART, GPTJ, BERT, replace(BERT, causal=""), DEBERTA2, ALBERT, T5, UMT5, VIT),
    *(*LATENTS, DINO, BEIT, MPT),
    *(DISTILBERT, MODERNBERT, FALCON, BLOOM, replace(BLOOM, arguments=()), NEOX),
    # GPT-2's own, and StarCoder's with one key head
    *(replace(GPT2, q=q, causal="") for q in ("q_attn", "c_attn")),
    replace(GPT2, transposed=False, group="num_key_value_groups", widths=("embed_dim",)),
    *(replace(BART, q="att_proj", k="att_proj", v="att_proj"), CONFORMER),  # Bark
    replace(LLAMA, group="", out="Wo"),  # ModernBERT's decoder
    # without a word on causality, key heads or a bias: the vision towers of many models, encoders of text
    *(
        replace(LLAMA, causal=""),
        replace(LLAMA, causal="", group=""),
        replace(LLAMA, causal="", out="out_proj"),
    ),
    replace(DINO, causal="", out="proj"),
    replace(DINO, causal="", out="projection_layer", widths=("embed_dim",)),  # InternVL, Janus
    replace(MPNET, heads="num_heads", out="proj", widths=(), arguments=()),  # Qwen2.5-Omni's images
    replace(BEIT, arguments=(), also=("attention.q_bias", "attention.v_bias")),
    *(
        replace(MPT, heads=heads, q="qkv", k="qkv", v="qkv", out=out, arguments=(), widths=widths)
        for heads in ("num_heads", "num_attention_heads")
        for out in ("proj", "projection")
        for widths in (("embed_dim",), ())
    ),
)


def feed_forward(out: str, *inner: str) -> SiteRule:
    """Of a layer whose neurons are the inputs of `out` and the outputs of each `inner`."""
    return SiteRule(heads=f"{out}.in_features", mode="hook", inner=inner, out=out, zero_heads=True)


# feed-forward layers: some are a module, others stand in the layer itself. A name that comes twice is one
# weight, of which the rows of the gates stand before the others
FC, GATED = feed_forward("fc2", "fc1"), feed_forward("down_proj", "gate_proj", "up_proj")
WI, GATED_WI = feed_forward("wo", "wi"), feed_forward("wo", "wi_0", "wi_1")
DENSE, FUSED = feed_forward("output.dense", "intermediate.dense"), feed_forward("Wo", "Wi", "Wi")
GATE_UP = feed_forward("down_proj", "gate_up_proj", "gate_up_proj")
H_TO_4H = feed_forward("dense_4h_to_h", "dense_h_to_4h")
CONV1D = SiteRule(  # it cannot run without inputs
    heads="c_proj.nx", mode="hook", inner=("c_fc",), out="c_proj", transposed=True
)
FEED_FORWARD_LAYOUTS = (
    *(FC, GATED, WI, GATED_WI, DENSE, FUSED, GATE_UP, H_TO_4H, CONV1D),
    *map(
        feed_forward,
        ["down_proj", "output_dense", "linear2", "linear_fc2", "linear_2", "lin2", "c_proj", "fc_out"],
        ["up_proj", "intermediate_dense", "linear1", "linear_fc1", "linear_1", "lin1", "c_fc", "fc_in"],
    ),
    feed_forward("fc2", "fc1", "fc1"),
    feed_forward("w2", "w1", "w3"),
    feed_forward("output_linear", "input_linear", "input_linear"),
)
IN_SEQUENCE = feed_forward("2", "0"), feed_forward("3", "0")  # of an nn.Sequential

# names of classes -> the rule of each
SHARED_RULES: dict[str, SiteRule | tuple[SiteRule, ...]] = {
    "MarianAttention BartAttention MBartAttention PegasusAttention WhisperAttention M2M100Attention "
    "OPTAttention PLBartAttention BlenderbotAttention BlenderbotSmallAttention Speech2TextAttention "
    "Wav2Vec2Attention SeamlessM4TAttention GPTNeoSelfAttention Data2VecAudioAttention "
    "SiglipAttention CLIPAttention": BART,
    "T5Attention MT5Attention SwitchTransformersAttention LongT5Attention LongT5LocalAttention": T5,
    "BertAttention RobertaAttention XLMRobertaAttention CamembertAttention ElectraAttention "
    "Data2VecTextAttention": BERT,
    "ViTAttention DeiTAttention SwinAttention": VIT,
    "Data2VecVisionAttention": BEIT,
    "DeepseekV2Attention DeepseekV3Attention": LATENTS,
    "Qwen3NextAttention Qwen3_5Attention Qwen3_5MoeAttention": GATED_LLAMA,
    "LlamaAttention Qwen2Attention Qwen3Attention MistralAttention MixtralAttention GemmaAttention "
    "Gemma2Attention Gemma3Attention GraniteAttention SmolLM3Attention CohereAttention Starcoder2Attention "
    "Olmo2Attention GptOssAttention": LLAMA,
    "MarianEncoderLayer MarianDecoderLayer BartEncoderLayer BartDecoderLayer MBartEncoderLayer "
    "MBartDecoderLayer M2M100EncoderLayer M2M100DecoderLayer PegasusEncoderLayer PegasusDecoderLayer "
    "WhisperEncoderLayer WhisperDecoderLayer PLBartEncoderLayer PLBartDecoderLayer OPTDecoderLayer "
    "BlenderbotEncoderLayer BlenderbotDecoderLayer BlenderbotSmallEncoderLayer BlenderbotSmallDecoderLayer "
    "Speech2TextEncoderLayer Speech2TextDecoderLayer SeamlessM4TFeedForwardNetwork ViTMLP DeiTMLP "
    "PhiMLP": FC,
    "transformers.models.fsmt.modeling_fsmt.EncoderLayer "
    "transformers.models.fsmt.modeling_fsmt.DecoderLayer": replace(FC, batch_axis=1),
    "T5DenseActDense MT5DenseActDense SwitchTransformersDenseActDense LongT5DenseActDense": WI,
    "T5DenseGatedActDense MT5DenseGatedActDense UMT5DenseGatedActDense": GATED_WI,
    "BertLayer RobertaLayer XLMRobertaLayer CamembertLayer ElectraLayer DebertaLayer DebertaV2Layer "
    "MPNetLayer": DENSE,
    "LlamaMLP Qwen2MLP Qwen3MLP MistralMLP GemmaMLP Gemma2MLP Gemma3MLP GraniteMLP SmolLM3MLP CohereMLP "
    "Olmo2MLP": GATED,
    "ModernBertMLP": FUSED,
    "Phi3MLP": GATE_UP,
    "GPTNeoXMLP BloomMLP FalconMLP": H_TO_4H,
    "Starcoder2MLP GPTNeoMLP": feed_forward("c_proj", "c_fc"),
    "GPTJMLP": feed_forward("fc_out", "fc_in"),
    "ProphetNetFeedForward": feed_forward("output", "intermediate"),
    "Wav2Vec2FeedForward": feed_forward("output_dense", "intermediate_dense"),
    "torch.nn.modules.transformer.TransformerEncoderLayer "
    "torch.nn.modules.transformer.TransformerDecoderLayer": replace(
        feed_forward("linear2", "linear1"),
        batch_first="self_attn.batch_first",
        zero_heads=False,  # the fused kernel of a layer takes no empty weight
    ),
}
# of a class, or several where instances differ: the first whose projections are there
SITE_RULES: dict[str, SiteRule | tuple[SiteRule, ...]] = {
    **{name: rule for names, rule in SHARED_RULES.items() for name in names.split()},
    "headgates.models.attention.MultiHeadAttention": SiteRule(
        heads="heads", slot="gate", zero_heads=True, also=("distances",)
    ),
    "headgates.models.transformer.FeedForward": (
        replace(feed_forward("outer", "inner", "factor"), mode="slot"),
        replace(feed_forward("outer", "inner"), mode="slot"),
    ),
    "DINOv3ViTAttention": DINO,
    "MptAttention": MPT,
    "LongformerAttention": LONGFORMER,
    "LEDEncoderAttention": LED,
    "LEDDecoderAttention": replace(
        BART, widths=(), refit=partial(refit.by_forward, longformer_attention.SmallerLEDDecoderAttention)
    ),
    "CodeGenAttention": replace(GPTJ, refit=codegen_attention.codegen_refit),
    "WavLMAttention": replace(
        BART,
        mode="weight",
        widths=(),
        zero_heads=True,
        refit=partial(refit.by_forward, wavlm_attention.SmallerWavLMAttention),
    ),
    "ProphetNetAttention": PROPHETNET,
    "ProphetNetNgramSelfAttention": PROPHETNET,
    "PhiAttention": PHI,
    "Phi3Attention": PHI3,
    "GPTJAttention": GPTJ,
    "UMT5Attention": UMT5,
    "DistilBertSelfAttention": DISTILBERT,
    "DebertaAttention": DEBERTA,
    "DebertaV2Attention": DEBERTA2,
    "AlbertAttention": ALBERT,
    "BeitAttention": replace(VIT, arguments=("attention_mask",)),  # it holds the bias of each head
    "MPNetSelfAttention": MPNET,
    "ModernBertAttention": MODERNBERT,
    "GPTNeoXAttention": NEOX,
    "BloomAttention": BLOOM,
    "FalconAttention": FALCON,
    "GPT2Attention": (replace(GPT2, q="q_attn"), GPT2),  # cross-attention's first
    # FSMT feeds W_O with (L, B, H * K); its forward needs heads * width = embed_dim, as do the two below:
    # they are refitted
    "transformers.models.fsmt.modeling_fsmt.Attention": SiteRule(
        heads="num_heads",
        mode="hook",
        batch_axis=1,
        zero_heads=True,
        refit=partial(refit.by_forward, fsmt_attention.SmallerFSMTAttention),
    ),
    # these read out_proj.weight in fused kernels and do not call out_proj, or not always
    "torch.nn.modules.activation.MultiheadAttention": SiteRule(
        heads="num_heads", mode="weight", zero_heads=True, refit=torch_attention.torch_refit
    ),
    "fairseq.modules.multihead_attention.MultiheadAttention": SiteRule(
        heads="num_heads", mode="weight", batch_axis=1, widths=("embed_dim",), refit=refit.fairseq
    ),
    "GPT2MLP": CONV1D,
    "AlbertLayer": feed_forward("ffn_output", "ffn"),
    "transformers.models.distilbert.modeling_distilbert.FFN": feed_forward("lin2", "lin1"),
}
_TESTED = dict(SITE_RULES)  # those that the families' tests cover
# of classes that they do not cover, and whose layout says too little: a forward pass proves each removal
SITE_RULES |= {
    "MoonshineAttention": replace(LLAMA, head_width="", heads="config.num_key_value_heads", group=""),
    "ParakeetEncoderAttention": replace(
        LLAMA,
        head_width="",
        heads="config.num_attention_heads",
        also=("relative_k_proj", "bias_u", "bias_v"),
    ),
    "Swinv2Attention": replace(
        BERT, causal="", also=("self.logit_scale", "self.continuous_position_bias_mlp.2")
    ),
    "LayoutLMv3Attention": replace(BERT, causal="", arguments=("rel_pos", "rel_2d_pos")),
    "LukeAttention": replace(BERT, causal="", also=("self.w2e_query", "self.e2w_query", "self.e2e_query")),
    "EomtAttention": replace(BART, arguments=("attention_mask",)),
    "VJEPA2RopeAttention": replace(ALBERT, out="proj"),
    "MoonshineStreamingAttention": replace(
        LLAMA, head_width="", heads="config.num_key_value_heads", group=""
    ),
    "DonutSwinAttention": replace(BERT, causal="", also=("self.relative_position_bias_table",)),
    "ClapAudioAttention": replace(BERT, causal="", also=("self.relative_position_bias_table",)),
    "MllamaVisionAttention": replace(BART, out="o_proj", widths=()),
    "MllamaTextCrossAttention": replace(
        LLAMA, head_width="", heads="num_heads", keys="num_key_value_heads", causal=""
    ),
    "MllamaTextSelfAttention": replace(
        LLAMA, head_width="", heads="num_heads", keys="num_key_value_heads", causal=""
    ),
    "HieraMaskUnitAttention": SiteRule(
        heads="num_heads", mode="hook", q="qkv", k="qkv", v="qkv", out="proj", widths=("hidden_size_output",)
    ),
    "T5Gemma2MergedAttention": replace(LLAMA, causal=""),  # is_causal is false, as it reads the source too
    "Phi4MultimodalAudioAttention": replace(LLAMA, causal="", group="", arguments=("attention_mask",)),
}


def known_rule(module: nn.Module) -> SiteRule | None:
    """The rule of this module's class, by module and name or by name alone, else the first layout that fits
    it; None where there is none."""
    found = named_rules(module, SITE_RULES)
    if isinstance(found, tuple):
        found = next((rule for rule in found if has_projections(module, rule)), None)
    elif found is None:
        found = layout_of(module)
    if found and found.mode == "weight" and getattr(module, refit.CALLS_OUT, False):
        found = replace(found, mode="hook")
    if found and found.batch_first:
        first: Any = module
        for name in found.batch_first.split("."):
            first = getattr(first, name, True)
        return found if first else replace(found, batch_axis=1)
    return found


def named_rules(module: nn.Module, rules: Mapping[str, Any]) -> Any:
    cls = type(module)
    return rules.get(f"{cls.__module__}.{cls.__name__}") or rules.get(cls.__name__)


def has_own_rule(module: nn.Module) -> bool:
    """Whether its class has a rule, not a layout alone."""
    return named_rules(module, SITE_RULES) is not None


def is_tested(module: nn.Module) -> bool:
    """Whether its rule is one that the families' tests cover, not a layout's or one that was added."""
    rules = named_rules(module, SITE_RULES)
    return rules is not None and rules is named_rules(module, _TESTED)


def has_projections(module: nn.Module, rule: SiteRule) -> bool:
    """Whether it has the modules that the rule names as projections."""
    found: Any = object()
    for name in (*rule.inputs, rule.out):
        found = module
        for part in name.split("."):
            found = getattr(found, "_modules", {}).get(part)
        if found is None:
            return False
    return True


def layout_of(module: nn.Module) -> SiteRule | None:
    """The first layout whose attributes and projections an attention or feed-forward layer has, in sizes that
    fit, and whose output projection its forward calls."""
    if not module._modules:  # most: they have no projection
        return None
    if type(module) is nn.Sequential:
        layouts: tuple[SiteRule, ...] = IN_SEQUENCE if is_two_layers(module) else ()
    else:
        attends = "attention" in type(module).__name__.lower()
        layouts = (*LAYOUTS, *FEED_FORWARD_LAYOUTS) if attends else FEED_FORWARD_LAYOUTS
    parts = module._modules.keys()
    named = (rule for rule in layouts if rule.out.partition(".")[0] in parts)
    return next((rule for rule in named if has_projections(module, rule) and fits(module, rule)), None)


def is_two_layers(sequence: nn.Sequential) -> bool:
    """Whether only its first and its last part have weights."""
    between = [*sequence][1:-1]
    return not any(next(part.parameters(), None) is not None for part in between)


def fits(module: nn.Module, rule: SiteRule) -> bool:
    try:
        heads = heads_of(module, rule)
        for name in filter(None, (*rule.widths, rule.group, rule.keys, rule.causal)):
            attribute(module, name, "an attribute")
        out = projection(module, rule.out)
        if rule.inner:  # of which nothing may be left
            widths = {name: sizes_of(projection(module, name), rule) for name in rule.inputs}
            width = sizes_of(out, rule)[0]
            wanted = {name: (heads * rule.inner.count(name), width) for name in widths}
            if widths != wanted or (heads != width and has_more_neurons(module, rule, heads)):
                return False
            return type(module) is nn.Sequential or calls_output(module, rule)
        check_columns(module, rule, out, heads)
    except (ValueError, TypeError, ArithmeticError):
        return False
    arguments = inspect.signature(type(module).forward).parameters
    named = (*rule.arguments, *(["position_bias"] if rule.bias else []))
    return heads > 0 and all(name in arguments for name in named) and calls_output(module, rule)


def has_more_neurons(module: nn.Module, rule: SiteRule, neurons: int) -> bool:
    """Whether another part than the projections has a row for each neuron, as SegFormer's convolution between
    them or BitNet's norm."""
    known = {name.partition(".")[0] for name in (*rule.inputs, rule.out)}
    return any(
        len(each) == neurons
        for name, child in module.named_children()
        if name not in known and "att" not in type(child).__name__.lower()
        for each in child.parameters()
        if each.dim()
    )


def calls_output(module: nn.Module, rule: SiteRule) -> bool:
    """Whether the forward calls W_O, by its text, or any method of a feed-forward layer's class: a hook does
    not reach a weight that is read without it."""
    owner, _, name = rule.out.rpartition(".")
    cls: Any = type(module.get_submodule(owner))
    texts = cls.__mro__[: cls.__mro__.index(nn.Module)] if rule.inner else (cls.forward,)
    return any(f"self.{name}(" in text_of(each) for each in texts)


@cache
def text_of(code: Any) -> str:
    """The text of a class or function, "" where it is not there."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return ""


def rule_of(module: nn.Module) -> SiteRule:
    """The rule of a module that `find_sites` found."""
    rule = known_rule(module)
    assert rule is not None
    return rule
