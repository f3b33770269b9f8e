"""`--distill.sequences`: stages that start from the base learn from its own translations, which it makes
once."""

from dataclasses import replace

import pytest

from headgates.configs.cli import ConfigError, read_command
from headgates.configs.settings import Settings
from headgates.data.text import ParallelText
from headgates.lab.distilled_text import distilled_data, distilled_lines, distilled_pairs, with_targets
from headgates.lab.experiment_text import ExperimentText
from headgates.lightning_modules import stage as stages
from headgates.pruning.make import make
from headgates.records.source import open_source
from headgates.tasks.translation import Translation
from tests.worlds.finished_runs import TRAINED


@pytest.fixture
def translated(monkeypatch):
    """The lines that were translated."""
    lines = []
    outputs = Translation.outputs

    def record(task, predictor, asked, **how):
        lines.extend(asked)
        return outputs(task, predictor, asked, **how)

    monkeypatch.setattr(Translation, "outputs", record)
    return lines


def test_stages_from_the_base_train_on_what_the_base_writes(lab_of, base, monkeypatch):
    trained = {}
    run_stage = stages.run_stage

    def record(name, module, data, *rest, **how):
        trained[name] = data.corpus.train
        return run_stage(name, module, data, *rest, **how)

    monkeypatch.setattr(stages, "run_stage", record)
    make(lab_of("--distill.sequences", 1), base, TRAINED)
    assert set(trained) == {"base-continued", "training"}
    source = open_source(base.path, device="cpu")
    written = source.corpus.train
    expected = source.predictor.translate(
        list(written.sources)
    )  # all at once, in another order than in chunks
    for text in trained.values():
        assert list(text.sources) == list(written.sources)
        assert list(text.targets) == [
            line or own for line, own in zip(expected, written.targets, strict=True)
        ]
    assert any(line != own for line, own in zip(expected, written.targets, strict=True)), (
        "or nothing would be learned"
    )


def test_a_share_is_a_fixed_sample_and_validation_is_as_written(configure, base):
    text = ExperimentText(configure("--distill.sequences", "0.25"))
    numbers, lines = distilled_pairs(text), distilled_lines(text, base)
    assert len(numbers) == len(lines) == round(0.25 * len(text.corpus.train))
    assert numbers == distilled_pairs(ExperimentText(configure("--distill.sequences", "0.25", "--seed", "2")))
    data = distilled_data(text, base, base)
    assert data is distilled_data(text, base, base)
    other = {
        i
        for i, pair in enumerate(zip(data.corpus.train.targets, text.corpus.train.targets, strict=True))
        if pair[0] != pair[1]
    }
    assert other
    assert other <= set(numbers)
    assert data.corpus.valid is text.corpus.valid
    assert text.data(base).corpus.train is text.corpus.train


def test_the_base_translates_once_and_a_broken_file_is_refused_unless_fresh(configure, base, translated):
    config = configure("--distill.sequences", "0.5")
    first = distilled_lines(ExperimentText(config), base)
    assert len(translated) == len(first)
    (file,) = (base / "distilled").iterdir()
    assert distilled_lines(ExperimentText(config), base) == first
    assert len(translated) == len(first)
    file.write_text("torn\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"is broken .*--fresh"):
        distilled_lines(ExperimentText(config), base)
    assert distilled_lines(ExperimentText(replace(config, fresh=True)), base) == first
    assert len(translated) == 2 * len(first)
    other = ExperimentText(replace(config, search=replace(config.search, beam=config.search.beam + 1)))
    distilled_lines(other, base)
    assert len(list((base / "distilled").iterdir())) == 2


def test_a_line_without_words_leaves_the_written_target():
    text = ParallelText(["a", "b", "c"], ["A", "B", "C"], {"empty": 1})
    distilled = with_targets(text, [0, 2], ["", "new"])
    assert (distilled.sources, distilled.targets, distilled.skipped) == (
        ["a", "b", "c"],
        ["A", "B", "new"],
        {"empty": 1},
    )
    assert text.targets == ["A", "B", "C"]


def test_only_what_translates_writes_translations(configure):
    with pytest.raises(
        ConfigError, match=r"--distill\.sequences: a base of this task writes no translations"
    ):
        read_command(Settings, ["--task", "classify", "--encoder", "any", "--distill.sequences", "1"])
    with pytest.raises(ConfigError, match="at most 1"):
        configure("--distill.sequences", "1.5")
