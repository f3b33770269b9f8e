"""fit.py as its user meets it: the tiny toy run from end to end, what it refuses and how, an interrupt, and
the second call."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from headgates.commands import fit
from headgates.configs.systems import file_name
from headgates.data import load_corpus
from headgates.gates import HeadMap
from headgates.workbench.folder import RunFolder
from headgates.workbench.source import open_source

ROOT = Path(__file__).parents[1]
SYSTEMS = ["base", "base-continued", "l0-soft", "l0", "l0-removed", "importance", "importance:trained"]
TINY = ["--config", str(ROOT / "configs/toy_tiny.yaml")]
LOSS = 6.0  # nats per token on validation after both epochs; ln 800 = 6.7 without any training, 5.7 measured


def command(*words: str) -> list[str]:
    return [sys.executable, str(ROOT / "fit.py"), *words]


def environment() -> dict[str, str]:
    # a copy of the machine's environment without what would change where text goes
    return {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "140"}


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=600, cwd=ROOT, env=environment()
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fit") / "runs"


@pytest.fixture(scope="module")
def first(runs: Path) -> subprocess.CompletedProcess[str]:
    """The one command, in a process of its own."""
    done = call(*TINY, "--runs", str(runs))
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def run(first: subprocess.CompletedProcess[str], runs: Path) -> RunFolder:
    return RunFolder.open(runs / "toy-en-de-l0-0.01-s1")


# ---------------------------------------------------------------- the run from end to end


def test_the_loss_falls_below_a_stated_number(run):
    losses = run.read_json("result.json")["rows"][0]["stage"]["losses"]
    assert losses[-1] < losses[0]
    assert losses[-1] < LOSS


def test_the_run_folder_holds_what_the_house_promises(run, runs):
    files = (
        "config.yaml",
        "command.txt",
        "best.pt",
        "last.pt",
        "gates.json",
        "metrics.csv",
        "gates_history.npz",
        "result.json",
    )
    for path in (*files, "report.html"):
        assert (run / path).is_file(), path
    assert {path.stem for path in (run / "hypotheses").iterdir()} == set(SYSTEMS)
    assert sorted(path.name for path in runs.iterdir()) == [
        "toy-en-de-continued-s1",
        "toy-en-de-l0-0.01-s1",
        "toy-en-de-none-s1",
    ]
    assert not [path for path in runs.rglob("*") if "part" in path.name.split(".")]
    config = run.config()
    assert (config["data"], config["lambda"], config["gate"]) == ("toy", 0.01, "l0")
    assert {"base", "base_hash", "run_hash"} <= config.keys()
    assert "python fit.py --config" in (run / "command.txt").read_text()


def test_the_table_shows_every_system_with_the_numbers_of_result_json(first, run):
    for row in run.read_json("result.json")["rows"]:
        (line,) = [line for line in first.stdout.splitlines() if re.match(rf" *{row['system']} +\d+/", line)]
        cells = line.split()
        assert cells[1] == f"{row['heads_open']}/{row['heads_total']}"
        assert f"{row['bleu']:.2f}" in cells
        assert f"{row['chrf']:.2f}" in cells
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in first.stdout
    assert "differences against" in first.stdout


def test_nothing_but_our_own_words_reaches_the_terminal(first):
    noise = [
        line
        for line in first.stderr.splitlines()
        if "Warning" in line or "Traceback" in line or "litlogger" in line
    ]
    assert noise == []


def test_each_row_has_its_scores_signatures_intervals_and_p_values(run):
    result = run.read_json("result.json")
    assert [row["system"] for row in result["rows"]] == SYSTEMS
    assert {"command", "commit", "seed", "device", "versions", "data"} <= result.keys()
    for row in result["rows"]:
        assert {
            "bleu",
            "chrf",
            "bleu_signature",
            "chrf_signature",
            "bleu_ci95",
            "bleu_difference",
            "bleu_difference_ci95",
        } <= row.keys()
        assert {
            "heads_by_kind",
            "parameters",
            "sentences_per_second",
            "p_value_vs_reference",
            "p_value_vs_base",
        } <= row.keys()
        assert 0 < row["p_value_vs_base"] <= 1


def test_gates_json_l0_and_importance_agree_on_the_number_of_heads(run):
    rows = {row["system"]: row for row in run.read_json("result.json")["rows"]}
    heads = [head for site in run.read_json("gates.json")["sites"].values() for head in site]
    assert rows["l0"]["heads_total"] == len(heads) == 6
    assert rows["l0"]["heads_open"] == sum(head["open"] for head in heads)
    assert (
        rows["importance"]["heads_open"]
        == rows["importance:trained"]["heads_open"]
        == rows["l0"]["heads_open"]
    )
    xi = run.systems()["importance"]["xi"]  # None where no head is closed
    assert (6 if xi is None else HeadMap.from_json(xi).count()) == rows["l0"]["heads_open"]


def test_every_system_loads_from_plain_tensors_and_translates_as_fit_did(run):
    for checkpoint in run.path.glob("*.pt"):
        assert isinstance(torch.load(checkpoint, weights_only=True), dict)
    sources = load_corpus("toy", src="en", tgt="de").test.sources[:23]
    for system in SYSTEMS:
        again = open_source(run.path, system).translator.translate(sources)
        assert (
            "".join(line + "\n" for line in again)
            == (run / f"hypotheses/{file_name(system)}.txt").read_text()
        ), system


# ---------------------------------------------------------------- called in this process


@pytest.fixture
def fit_here(called):
    """fit_here(flags...) -> (exit code, stdout, stderr)."""
    return called(fit)


@pytest.fixture
def untrained(monkeypatch):
    """Any training fails the test."""

    def run_stage(name, *_, **__):
        raise AssertionError(f"trained {name}")

    monkeypatch.setattr("headgates.workbench.lab.run_stage", run_stage)


def assert_one_line(error: str, *words: str) -> None:
    (line,) = error.strip().splitlines()
    assert line.startswith("fit.py: error: ")
    for word in words:
        assert word in line


def test_the_second_call_shows_the_finished_run_and_trains_nothing(first, runs, fit_here, untrained):
    code, out, _ = fit_here(*TINY, "--runs", str(runs))
    assert code == 0
    assert "finished, same configuration; --fresh repeats it" in out
    assert first.stdout[first.stdout.index("──") :] == out[out.index("──") :]


def test_the_configuration_of_a_run_is_read_back_and_names_the_same_run(run, runs, fit_here, untrained):
    code, out, _ = fit_here("--config", str(run / "config.yaml"))
    assert code == 0
    assert "finished, same configuration" in out


def test_a_name_with_another_configuration_is_refused_in_one_line(run, runs, fit_here, untrained):
    code, _, error = fit_here(*TINY, "--runs", str(runs), "--gates.lr", "0.123")
    assert code == 1
    assert_one_line(error, str(run.path), "another configuration", "--name")


def test_an_unknown_flag_names_the_nearest_and_exits_with_2(fit_here):
    code, _, error = fit_here("--lamda", "0.1")
    assert code == 2
    assert "unknown flag --lamda; did you mean --lambda?" in error


def test_an_unknown_key_in_the_yaml_names_the_nearest_and_exits_with_2(fit_here, tmp_path):
    (tmp_path / "own.yaml").write_text("train: {epoch: 3}\n")
    code, _, error = fit_here("--config", str(tmp_path / "own.yaml"))
    assert code == 2
    assert "train.epochs" in error


def test_help_says_every_flag(fit_here):
    code, out, _ = fit_here("--help")
    assert code == 0
    for flag in (
        "--lambda",
        "--gate",
        "--base",
        "--kinds",
        "--freeze-decoder",
        "--data-dir",
        "--resume",
        "--logger",
        "--precision",
    ):
        assert flag in out


# ---------------------------------------------------------------- text of one's own


@pytest.fixture
def text(tmp_path):
    """A folder of aligned text in xx and yy, and the flags of a tiny base over it."""
    folder = tmp_path / "text"
    folder.mkdir()
    for split, start, count in (("train", 0, 61), ("valid", 61, 11), ("test", 72, 7)):
        lines = [
            " ".join("abcdefg"[(i // 7**k) % 7] * 2 for k in range(4)) for i in range(start, start + count)
        ]
        (folder / f"{split}.xx").write_text("".join(line + "\n" for line in lines))
        (folder / f"{split}.yy").write_text("".join(line.upper() + "\n" for line in lines))
    return folder


def small(folder: Path, runs: Path) -> list[str]:
    flags = {
        "data": folder,
        "src": "xx",
        "tgt": "yy",
        "runs": runs,
        "gate": "none",
        "text.vocab-size": 37,
        "text.max-tokens": 67,
    }
    flags |= {
        "model.d-model": 14,
        "model.heads": 7,
        "model.ffn": 11,
        "model.encoder-layers": 1,
        "model.decoder-layers": 1,
    }
    flags |= {"train.epochs": 2, "train.bleu-sentences": 0, "search.beam": 2, "precision": "32"}
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def drop_a_line(folder: Path) -> str:
    path = folder / "train.yy"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    return "60"


def break_the_encoding(folder: Path) -> str:
    path = folder / "train.xx"
    path.write_bytes(path.read_bytes().replace(b"bb", b"b\xff", 1))
    return "UTF-8"


def remove_a_language(folder: Path) -> str:
    for path in folder.glob("*.yy"):
        path.unlink()
    return "'yy'"


def empty_the_training_text(folder: Path) -> str:
    for language in ("xx", "yy"):
        (folder / f"train.{language}").write_text("\n" * 5)
    return "train"


@pytest.mark.parametrize(
    "damage", [drop_a_line, break_the_encoding, remove_a_language, empty_the_training_text]
)
def test_bad_text_is_one_line_and_leaves_no_run_behind(text, tmp_path, fit_here, damage):
    word = damage(text)
    code, _, error = fit_here(*small(text, tmp_path / "runs"))
    assert code == 1
    assert_one_line(error, word)
    assert not list((tmp_path / "runs").glob("*"))


def test_empty_lines_are_skipped_in_training_and_kept_in_the_test_set(text, tmp_path, fit_here):
    for split, number in (("train", 5), ("test", 3)):
        path = text / f"{split}.xx"
        lines = path.read_text().splitlines()
        lines[number] = ""
        path.write_text("".join(line + "\n" for line in lines))
    code, out, error = fit_here(*small(text, tmp_path / "runs"))
    assert code == 0, error
    assert "1 empty" in out
    hypotheses = (tmp_path / "runs/text-xx-yy-none-s1/hypotheses/base.txt").read_text().split("\n")
    assert len(hypotheses) == 7 + 1
    assert hypotheses[3] == ""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_loss_that_is_not_a_number_is_one_line_with_what_to_change(text, tmp_path, fit_here):
    code, _, error = fit_here(
        *small(text, tmp_path / "runs"), "--train.lr", "1e30", "--train.clip", "0", "--train.epochs", "5"
    )
    assert code == 1
    assert_one_line(error, "the loss is nan", "lower", "lr")


def test_runs_that_cannot_be_written_are_one_line(text, tmp_path, fit_here):
    (tmp_path / "runs").write_text("a file")
    code, _, error = fit_here(*small(text, tmp_path / "runs"))
    assert code == 2
    assert_one_line(error.splitlines()[0], str(tmp_path / "runs"))  # the second line says where help is


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_whole_files_and_says_how_to_go_on(text, tmp_path, signum):
    flags = [*small(text, tmp_path / "runs"), "--train.epochs", "2000"]
    process = subprocess.Popen(
        command(*flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
        # tests started in the background inherit an ignored interrupt, which Python would then ignore too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "epoch 1 of 2000" in line:
            break
    time.sleep(0.2)
    process.send_signal(signum)
    try:
        _, error = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + signum, error
    assert "Traceback" not in error
    assert "--resume continues" in error
    folder = tmp_path / "runs/text-xx-yy-none-s1"
    assert not list(folder.glob("*.part"))
    epochs = torch.load(folder / "last.pt", weights_only=True)["epoch"] + 1
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["train"]["epochs"], config["resume"]) == (2000, False)
    assert 1 <= epochs < 2000


def test_two_processes_train_a_base_and_settled_gates(tmp_path):
    flags = [
        "--devices",
        "2",
        "--systems",
        "base,l0",
        "--train.epochs",
        "1",
        "--finetune.epochs",
        "2",
        "--gates.settle",
        "0.5",
    ]
    few = ["--text.train-sentences", "101", "--test-sentences", "5", "--threads", "1"]
    done = call(*TINY, *flags, *few, "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (run,) = (RunFolder(path) for path in tmp_path.glob("toy-en-de-l0-*"))
    assert run.finished()
    assert len(run.read_json("stage.json")["losses"]) == 2
