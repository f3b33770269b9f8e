"""Classification by a fine-tuned encoder: its loss and importance against loops over sentences, then every
script on one small run."""

import csv
import json
import shutil

import pytest
import torch
import torch.nn.functional as F

from headgates.analysis.scores.importance import importance
from headgates.commands import analyze, compare, export, fit, prune, translate
from headgates.configs.cli import read
from headgates.configs.schema import FitConfig
from headgates.configs.systems import file_name
from headgates.data.labelled import labelled_corpus
from headgates.gates import HeadMap, attach, detach, find_sites, heads_left
from headgates.report.speed import speed
from headgates.tasks import task_named
from headgates.tasks.base import Task
from headgates.workbench.folder import RunFolder
from headgates.workbench.lab import Lab
from headgates.workbench.protocol import make_runs
from headgates.workbench.source import open_source
from tests.worlds.tiny_encoder import labelled_sentences, write_encoder, write_tsv

SETTINGS = {"text": {"max_tokens": 61, "max_length": 20, "train_sentences": 0}, "seed": 1}
SYSTEMS = "base,base-continued,l0,l0-removed,importance,random"
FLAGS = [
    *(
        "--task",
        "classify",
        "--text.max-tokens",
        "100",
        "--text.max-length",
        "20",
        "--threads",
        "1",
        "--precision",
        "32",
    ),
    *(
        "--train.epochs",
        "3",
        "--train.lr",
        "0.005",
        "--train.warmup-steps",
        "10",
        "--train.average",
        "0",
        "--train.label-smoothing",
        "0",
    ),
    *(
        "--finetune.epochs",
        "3",
        "--finetune.lr",
        "0.001",
        "--set",
        "finetune.warmup_steps=5",
    ),
    *(
        "--gates.lr",
        "0.1",
        "--gates.lambda-warmup",
        "3",
        "--gates.settle",
        "0.67",
        "--lambda",
        "0.003",
        "--systems",
        SYSTEMS,
    ),
]


@pytest.fixture(scope="module")
def task() -> Task:
    return task_named("classify")


@pytest.fixture(scope="module")
def config(encoder, labelled) -> FitConfig:
    return read(FitConfig, [*FLAGS, "--encoder", str(encoder), "--data", str(labelled)])


@pytest.fixture(scope="module")
def untrained(task, config, labelled, tmp_path_factory):
    """The folder of a new base, its predictor with weights that make sentences differ, and its batches."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("untrained")
    corpus = labelled_corpus(str(labelled))
    task.prepare_folder(folder, corpus, config)
    torch.manual_seed(7)
    predictor = task.new_predictor(folder, config)
    with torch.no_grad():
        for parameter in predictor.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    predictor.model.eval()
    return folder, predictor, task.data(folder, corpus, SETTINGS)


def one_by_one(predictor, data, split: str):
    """(logits (C,), label) of every sentence, each alone."""
    for source, (label,) in data.split(split).pairs:
        yield predictor.model(torch.tensor([[*source, predictor.source_vocab.specials.end]]))[0], label


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_cross_entropy_of_the_sentences_one_by_one(task, untrained, smoothing):
    _, predictor, data = untrained
    with torch.no_grad():
        ours = sum(
            float(task.loss(predictor.model, batch, smoothing=smoothing))
            for batch in data.batches("valid", 61)
        )
        logs = [(logits.log_softmax(0), label) for logits, label in one_by_one(predictor, data, "valid")]
    expected = sum(
        -(1 - smoothing) * float(row[label]) - smoothing * float(row.mean()) for row, label in logs
    )
    assert ours == pytest.approx(expected, rel=1e-5)


def test_the_unit_of_the_loss_is_a_sentence(untrained):
    _, _, data = untrained
    batches = list(data.train_dataloader())
    assert sum(len(batch) for batch in batches) == sum(batch.target_tokens for batch in batches) == 300
    assert all(batch.step_tokens == batch.target_tokens == len(batch.target_out) for batch in batches)
    data.accumulate = 2
    assert sum(batch.step_tokens for batch in data.train_dataloader()) > 500  # each batch counts its step's
    data.accumulate = 1
    assert data.report["vocabulary"]["labels"] == 2


def test_validation_is_the_mean_loss_and_the_share_of_right_labels(task, untrained):
    _, predictor, data = untrained
    validator = task.validator(predictor.model)
    with torch.no_grad():
        for batch in data.batches("valid", 100):
            validator.update(predictor.model, batch)
        rows = list(one_by_one(predictor, data, "valid"))
    found = validator.compute()
    right = [int(logits.argmax()) == label for logits, label in rows]
    assert float(found["label_accuracy"]) == pytest.approx(sum(right) / len(rows))
    losses = [F.cross_entropy(logits[None], torch.tensor([label])) for logits, label in rows]
    assert float(found["loss"]) == pytest.approx(float(sum(losses)) / len(rows), rel=1e-5)


def test_importance_is_the_mean_over_sentences_of_the_size_of_each_gradient(task, untrained):
    _, predictor, data = untrained
    model, pairs = predictor.model, data.split("test").pairs
    ours = importance(model, data.batches("test", 61), loss=task.loss)
    bank = attach(model, gate="mask")
    try:
        totals = {site: torch.zeros(site.heads, dtype=torch.float64) for site in bank.sites}
        for source, label in pairs:
            xi = {site: torch.ones(site.heads, requires_grad=True) for site in bank.sites}
            handles = [gate.register_forward_hook(lambda *_, xi=xi[site]: xi) for site, gate in bank.items()]
            loss = F.cross_entropy(
                model(torch.tensor([[*source, predictor.source_vocab.specials.end]])), torch.tensor(label)
            )
            for site, gradient in zip(xi, torch.autograd.grad(loss, list(xi.values())), strict=True):
                totals[site] += gradient.abs().double()
            for handle in handles:
                handle.remove()
    finally:
        detach(model)
    assert ours.flat().tolist() == pytest.approx(
        HeadMap(totals).flat().div(len(pairs)).tolist(), rel=1e-3, abs=1e-6
    )


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ([], "--task classify needs --encoder"),
        (
            ["--encoder", "nowhere/at/all"],
            "nowhere/at/all is neither a folder here nor a model that the Hugging Face Hub gives",
        ),
        (["--encoder", "ENCODER", "--model.heads", "4"], "--model.* are of the translation model"),
        (["--encoder", "ENCODER", "--data", "toy"], "no labelled text at toy"),
    ],
)
def test_what_is_missing_is_one_line_and_leaves_no_run(
    called, encoder, labelled, tmp_path, monkeypatch, flags, error
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["--data", labelled, *(encoder if flag == "ENCODER" else flag for flag in flags)]
    code, _, said = called(fit)(*FLAGS, *words, "--runs", tmp_path / "runs")
    assert (code, said.count("\n")) == (1, 1), said
    assert error in said
    assert not list((tmp_path).glob("runs/*"))


def test_an_encoder_without_its_task_is_refused(called, encoder):
    code, _, said = called(fit)("--encoder", encoder)
    assert (code, "--encoder is for --task classify" in said) == (2, True)


# ---------------------------------------------------------------- one run, and every script on it


@pytest.fixture(scope="module")
def run(encoder, labelled, tmp_path_factory) -> RunFolder:
    torch.set_num_threads(1)
    runs = tmp_path_factory.mktemp("classify") / "runs"
    return make_runs(
        read(FitConfig, [*FLAGS, "--encoder", str(encoder), "--data", str(labelled), "--runs", str(runs)])
    )


@pytest.fixture
def copy(run, tmp_path) -> RunFolder:
    """The run and its bases, to be written in."""
    return RunFolder(shutil.copytree(run.path.parent, tmp_path / "runs") / run.path.name)


def base_of(run: RunFolder) -> RunFolder:
    return RunFolder(run.path.parent / "films-tiny-bert-none-s1")


def test_it_learns_the_planted_labels_and_is_compared_by_accuracy_and_mcnemar(run, labelled):
    assert run.path.name == "films-tiny-bert-l0-0.003-s1"
    rows = {row.system: row for row in run.rows()}
    assert list(rows) == SYSTEMS.split(",")
    assert rows["base"].main.value > 90
    for system, row in rows.items():
        assert (row.metric, row.heads_total, list(row.heads_by_kind)) == ("accuracy", 8, ["enc-self"])
        given = (run / f"hypotheses/{file_name(system)}.txt").read_text().split("\n")[:-1]
        wanted = labelled_corpus(str(labelled)).test.targets
        assert row.main.value == pytest.approx(
            100 * sum(a == b for a, b in zip(given, wanted, strict=True)) / 67
        )
        assert row.main.p_mcnemar is not None
    assert 0 < rows["l0"].heads_open < 8
    assert rows["importance"].heads_open == rows["l0-removed"].heads_open == rows["l0"].heads_open
    assert rows["l0-removed"].parameters < rows["l0"].parameters
    assert rows["l0-removed"].lines_unlike_masked == 0
    assert run.result()["data"]["vocabulary"] == {"source": 22, "labels": 2}


def test_what_is_removed_is_what_was_closed(run):
    is_open = HeadMap.from_json(run.systems()["l0"]["xi"]).map(lambda row: row > 0)
    model = open_source(run.path, "l0-removed").model
    for site, row in heads_left(model).items():
        assert row.tolist() == is_open[site].tolist() or (
            row.sum() == 1 and not is_open[site].any()
        )  # an attention cannot run without any
    assert sum(site.heads for site in find_sites(model)) < 8


def test_a_base_is_found_by_its_encoder_and_gives_its_task_to_runs_on_it(
    copy, encoder, labelled, tmp_path, called
):
    base = base_of(copy)
    words = [*FLAGS, "--gate", "none", "--data", labelled, "--runs", base.path.parent]
    moved = shutil.copytree(encoder, tmp_path / "moved" / "tiny-bert")
    _, said, _ = called(fit)(*words, "--encoder", moved)
    assert "finished, same configuration" in said
    other = write_encoder(tmp_path / "other")
    (other / "vocab.txt").write_text((other / "vocab.txt").read_text() + "new\n")
    config = read(FitConfig, [*map(str, words), "--encoder", str(other)])
    again = Lab(config)
    assert again.task.made_of(config) != again.task.made_of(
        read(FitConfig, [*map(str, words), "--encoder", str(moved)])
    )
    on_base = Lab(read(FitConfig, ["--base", str(base.path), "--runs", str(base.path.parent)]))
    assert (on_base.config.task, on_base.config.encoder, on_base.config.data) == (
        "classify",
        str(encoder),
        str(labelled),
    )


def test_prune_py_draws_a_curve_ablates_each_head_and_takes_a_second_domain(copy, called, tmp_path):
    base = base_of(copy)
    other = write_tsv(tmp_path / "other" / "books.tsv", labelled_sentences(31, 9))
    orders = "gradient,random,weight-norm,obs,fisher,fluctuation,confidence,lrp"
    code, said, wrong = called(prune)(
        base.path, "--by", orders, "--set", "random_seeds=1", "--step", 0.5, "--threads", 1
    )
    assert code == 0, wrong
    drawn = {
        path.name.split("-step")[0].removesuffix("-1seeds")
        for path in (base / "curves").glob("*-order*.json")
    }
    assert drawn == set(orders.split(","))
    head = (base / "curves/importance-step0.5.csv").read_text().splitlines()[0]
    assert {"test_accuracy", "test_accuracy_p_value", "test_accuracy_p_mcnemar"} <= set(head.split(","))
    code, said, wrong = called(prune)(base.path, "--ablate", "one", "--also", other, "--threads", 1)
    assert code == 0, wrong
    assert "accuracy differences on the run's test set and on other-books" in " ".join(said.split())
    rows = list(csv.DictReader((base / "ablation/one.csv").open()))
    assert len(rows) == 8
    assert {"accuracy", "accuracy_difference", "p_value", "p_mcnemar", "p_value_holm"} <= rows[0].keys()
    source = open_source(base.path)
    wanted = source.corpus.test.targets
    for row in rows:
        site = next(site for site in find_sites(source.model) if site.name == row["site"])
        module = find_sites(source.model)[site]
        kept = module.output.dense.weight.detach().clone()
        with torch.no_grad():
            module.output.dense.weight.unflatten(1, (site.heads, -1))[:, int(row["head"])] = 0
            found = source.predictor.label(source.corpus.test.sources)
            module.output.dense.weight.copy_(kept)
        assert float(row["accuracy"]) == pytest.approx(
            100 * sum(a == b for a, b in zip(found, wanted, strict=True)) / len(wanted)
        )


def test_analyze_py_looks_at_attention_and_relevance(copy, called):
    base = base_of(copy)
    code, said, wrong = called(analyze)(base.path, "--siblings", "--threads", 1)
    assert code == 0, wrong
    assert "left out: syntax needs dependency trees" in " ".join((said + wrong).split())
    found = {path.stem for path in (base / "analysis/base").glob("*.json")}
    assert {"confidence", "lrp", "positions", "alignment", "cards"} <= found
    shares = json.loads((base / "analysis/base/lrp.json").read_text())["head_maps"]["share"]
    for row in shares.values():
        assert sum(row) == pytest.approx(1, abs=1e-4)
    code, _, wrong = called(analyze)(base.path, "--what", "lrp", "--set", "lrp_rule=ratio", "--threads", 1)
    assert (code, wrong.count("\n")) == (1, 1)
    assert "walks through a Transformer of ours" in wrong


def test_a_classifier_neither_translates_nor_is_exported(run, called, tmp_path):
    (tmp_path / "in.txt").write_text("a funny film\n")
    for script, words in (
        (translate, ["--input", tmp_path / "in.txt"]),
        (export, ["--to", "onnx", "--out", tmp_path / "out"]),
    ):
        code, _, wrong = called(script)(run.path, *words)
        assert (code, "does not translate: its task is classify" in wrong) == (1, True), wrong


def test_the_speed_report_times_a_base_with_half_of_its_heads_removed(copy, called, monkeypatch):
    monkeypatch.setattr(speed, "memory_of", lambda system, settings: {"imports": 2, "peak": 3})
    base = base_of(copy)
    words = (
        "--report",
        "speed",
        "--closed",
        0.5,
        "--set",
        "batch_sizes=1,4",
        "--set",
        "repeats=1",
        "--threads",
        1,
    )
    code, _, wrong = called(export)(base.path, *words)
    assert code == 0, wrong
    report = json.loads((base / "speed/report.json").read_text())
    assert (report["heads"], list(report["systems"])) == (
        {"total": 8, "closed": 4},
        ["unpruned", "masked", "removed"],
    )
    assert list(report["left_out"]) == ["every other engine"]
    rows = {(row["system"], row["length"], row["batch"]): row for row in report["rows"]}
    assert len(rows) == 3 * 3 * 2
    assert {row["beam"] for row in report["rows"]} == {1}
    for (system, length, batch), row in rows.items():
        assert row["same_translations"] == 1.0
        unpruned = rows["unpruned", length, batch]["multiply_adds"]
        assert row["multiply_adds"] < unpruned if system == "removed" else row["multiply_adds"] == unpruned
    page = (base / "speed/report.md").read_text()
    assert "## Sentences per second, all lengths" in page
    assert "translate" not in page


def test_methods_are_compared_on_its_base_by_accuracy(copy, called):
    base = base_of(copy)
    words = (
        base.path,
        "--runs",
        base.path.parent,
        "--methods",
        "importance,random",
        "--heads",
        "6,4",
        "--finetune",
        "0,3",
        "--threads",
        "1",
    )
    code, out, error = called(compare)(*words)
    assert code == 0, out + error
    content = RunFolder(base.path.parent / f"compare-{base.path.name}").read_json("compare.json")
    assert content["metric"] == "accuracy"
    told = {(group["method"], group["epochs"], group["heads"]) for group in content["groups"][2:]}
    assert told == {
        (method, epochs, heads)
        for method in ("importance", "random")
        for epochs in (0, 3)
        for heads in (6, 4)
    }
    assert "is the best" in content["summary"][0]
    assert "6/8 heads, accuracy 100.00" in out
