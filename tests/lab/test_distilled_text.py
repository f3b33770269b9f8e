"""`--distill.sequences`: stages that start from the base learn from its own translations, which it makes
once."""

import shutil
from dataclasses import replace

import pytest
import torch

from headgates.configs.cli import ConfigError, read_command
from headgates.configs.settings import Settings
from headgates.data import Corpus
from headgates.data.corpus import make_vocabs
from headgates.data.text import ParallelText
from headgates.lab.distilled_text import distilled_data, distilled_lines, distilled_pairs, with_targets
from headgates.lab.experiment_text import ExperimentText
from headgates.lightning_modules import stage as stages
from headgates.pruning.make import make, recipe_key
from headgates.records.folder import RunFolder
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


def test_stages_train_on_what_a_named_teacher_writes_and_learn_its_numbers(lab_of, base, runs, monkeypatch):
    """And a run that learned from another teacher is another run."""
    learned = {}
    run_stage = stages.run_stage

    def record(name, module, data, *rest, **how):
        learned[name] = data.corpus.train.targets, module.distilling.teacher
        return run_stage(name, module, data, *rest, **how)

    monkeypatch.setattr(stages, "run_stage", record)
    (teacher,) = map(RunFolder, runs.glob("*-unpruned-*"))
    flags = ["--distill.sequences", 1, "--distill.weight", 0.5, "--distill.teacher", teacher.path]
    lab = lab_of(*flags)
    row = make(lab, base, TRAINED)
    source = open_source(teacher.path, teacher.own_system(), device="cpu")
    expected = source.predictor.translate(list(source.corpus.train.sources))
    assert expected != open_source(base.path, device="cpu").predictor.translate(
        list(source.corpus.train.sources)
    ), "or the test could not tell them apart"
    targets, model = learned["training"]
    assert list(targets) == [
        line or own for line, own in zip(expected, source.corpus.train.targets, strict=True)
    ]
    theirs = source.predictor.model.state_dict()
    assert all(torch.equal(weight.cpu(), theirs[name]) for name, weight in model.state_dict().items())
    assert not (base / "distilled").exists()
    others = [recipe_key(lab_of(*flags[:4], *more), base, TRAINED) for more in ([], flags[4:])]
    assert others[0] != others[1] == recipe_key(lab, base, row.recipe)


@pytest.mark.parametrize("what", ["missing", "unfinished", "of another vocabulary"])
def test_a_teacher_that_cannot_teach_is_refused_before_anything_is_trained(lab_of, base, runs, what):
    teacher = RunFolder(shutil.copytree(base.path, runs / "teacher"))
    words = {"missing": "teacher", "unfinished": "is not finished", "of another vocabulary": "its vocabulary"}
    if what == "missing":
        shutil.rmtree(teacher.path)
    elif what == "unfinished":
        (teacher / "result.json").unlink()
    else:
        text = ["one two three", "a b c d"] * 50
        corpus = Corpus(*(ParallelText(text, text) for _ in range(3)), "own", "letters")
        for file in teacher.path.glob("vocab*"):
            file.unlink()
        make_vocabs(corpus, teacher.path, size=30, joint=True, pairs=0)
    before = set(runs.glob("[!.]*"))
    with pytest.raises(ValueError, match=words[what]):
        make(lab_of("--distill.weight", 0.5, "--distill.teacher", teacher.path), base, TRAINED)
    assert set(runs.glob("[!.]*")) == before


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
