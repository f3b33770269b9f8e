"""Exact numbers of multiply-adds of a model, to compare the measured gain of a smaller model with.

Counted are the products: projections of attention, scores q k^T, weights times values, feed-forward, output
projection. Not counted: norms, softmaxes, embeddings, biases and gates. What is computed and masked
afterwards counts: padding, and the future in whole sequences. Heads are read from the modules, so sites may
have different numbers; a site without heads asks for nothing. Letters: B sentences, k beam, S source, T
target positions, D model width, H heads, K head width, V vocabulary.
"""

from collections.abc import Mapping, Sequence

from headgates.gates import find_sites
from headgates.models.attention import MultiHeadAttention
from headgates.models.ssru import SSRU
from headgates.models.transformer import FeedForward, Transformer

PARTS = ("enc-self", "dec-self", "cross", "ffn", "output")


def scoring(model: Transformer, *, sentences: int, source: int, target: int) -> dict[str, int]:
    """Multiply-adds, by part, of one pass over B `sentences` of S `source` and T `target` positions, padding
    included: their logits, all at once."""
    read, written = sentences * source, sentences * target
    queries = {"enc-self": read, "dec-self": written, "cross": written}
    keys = {"enc-self": read, "dec-self": written, "cross": read}
    pairs = {"enc-self": read * source, "dec-self": written * target, "cross": written * source}
    return count(model, queries, keys, pairs)


def decoding(model: Transformer, *, source: int, steps: Sequence[int], beam: int) -> dict[str, int]:
    """Multiply-adds, by part, of a search over one batch that keeps keys and values and drops a sentence when
    it is finished.

    source: S positions of every source, padding included. steps: of each sentence, the steps it was open for,
    which is the length of its longest hypothesis, the end included. Step t has t past positions; the encoder
    and the keys of its memory are computed once a sentence, everything else for each of the k rows."""
    read, rows = len(steps) * source, beam * sum(steps)
    queries = {"enc-self": read, "dec-self": rows, "cross": rows}
    keys = {"enc-self": read, "dec-self": rows, "cross": read}
    pairs = {
        "enc-self": read * source,
        "dec-self": beam * sum(n * (n + 1) // 2 for n in steps),
        "cross": rows * source,
    }
    return count(model, queries, keys, pairs)


def count(
    model: Transformer, queries: Mapping[str, int], keys: Mapping[str, int], pairs: Mapping[str, int]
) -> dict[str, int]:
    """By part, from what each kind of attention sees: positions that ask, positions whose keys and values are
    computed, and pairs of one that asks and one that is looked at."""
    counts = dict.fromkeys(PARTS, 0)
    for site, attention in find_sites(model).items():
        assert isinstance(attention, MultiHeadAttention)
        width = attention.heads * attention.head_width  # H * K
        projected = 2 * queries[site.kind] + 2 * keys[site.kind]  # q and W_O, k and v
        counts[site.kind] += (
            projected * width * attention.out_proj.out_features + 2 * pairs[site.kind] * width
        )
    units = [module for module in model.decoder.modules() if isinstance(module, SSRU)]
    counts["dec-self"] += queries["dec-self"] * sum(
        unit.forget.weight.numel() + unit.update.weight.numel() for unit in units
    )
    for stack, positions in ((model.encoder, queries["enc-self"]), (model.decoder, queries["dec-self"])):
        feeds = [module for module in stack.modules() if isinstance(module, FeedForward)]
        counts["ffn"] += positions * sum(
            feed.inner.weight.numel() + feed.outer.weight.numel() for feed in feeds
        )
    counts["output"] = queries["dec-self"] * model.output.weight.numel()
    return counts


def saved_share(whole: Mapping[str, int], less: Mapping[str, int]) -> float:
    """Return the share of the multiply-adds of `whole` that `less` saves; negative if it needs more."""
    return 1 - sum(less.values()) / sum(whole.values())
