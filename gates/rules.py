"""The site rules: for each attention class, one line that says how its heads are held and which projections
they have.

A key is a class's name or, where the name alone would fit others' classes, its module and name. For another
attention class, add a line:

    SITE_RULES["MyAttention"] = SiteRule(heads="num_heads", mode="hook")  # it calls its out_proj
    SITE_RULES["MyAttention"] = SiteRule(heads="num_heads", mode="weight")  # it reads out_proj.weight itself
    SITE_RULES["MyAttention"] = SiteRule(heads="num_heads", slot="gate")  # it calls self.gate() itself

So that heads of it can be removed too, the rule names its projections where they are not q_proj, k_proj,
v_proj and out_proj. A forward that needs heads * head width = model width is refitted then.
"""

from torch import nn

from . import fsmt_attention, refit, torch_attention
from .site_rule import SiteRule

# Hugging Face's attentions that share one layout
BART = SiteRule(heads="num_heads", mode="hook")
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
LLAMA = SiteRule(
    head_width="head_dim", mode="hook", out="o_proj", group="num_key_value_groups", causal="is_causal"
)

SITE_RULES: dict[str, SiteRule] = {
    "MultiHeadAttention": SiteRule(heads="heads", slot="gate", zero_heads=True),  # our own
    "MarianAttention": BART,
    "BartAttention": BART,
    "MBartAttention": BART,
    "M2M100Attention": BART,  # NLLB too
    "PegasusAttention": BART,
    "WhisperAttention": BART,
    "T5Attention": T5,
    "MT5Attention": T5,
    "BertAttention": BERT,
    "RobertaAttention": BERT,
    "DistilBertSelfAttention": SiteRule(
        heads="n_heads", mode="hook", q="q_lin", k="k_lin", v="v_lin", out="out_lin", causal="is_causal"
    ),
    "ViTAttention": SiteRule(heads="num_attention_heads", mode="hook", out="o_proj", causal="is_causal"),
    "GPT2Attention": SiteRule(
        heads="num_heads",
        mode="hook",
        q="c_attn",
        k="c_attn",
        v="c_attn",
        out="c_proj",
        transposed=True,
        widths=("split_size",),
        causal="is_causal",
    ),
    "LlamaAttention": LLAMA,
    "Qwen2Attention": LLAMA,
    "Qwen3Attention": LLAMA,
    # FSMT feeds W_O with (L, B, H * K); its forward needs heads * width = embed_dim, as do the two below:
    # they are refitted
    "transformers.models.fsmt.modeling_fsmt.Attention": SiteRule(
        heads="num_heads", mode="hook", batch_axis=1, zero_heads=True, refit=fsmt_attention.refit
    ),
    # these read out_proj.weight in fused kernels and do not call out_proj, or not always
    "torch.nn.modules.activation.MultiheadAttention": SiteRule(
        heads="num_heads", mode="weight", zero_heads=True, refit=torch_attention.refit
    ),
    "fairseq.modules.multihead_attention.MultiheadAttention": SiteRule(
        heads="num_heads", mode="weight", widths=("embed_dim",), refit=refit.fairseq
    ),
}


def known_rule(module: nn.Module) -> SiteRule | None:
    """The rule of this module's class, by module and name or by name alone; None where there is none."""
    cls = type(module)
    return SITE_RULES.get(f"{cls.__module__}.{cls.__name__}") or SITE_RULES.get(cls.__name__)


def rule_of(module: nn.Module) -> SiteRule:
    """The rule of a module that `find_sites` found."""
    rule = known_rule(module)
    assert rule is not None
    return rule
