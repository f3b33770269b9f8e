"""What the task of translation gives to others: where relevance begins, and a run's translator."""

import shutil

import pytest
import sacrebleu
import torch

from headgates.analysis.significance import score
from headgates.configs.stages import DistillConfig
from headgates.data.batch import collate
from headgates.data.special_tokens import SpecialTokens
from headgates.models.translator import token_log_probs
from headgates.tasks import task_of
from headgates.tasks.translation import Translation
from tests.worlds.one_by_one import in_batches
from tests.worlds.runs import write_run

PAIRS = [([7, 5, 11], [5, 7]), ([8, 6, 22, 4], [18]), ([21], [])]


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "post", "output_bias": True, "embedding_norm": True, "activation": "gelu"},
        {"norm": "pre", "decoder_mixer": "ssru", "activation": "swish"},
    ],
)
def test_a_translation_s_relevance_begins_at_the_models_own_top_logits(make_model, settings):
    model, batch = make_model(**settings), in_batches(PAIRS, 3)[0]
    logits, real = model(batch.source, batch.target_in), batch.target_out != 0
    top, found = Translation().top_logits(model, batch)
    torch.testing.assert_close(top, logits.max(-1).values * real)
    assert torch.equal(found, real)


def test_a_forced_first_piece_has_no_loss_and_is_no_word(make_model):
    """The model reads it and is not asked for it, so no head is worth anything for it."""
    target = SpecialTokens(forced=(4,))
    pairs = [(source, [4, *own]) for source, own in PAIRS]
    model, batch = make_model(), collate(pairs, range(3), 1, target_specials=target)
    model.target_specials = target
    ids = [torch.tensor([[1, *own, 2]]) for _, own in pairs]
    sources = [torch.tensor([[*source, 2]]) for source, _ in pairs]
    asked = [-token_log_probs(model, *pair)[0, 1:].sum() for pair in zip(sources, ids, strict=True)]
    torch.testing.assert_close(Translation().losses(model, batch), torch.stack(asked))
    torch.testing.assert_close(Translation().loss(model, batch), sum(asked))
    assert batch.target_tokens == sum(len(own) + 1 for _, own in PAIRS)
    assert int(Translation().top_logits(model, batch)[1].sum()) == batch.target_tokens
    assert target.is_piece(batch.target_in).sum() == sum(len(own) for _, own in PAIRS)


@pytest.mark.parametrize("taught", [False, True])
def test_padding_both_sides_to_one_length_in_bf16_leaves_the_loss_and_makes_one_shape(
    make_model, monkeypatch, taught
):
    model = make_model()
    shapes, encode = [], model.encode

    def noting(source):
        shapes.append(tuple(source.shape))
        return encode(source)

    def loss(batch):
        if not taught:
            return Translation().loss(model, batch, smoothing=0.1)
        config = DistillConfig(weight=0.3)
        return Translation().distilled_loss(model, model, batch, smoothing=0.1, distill=config)

    monkeypatch.setattr(model, "encode", noting)
    for pairs in (PAIRS, [([7, 5], [5, 7, 11, 6]), ([8], [18]), ([9], [])]):
        batch = in_batches(pairs, 3)[0]
        exact = loss(batch)
        square = batch.square(model.source_specials, model.target_specials)
        torch.testing.assert_close(loss(square), exact)
        with torch.autocast("cpu", torch.bfloat16):
            shapes.clear()
            torch.testing.assert_close(loss(batch), exact, rtol=0.02, atol=0)
            assert set(shapes) == {(3, 5)}


def test_a_vocabulary_of_another_size_is_refused(make_translator, tmp_path):
    translator = make_translator()
    run = write_run(tmp_path / "run", translator, None)
    shutil.copy(run / "vocab.src.model", run / "vocab.tgt.model")
    pieces = len(translator.target_vocab), len(translator.source_vocab)
    with pytest.raises(
        ValueError,
        match=rf"has {pieces[0]} pieces on the target side, and its vocabulary .* has {pieces[1]}: it is ano",
    ):
        Translation().load_predictor(run.path, run / "best.pt", {})


@pytest.mark.parametrize(
    ("tgt", "tokenizer", "output", "reference"),
    [
        ("de", "13a", "Der Hund schläft.", "Der Hund schläft nie."),
        ("zho_Hans", "zh", "小狗正在睡觉。", "小狗在睡觉吗？"),
        ("ja", "char", "犬が眠っている。", "猫が眠っている。"),
    ],
)
def test_a_sentence_without_spaces_is_not_one_word_of_bleu(tgt, tokenizer, output, reference):
    task = task_of({"task": "translation", "tgt": tgt})
    wanted = sacrebleu.corpus_bleu([output], [[reference]], tokenize=tokenizer).score
    found = score([output], [reference], task.metrics)
    assert found.main == pytest.approx(wanted, abs=1e-9)
    assert wanted > 5
    assert f"tok:{tokenizer}" in found.signatures["bleu"]
