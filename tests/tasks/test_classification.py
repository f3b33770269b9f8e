"""Classification by a fine-tuned encoder: its loss and importance against loops over sentences, then every
command on one small run."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F

from headgates.analysis.scores.importance import raw_importance
from headgates.commands import analyze, export, fit, prune, translate
from headgates.configs.cli import read_command
from headgates.configs.recipe import Lambda, Recipe
from headgates.configs.settings import Settings
from headgates.data.labelled import labelled_corpus
from headgates.gates import HeadMap, attach, detach, find_sites
from headgates.records.folder import RunFolder, find_runs
from headgates.records.source import open_source
from headgates.tasks import task_named
from headgates.tasks.base import Task
from tests.worlds.finished_runs import made
from tests.worlds.runs import well

SETTINGS = {"text": {"max_tokens": 61, "max_length": 20, "train_sentences": 0}, "seed": 1}
SYSTEMS = ["base", "base-continued", "pruned"]
FLAGS = (
    "--task classify --text.max-tokens 100 --text.max-length 20 --threads 1 --precision 32 "
    "--train.epochs 3 --train.lr 0.005 --train.warmup-steps 10 --train.average 0 --train.label-smoothing 0 "
    "--finetune.lr 0.001 --set finetune.warmup_steps=5 "
    "--gates.lr 0.1 --gates.lambda-warmup 3 --gates.settle 0.67"
)


def flags_of(encoder, labelled, *more) -> list[str]:
    return [*FLAGS.split(), "--encoder", str(encoder), "--data", str(labelled), *more]


def test_a_new_task_must_say_what_its_outputs_depend_on():
    assert "prediction_settings" in Task.__abstractmethods__


@pytest.fixture(scope="module")
def task() -> Task:
    return task_named("classify")


@pytest.fixture(scope="module")
def untrained(task, encoder, labelled, tmp_path_factory):
    """A new predictor with weights that make sentences differ, and its batches."""
    torch.set_num_threads(1)
    folder, corpus = tmp_path_factory.mktemp("untrained"), labelled_corpus(str(labelled))
    config = read_command(Settings, flags_of(encoder, labelled))
    task.prepare_folder(folder, corpus, config)
    torch.manual_seed(7)
    predictor = task.new_predictor(folder, config)
    with torch.no_grad():
        for parameter in predictor.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    predictor.model.eval()
    return predictor, task.data(folder, corpus, SETTINGS)


def one_by_one(predictor, data):
    """(logits (C,), label) of every validation sentence, each alone."""
    for source, (label,) in data.split("valid").pairs:
        yield predictor.model(torch.tensor([[*source, predictor.source_vocab.specials.end]]))[0], label


def test_loss_and_validation_are_those_of_the_sentences_one_by_one(task, untrained):
    predictor, data = untrained
    seen, ours, each = torch.zeros(3), 0.0, []
    with torch.no_grad():
        for batch in data.batches("valid", 61):
            assert batch.target_tokens == len(batch)  # a sentence is the unit
            ours += float(task.loss(predictor.model, batch, smoothing=0.1))
            each += task.losses(predictor.model, batch).tolist()
            seen += torch.tensor([*task.counted(predictor.model, batch), len(batch)])
        rows = list(one_by_one(predictor, data))
    losses = [
        [float(F.cross_entropy(row, torch.tensor(label), label_smoothing=e)) for row, label in rows]
        for e in (0.1, 0.0)
    ]
    assert ours == pytest.approx(sum(losses[0]), rel=1e-5)
    assert sorted(each) == pytest.approx(sorted(losses[1]), rel=1e-4, abs=1e-6)
    found = task.validation(*(seen[:2] / seen[2]))
    right = [int(logits.argmax()) == label for logits, label in rows]
    assert float(found["label_accuracy"]) == pytest.approx(sum(right) / len(rows))
    assert float(found["loss"]) == pytest.approx(sum(losses[1]) / len(rows), rel=1e-5)


def test_importance_is_the_mean_over_sentences_of_the_size_of_each_gradient(task, untrained):
    predictor, data = untrained
    ours = raw_importance(predictor.model, data.batches("valid", 61), loss=task.loss)
    bank = attach(predictor.model, gate="mask")
    totals = {site: torch.zeros(site.heads, dtype=torch.float64) for site in bank.sites}
    xi = {site: torch.ones(site.heads, requires_grad=True) for site in bank.sites}
    for site, gate in bank.items():
        gate.register_forward_hook(lambda *_, one=xi[site]: one)
    count = 0
    for logits, label in one_by_one(predictor, data):
        loss, count = F.cross_entropy(logits, torch.tensor(label)), count + 1
        for site, gradient in zip(xi, torch.autograd.grad(loss, list(xi.values())), strict=True):
            totals[site] += gradient.abs().double()
    detach(predictor.model)
    expected = HeadMap(totals).flat().div(count)
    assert ours.flat().tolist() == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ([], "--task classify needs --encoder"),
        (["--encoder", "nowhere/at/all"], "nowhere/at/all is neither a folder here nor a model"),
        (["--encoder", "ENCODER", "--model.heads", "4"], "--model.* are of the translation model"),
        (["--encoder", "ENCODER", "--data", "toy"], "no labelled text at toy"),
    ],
)
def test_what_is_missing_is_one_line_and_leaves_no_run(
    called, encoder, labelled, tmp_path, monkeypatch, flags, error
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["--data", labelled, *(encoder if flag == "ENCODER" else flag for flag in flags)]
    code, _, said = called(fit)("--task", "classify", *words, "--runs", tmp_path / "runs")
    assert (code, said.count("\n")) == (1, 1), said
    assert error in said
    assert not list((tmp_path).glob("runs/*"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a funny film\n", "line 1: expected .* one or two sentences"),
        ("a.tsv", "good\ta film\nfair\ta film\n", "line 2: the label 'fair' is none of the training text"),
        ("a.tsv", "good\ta film\tthe plot\n", r"line 1: has 2 sentence"),
    ],
)
def test_a_second_text_that_is_not_labelled_as_the_first_is_refused(
    task, labelled, tmp_path, name, content, message
):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        task.other_text({}, str(tmp_path / name), labelled_corpus(str(labelled)))


# ---------------------------------------------------------------- one run, and every command on it


@pytest.fixture(scope="module")
def run(encoder, labelled, tmp_path_factory) -> RunFolder:
    torch.set_num_threads(1)
    runs = tmp_path_factory.mktemp("classify") / "runs"
    settings = read_command(Settings, flags_of(encoder, labelled, "--runs", str(runs)))
    return made(settings, Recipe("l0", Lambda(0.003), epochs=3)).run


@pytest.fixture
def base(run, tmp_path) -> RunFolder:
    """The base of a copy of the run, to be written in."""
    shutil.copytree(run.path.parent, tmp_path / "runs")
    return RunFolder(tmp_path / "runs" / "films-tiny-bert-none-s1")


def test_it_learns_the_planted_labels_and_is_compared_by_accuracy_and_mcnemar(run, labelled):
    rows = {row.system: row for row in run.rows()}
    wanted = labelled_corpus(str(labelled)).test.targets
    assert list(rows) == SYSTEMS
    assert rows["base"].main.value > 90
    for system, row in rows.items():
        assert (row.metric, row.heads_total, list(row.heads_by_kind)) == ("accuracy", 8, ["enc-self"])
        given = run.outputs(system)
        right = sum(a == b for a, b in zip(given, wanted, strict=True))
        assert row.main.value == pytest.approx(100 * right / len(wanted))
        assert row.main.p_mcnemar is not None
    assert 0 < rows["pruned"].heads_open < 8
    assert rows["pruned"].parameters < rows["base"].parameters
    assert sum(site.heads for site in find_sites(open_source(run.path).model)) == rows["pruned"].heads_open


def test_analyze_py_looks_at_attention_and_relevance(base, called):
    code, said, wrong = called(analyze)(base.path, "--threads", 1)
    assert code == 0, wrong
    assert "left out: syntax needs dependency trees" in " ".join((said + wrong).split())
    found = {path.stem for path in (base / "analysis/base").glob("*.json")}
    assert {"confidence", "lrp", "positions", "alignment"} <= found
    for row in json.loads((base / "analysis/base/lrp.json").read_text())["head_maps"]["share"].values():
        assert sum(row) == pytest.approx(1, abs=1e-4)


def test_sentences_without_labels_are_read_with_those_that_the_model_gives(base, called, tmp_path):
    (tmp_path / "own.txt").write_text("the dog sees a cat .\na man sleeps .\n")
    words = ["--text", tmp_path / "own.txt", "--what", "confidence", "--threads", 1]
    well(called(analyze)(base.path, *words))
    assert (base / "analysis/base-own/confidence.json").is_file()


def test_scores_are_compared_on_its_base_by_accuracy(base, called):
    words = ["--by", "importance,obs,random", "--heads", "4", "--threads", "1"]
    said = well(called(prune)(base.path, *words))
    assert "accuracy" in said.lower()
    made = [run for run in find_runs(base.path.parent) if "-4-s1" in run.path.name]
    assert len(made) == 3
    assert {run.row_of("pruned").heads_open for run in made} == {4}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--heads 4 --refit out+ffn+v --epochs 1", "--refit out or none can be had"),
        ("--speedup 1.2", "is planned here for models that translate"),
        ("--by scratch --heads 4 --epochs 1", "starts from a trained encoder, so there is none from random"),
        ("--params .5 --refit out", "is planned here for models that translate"),
    ],
)
def test_what_only_translation_models_have_is_refused_before_a_run_is_begun(base, called, words, message):
    there = {run.path for run in find_runs(base.path.parent)}
    code, _, wrong = called(prune)(base.path, *words.split(), "--threads", 1)
    assert (code, message in " ".join(wrong.split())) == (1, True), wrong
    assert {run.path for run in find_runs(base.path.parent)} == there


def test_a_classifier_neither_translates_nor_is_exported(run, called, tmp_path):
    (tmp_path / "in.txt").write_text("a funny film\n")
    for script, words in (
        (translate, ["--input", tmp_path / "in.txt"]),
        (export, ["--to", "onnx", "--out", tmp_path / "out"]),
    ):
        code, _, wrong = called(script)(run.path, *words)
        assert (code, "does not translate: its task is classify" in wrong) == (1, True), wrong
