"""One model twice: with the special tokens numbered as in our vocabularies, and otherwise. Both must say the
same of the same text."""

import random

import torch
from torch import Tensor

from headgates.configs.settings import ModelConfig, SearchConfig
from headgates.data.batch import Batch, collate
from headgates.data.special_tokens import SpecialTokens
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

SOURCE_VOCAB, TARGET_VOCAB = 23, 19
OTHERWISE = {
    "padding after beginning": SpecialTokens(padding=1, beginning=0, end=2, unknown=3),
    "among the pieces": SpecialTokens(padding=17, beginning=11, end=5, unknown=7),
    "decoder starts with the padding": SpecialTokens(padding=7, beginning=7, end=0, unknown=1),  # as Marian
    "decoder starts with the end": SpecialTokens(padding=1, beginning=2, end=2, unknown=3),  # as fairseq
}
PAIRS = [
    ([7, 5, 11, 4, 9, 13], [5, 7]),
    ([8, 6, 22], [18, 4, 9, 11]),
    ([12, 4, 3, 17], [6]),
    ([21], []),
    ([9, 9], [12, 3, 16, 5, 6]),
]
LINES = [" ".join(map(str, source)) for source, _ in PAIRS] + ["", "20 19 18 17 16 15 14 13", "6 6 6"]


class Numbers:
    """A vocabulary whose lines are numbers as in ours ("3 5"), and whose ids are others: number i has the id
    ids[i]."""

    path = "numbers"

    def __init__(self, size: int, specials: SpecialTokens):
        self.specials = specials
        free = [
            i
            for i in range(size)
            if i not in (specials.padding, specials.beginning, specials.end, specials.unknown)
        ]
        if specials != SpecialTokens():
            random.Random(1).shuffle(free)
        self.ids = [specials.padding, specials.beginning, specials.end, specials.unknown, *free][:size]

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, lines: list[str]) -> list[list[int]]:
        return [[self.ids[int(word)] for word in line.split()] for line in lines]

    def decode(self, ids_list: list[list[int]]) -> list[str]:
        return [" ".join(str(self.ids.index(i)) for i in ids) for ids in ids_list]

    def rows(self, table: Tensor, winner: int) -> Tensor:
        """The rows of our numbers under their ids. Where two numbers share an id, it is that of `winner`; an
        id of no number has row 0."""
        moved = table[:1].repeat(len(table), 1)
        moved[self.ids] = table
        moved[self.ids[winner]] = table[winner]
        return moved


def twins(specials: SpecialTokens, seed: int = 20) -> tuple[Translator, Translator]:
    """A random model with our ids, and the same with `specials` and its pieces numbered anyhow. Padding and
    beginning have next to no probability, for where they share an id there is one token that could be
    produced instead."""
    torch.manual_seed(seed)
    config = ModelConfig(
        d_model=21,
        heads=3,
        ffn=13,
        encoder_layers=2,
        decoder_layers=2,
        dropout=0.0,
        attention_dropout=0.0,
        embeddings="separate",
    )
    ours = Transformer(config, SOURCE_VOCAB, TARGET_VOCAB)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        ours.decoder.norm.weight[0], ours.decoder.norm.bias[0] = 0.0, 30.0
        ours.output.weight *= 3.0
        ours.output.weight[:, 0] = 0.0
        ours.output.weight[:2] = 0.0
        ours.output.weight[:2, 0] = -1.0
    theirs = Transformer(
        config, SOURCE_VOCAB, TARGET_VOCAB, source_specials=specials, target_specials=specials
    )
    source, target = Numbers(SOURCE_VOCAB, specials), Numbers(TARGET_VOCAB, specials)
    state = ours.state_dict()
    state["source_embedding.weight"] = source.rows(state["source_embedding.weight"], winner=2)
    state["target_embedding.weight"] = target.rows(state["target_embedding.weight"], winner=1)
    state["output.weight"] = target.rows(state["output.weight"], winner=2)
    theirs.load_state_dict(state)
    search = SearchConfig(beam=3, max_ratio=1.0, max_extra=5, batch_tokens=61)
    our_vocabs = Numbers(SOURCE_VOCAB, SpecialTokens()), Numbers(TARGET_VOCAB, SpecialTokens())
    return Translator(ours.eval(), *our_vocabs, search), Translator(theirs.eval(), source, target, search)


def batches(translator: Translator, pairs: list = PAIRS, size: int = 3) -> list[Batch]:
    """The pairs, given in our numbers, as the translator's model reads them."""
    source, target = translator.source_vocab, translator.target_vocab
    own = [([source.ids[i] for i in left], [target.ids[i] for i in right]) for left, right in pairs]
    starts = range(0, len(own), size)
    return [
        collate(
            own[i : i + size], list(range(i, min(i + size, len(own)))), 1, source.specials, target.specials
        )
        for i in starts
    ]
