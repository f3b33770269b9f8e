"""Translators with some of their pieces, against the whole ones: the same logits, and the same translations
of the text that they were trimmed to."""

import pytest
import torch

from headgates.configs.settings import SearchConfig
from headgates.data.batch import pad
from headgates.data.text import DataError
from headgates.models.trimmed import cut_otherwise, trim_model, with_pieces
from tests.worlds.translators import TARGETS

CASES = {
    "one table": {"joint": True, "embeddings": "tied"},
    "one vocabulary, two tables": {"joint": True, "embeddings": "tied-decoder", "output_bias": True},
    "one vocabulary, three tables": {"joint": True, "embeddings": "separate"},
    "two vocabularies": {"embeddings": "tied-decoder"},
    "two vocabularies, a bias, fewer heads": {
        "embeddings": "separate",
        "output_bias": True,
        "closed": "uneven",
    },
}
TEXT = ["dogs sleep", "the cat"]


def made(make_translator, name: str):
    return make_translator(**CASES[name], search=SearchConfig(beam=1, max_ratio=0, max_extra=9))


def written_by(translator, lines: list[str]) -> list[list[int]]:
    return [best[0].ids for best in translator.n_best(translator.encode(lines), translator.search)]


@pytest.mark.parametrize("name", CASES)
def test_the_text_s_translations_are_those_of_the_whole_model(make_translator, tmp_path, name):
    whole = made(make_translator, name)
    written = written_by(whole, TEXT)
    less, (source, target) = trim_model(whole, tmp_path, TEXT, TARGETS[:1], written)
    assert (source == target) == (whole.source_vocab is whole.target_vocab)
    assert [[target[i] for i in ids] for ids in written_by(less, TEXT)] == written
    assert less.translate(TEXT) == whole.translate(TEXT)
    assert (len(source), len(target)) == (len(less.source_vocab), len(less.target_vocab))
    assert len(source) < len(whole.source_vocab)
    assert less.model.heads == whole.model.heads
    both = [sum(each.numel() for each in one.model.parameters()) for one in (whole, less)]
    width, fewer = whole.model.config.d_model, len(whole.source_vocab) - len(source)
    assert both[0] - both[1] >= width * fewer
    assert cut_otherwise(whole.target_vocab, less.target_vocab, TARGETS[:1]) == 0


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_piece_that_stays_has_the_logit_that_it_had(make_translator, name):
    whole = made(make_translator, name).model
    source = [*range(4), 5, 7, 11, 13]
    target = source if CASES[name].get("joint") else [*range(4), 6, 10]
    less = with_pieces(whole, (source, target))
    old = [[5, 13, 7], [11]], [[target[5]], [target[4], target[5], target[4]]]
    new = (
        [[source.index(i) for i in row] for row in old[0]],
        [[target.index(i) for i in row] for row in old[1]],
    )
    logits = []
    for model, (sources, targets) in ((whole, old), (less, new)):
        inputs = pad(targets, model.target_specials, begin=True)
        logits.append(model(pad(sources, model.source_specials, end=True), inputs))
    torch.testing.assert_close(logits[1], logits[0][..., target])


def test_the_special_tokens_move_with_their_pieces(make_translator):
    whole = made(make_translator, "two vocabularies").model
    less = with_pieces(whole, ([9, 3, 2, 1, 0], [0, 1, 2, 3]))
    specials = less.source_specials
    assert (specials.padding, specials.beginning, specials.end, specials.unknown) == (4, 3, 2, 1)
    assert torch.equal(less.source_embedding.weight[0], whole.source_embedding.weight[9])


def test_one_table_cannot_have_two_sets_of_pieces(make_translator):
    with pytest.raises(ValueError, match="the same pieces on both"):
        with_pieces(made(make_translator, "one table").model, ([0, 1, 2, 3], [0, 1, 2, 3, 4]))


def test_a_tokenizer_that_would_cut_the_text_otherwise_is_refused(make_translator, tmp_path, monkeypatch):
    whole = made(make_translator, "two vocabularies")
    monkeypatch.setattr(
        "headgates.data.trimming.PieceFile.needed",
        lambda self, used: {piece.name for piece in self.pieces if piece.kind != 1 or len(piece.name) == 1},
    )
    with pytest.raises(DataError, match=r"cuts 2 lines of the text in another way"):
        trim_model(whole, tmp_path, TEXT, [], [])
