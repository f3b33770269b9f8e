"""Attention weights made by hand, with the special tokens of our own vocabularies."""

from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch
from headgates.data.batch import Batch
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadSite


def seen_attention(batch: Batch, weights: dict[HeadSite, Tensor]) -> AttentionBatch:
    return AttentionBatch(batch, weights, SpecialTokens(), SpecialTokens())
