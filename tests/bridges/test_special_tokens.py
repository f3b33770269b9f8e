"""Exported models whose special tokens have other ids: their folders say which, and are opened with them."""

import pytest
import sentencepiece
import torch

from headgates.bridges.formats import export, open_exported
from headgates.configs.schema import ModelConfig, SearchConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.data.vocab import Vocab
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from tests.worlds.translators import SOURCES, TARGETS, settled

SMALL = {
    "d_model": 21,
    "heads": 3,
    "ffn": 13,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "embeddings": "separate",
}
NUMBERINGS = [  # as the vocabulary's file has them, and as the model uses them
    (
        {"pad_id": 1, "bos_id": 0, "eos_id": 2, "unk_id": 3},
        SpecialTokens(padding=1, beginning=0, end=2, unknown=3),
    ),
    (
        {"pad_id": 2, "bos_id": -1, "eos_id": 0, "unk_id": 1},
        SpecialTokens(padding=2, beginning=2, end=0, unknown=1),
    ),  # as Marian
    (
        {"pad_id": 1, "bos_id": 0, "eos_id": 2, "unk_id": 3},
        SpecialTokens(padding=1, beginning=2, end=2, unknown=3),
    ),  # as fairseq
]


@pytest.mark.parametrize(("numbers", "specials"), NUMBERINGS)
def test_an_exported_folder_keeps_the_special_tokens(tmp_path, numbers, specials):
    pytest.importorskip("ctranslate2")
    path = tmp_path / "other.model"
    options = {"vocab_size": 97, "hard_vocab_limit": False, "model_type": "bpe", "minloglevel": 2, **numbers}
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((SOURCES + TARGETS) * 3), model_writer=file, **options
        )
    vocab = Vocab.load(path, specials)
    torch.manual_seed(7)
    model = Transformer(
        ModelConfig(**SMALL), len(vocab), len(vocab), source_specials=specials, target_specials=specials
    ).eval()
    translator = settled(Translator(model, vocab, vocab, SearchConfig(beam=3, max_ratio=1.0, max_extra=7)))
    # the parity of scores, greedy and beam search is checked here
    about = export(translator, "ct2", tmp_path / "exported", lines=SOURCES, references=TARGETS, facts={})
    assert SpecialTokens(**about["architecture"]["target_specials"]) == specials
    opened = open_exported(tmp_path / "exported")
    assert (opened.source_vocab.specials, opened.target_vocab.specials) == (specials, specials)
    assert opened.translate(SOURCES) == translator.translate(SOURCES)
