"""Exact numbers of multiply-adds of a model, to compare the measured gain of a smaller model with.

Counted are the products: projections of attention, scores q k^T, weights times values, feed-forward, output
projection. Not counted: norms, softmaxes, embeddings, biases and gates. Padding counts.
Heads are read from the modules, so sites may have different numbers; a site without heads asks for nothing.
Letters: k beam, S source, T target positions, D model width, H heads, K head width, V vocabulary.
"""

from collections.abc import Sequence

from headgates.gates import find_sites
from headgates.models.attention import MultiHeadAttention
from headgates.models.ssru import SSRU
from headgates.models.transformer import FeedForward, Transformer

PARTS = ("enc-self", "dec-self", "cross", "ffn", "output")


def decoding(model: Transformer, *, source: int, steps: Sequence[int], beam: int) -> dict[str, int]:
    """Multiply-adds, by part, of a search over one batch that keeps keys and values and drops a sentence when
    it is finished.

    source: S positions of every source, padding included. steps: of each sentence, the steps it was open for,
    which is the length of its longest hypothesis, the end included. Step t has t past positions; the encoder
    and the keys of its memory are computed once a sentence, everything else for each of the k rows."""
    read, written = len(steps) * source, beam * sum(steps)  # positions
    past = beam * sum(n * (n + 1) // 2 for n in steps)
    counts = dict.fromkeys(PARTS, 0)
    queries = {"enc-self": read, "dec-self": written, "cross": written}
    keys = queries | {"cross": read}
    # pairs of a position that asks and one that is looked at
    looks = {"enc-self": read * source, "dec-self": past, "cross": written * source}
    for site, attention in find_sites(model).items():
        assert isinstance(attention, MultiHeadAttention)
        width = attention.heads * attention.head_width  # H * K
        projected = 2 * queries[site.kind] + 2 * keys[site.kind]  # q and W_O, k and v
        counts[site.kind] += width * (projected * attention.out_proj.out_features + 2 * looks[site.kind])
    units = [module for module in model.decoder.modules() if isinstance(module, SSRU)]
    counts["dec-self"] += written * sum(
        unit.forget.weight.numel() + unit.update.weight.numel() for unit in units
    )
    for stack, positions in ((model.encoder, read), (model.decoder, written)):
        feeds = [module for module in stack.modules() if isinstance(module, FeedForward)]
        counts["ffn"] += positions * sum(
            sum(part.weight.numel() for part in (feed.inner, feed.factor, feed.outer) if part is not None)
            for feed in feeds
        )
    counts["output"] = written * model.output.weight.numel()
    return counts
