"""What is said of a text before anything is trained on it."""

from dataclasses import replace

import pytest

from headgates.configs.settings import ModelConfig, Settings
from headgates.data import Corpus
from headgates.data.corpus import make_vocabs
from headgates.data.text import DataError, ParallelText
from headgates.lab.experiment_text import ExperimentText
from headgates.records.folder import RunFolder
from headgates.tasks.translation import Translation

LINES = [f"{word} sleeps in the house" for word in ("dog", "cat", "bird")] * 40
NONE = ParallelText([], [])


def with_long(text: ParallelText, number: int) -> ParallelText:
    """With one line that is much longer than all others."""
    sources = [" ".join([line] * (60 if i == number else 1)) for i, line in enumerate(text.sources)]
    return replace(text, sources=sources)


def test_text_without_a_test_split_is_refused(configure, corpus):
    with pytest.raises(DataError, match="has no 'test' text; it has train, valid"):
        ExperimentText(configure(), replace(corpus, test=NONE))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_line_beyond_learned_positions_is_said_at_once_and_no_sample_has_one(
    configure, corpus, tmp_path, positions
):
    """It would end the run after the first epoch, or after the last."""
    settings = configure("--model.positions", positions, "--set", "model.max_positions=64")
    make_vocabs(corpus, tmp_path / "run", size=47, joint=True)
    long = replace(corpus, valid=with_long(corpus.valid, 1))
    text = ExperimentText(settings, long)
    text.data(RunFolder(tmp_path / "run"))
    found = text.sample(settings.train)
    assert len(found[0]) == len(found[1]) > 1
    assert long.valid.sources[1] not in found[0]
    assert text.sample(replace(settings.train, bleu_sentences=0)) == ([], [])
    beyond = ExperimentText(settings, replace(corpus, test=with_long(corpus.test, 2)))
    if positions == "learned":
        with pytest.raises(
            DataError, match=r"test line 3 has \d+ tokens, and the model's positions, which are"
        ):
            beyond.data(RunFolder(tmp_path / "run"))
        few = replace(settings, test_sentences=2)  # which leave it out
        ExperimentText(few, beyond.corpus).data(RunFolder(tmp_path / "run"))
    else:
        beyond.data(RunFolder(tmp_path / "run"))


def test_some_of_labelled_text_are_of_all_labels_though_it_is_sorted_by_them():
    text = ParallelText(LINES, ["neg"] * 60 + ["pos"] * 60, columns=("sentence",))
    assert {*text.first(20).targets} == {"neg", "pos"}
    assert len(text.first(20)) == 20
    assert text.first(20) == text.first(20)


def test_a_classifier_takes_longer_texts_than_a_translation_model_and_has_no_decoder_to_freeze():
    sizes = ModelConfig(max_positions=64)
    with pytest.raises(ValueError, match=r"expected less than model\.max_positions 64"):
        Settings(model=sizes, text=replace(Settings().text, max_length=70))
    Settings(task="classify", text=replace(Settings().text, max_length=400))
    with pytest.raises(ValueError, match="an encoder has no decoder"):
        Settings(task="classify", freeze_decoder=True)


def test_chinese_and_japanese_come_back_as_they_are_and_their_bases_are_others(tmp_path):
    lines = ["你好，世界！", "他说：“今天（星期一）下雨。”"] * 30
    text = ParallelText(["hello"] * len(lines), lines)
    for language, kept in (("zho_Hans", True), ("ja", True), ("de", False)):
        corpus = Corpus(text, text, text, "own", "lines", "en", language)
        _, vocab = make_vocabs(corpus, tmp_path / language, size=60, joint=False)
        assert (vocab.decode(vocab.encode(lines)) == lines) is kept
        key = Translation().cache_key(replace(Settings(), src="en", tgt=language))
        assert bool(key) is kept


def test_a_folder_that_is_named_by_a_dot_has_its_own_name(tmp_path, monkeypatch):
    (tmp_path / "reviews").mkdir()
    monkeypatch.chdir(tmp_path / "reviews")
    names = {"data": ".", "src": "en", "tgt": "fr"}
    assert Translation().run_words(names)[0] == "reviews-en-fr"
