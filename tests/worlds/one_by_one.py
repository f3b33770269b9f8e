"""Attention the slow way, to compare analyses with: one pair at a time, without padding, one head and one
query after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from headgates.configs.settings import ModelConfig
from headgates.data.batch import Batch, collate
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadMap, HeadSite
from headgates.models.transformer import Transformer

BOS, EOS = SpecialTokens().beginning, SpecialTokens().end

VOCAB = 31
Pair = tuple[list[int], list[int]]
# removal leaves uneven sites, and may leave none
HEADS = {"encoder.1.enc-self": 2, "decoder.0.cross": 1, "decoder.1.dec-self": 0}


@dataclass(frozen=True)
class Look:
    """One query of one head: the weights of the keys that count, by position."""

    site: str
    head: int
    pair: int
    query: int
    keys: dict[int, float]

    @property
    def argmax(self) -> int:
        return min(self.keys, key=lambda key: (-self.keys[key], key))


def random_model(seed: int = 0) -> Transformer:
    """A small model of random, sharp heads with uneven sites; its dropout would show."""
    torch.manual_seed(seed)
    config = ModelConfig(
        d_model=15, ffn=7, heads=3, encoder_layers=2, decoder_layers=2, dropout=0.3, attention_dropout=0.2
    )
    model = Transformer(config, VOCAB, VOCAB, HEADS).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def random_pairs(seed: int = 0) -> list[Pair]:
    """Of many lengths, sentences of one token and of none among them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [(2, 5), (7, 3), (1, 1), (11, 13), (1, 7), (5, 1), (4, 2), (13, 11), (0, 2), (3, 0)]
    return [
        tuple(torch.randint(4, VOCAB, (length,), generator=generator).tolist() for length in both)
        for both in lengths
    ]


def in_batches(pairs: Sequence[Pair], size: int) -> list[Batch]:
    """The pairs in their order; `index` is their number."""
    return [
        collate(pairs[i : i + size], list(range(i, min(i + size, len(pairs)))), 1)
        for i in range(0, len(pairs), size)
    ]


def looks(model: Transformer, pairs: Sequence[Pair], exclude: str = "both") -> Iterator[Look]:
    """Every query of every head that counts and has a key that counts."""
    for number, (source, target) in enumerate(pairs):
        read, produced, source = [BOS, *target], [*target, EOS], [*source, EOS]
        weights: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            model(torch.tensor([source]), torch.tensor([read]), weights)
        for site, each in weights.items():
            queries, keys = {
                "enc-self": (source, source),
                "dec-self": (read, read),
                "cross": (produced, source),
            }[site.split(".")[2]]
            for head in range(each.shape[1]):
                for i, token in enumerate(queries):
                    if exclude in ("both", "query") and token in (BOS, EOS):
                        continue
                    row = {
                        j: float(each[0, head, i, j])
                        for j, key in enumerate(keys)
                        if ("dec-self" not in site or j <= i)
                        and (exclude in ("none", "query") or key not in (BOS, EOS))
                    }
                    if row:
                        yield Look(site, head, number, i, row)


def mean_map(values: dict[tuple[str, int], list[float]]) -> HeadMap:
    """The mean of each head's values."""
    rows: dict[str, list[float]] = {}
    for site, head in sorted(values):
        rows.setdefault(site, []).append(sum(values[site, head]) / len(values[site, head]))
    return HeadMap({HeadSite.parse(site, len(row)): row for site, row in rows.items()})


def assert_equal(ours: HeadMap, loop: HeadMap) -> None:
    assert list(ours) == list(loop)
    for site in loop:
        torch.testing.assert_close(ours[site], loop[site], rtol=1e-5, atol=1e-6)
