"""Pruning while the base trains: the right model is pruned in the right order, and the training does not
notice."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch
from sacrebleu.metrics.bleu import BLEU

from headgates.analysis.scores.importance import importance
from headgates.configs.cli import ConfigError, read
from headgates.configs.schema import FitConfig, StageConfig
from headgates.gates import HeadMap, attach, detach
from headgates.lightning_modules import callbacks, dynamics
from headgates.lightning_modules.checkpoints import Checkpoints
from headgates.lightning_modules.dynamics import Dynamics, read_rows
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import Machine, run_stage
from headgates.models.checkpoint import load_file, load_model
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from headgates.tasks.translation import Translation
from headgates.workbench.experiment import Experiment
from headgates.workbench.fingerprint import base_fingerprint
from headgates.workbench.folder import RunFolder

TASK = Translation()
MACHINE = Machine(devices=1, precision="32", logger="csv")
STAGE = StageConfig(epochs=3, optimizer="adamw", lr=0.01, warmup_steps=5, average=0.8, bleu_sentences=0)


class PowerCut(Exception):
    pass


@pytest.fixture
def train(translator, data, corpus, tmp_path):
    """train("name", [1, 3]): the folder and the result of a stage that prunes after these epochs; always the
    same weights, dropout 0.2."""

    def run(name, epochs, *, stage=STAGE, resume=False, facts=None):
        pl.seed_everything(0, verbose=False)
        config = replace(translator.model.config, dropout=0.2, attention_dropout=0.2)
        model = Transformer(config, len(translator.source_vocab), len(translator.target_vocab))
        fresh = Translator(model, translator.source_vocab, translator.target_vocab, translator.search)
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir(exist_ok=True)
        valid = (corpus.valid.sources[:7], corpus.valid.targets[:7])
        watcher = Dynamics(folder, epochs, data=data, valid=valid, facts=facts or {})
        module = StageModule(TASK, fresh, stage, seed=1)
        result = run_stage(
            "base", module, data, folder, MACHINE, stage, resume=resume, watchers=[watcher] if epochs else []
        )
        return folder, result

    return run


@pytest.fixture
def computed(monkeypatch) -> Iterator[list[HeadMap]]:
    """The scores of every importance that was computed."""
    scores = []

    def record(*arguments, **options):
        scores.append(importance(*arguments, **options))
        return scores[-1]

    monkeypatch.setattr(dynamics, "importance", record)
    return scores


def equal(left, right):
    """Whether two nested states are the same, tensors bit by bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


@pytest.mark.parametrize("average", [0.8, 0.0], ids=["averaged weights", "weights"])
def test_the_training_is_bit_by_bit_that_without_it(train, average):
    stage = replace(STAGE, average=average)
    (plain, result), (pruned, watched) = (
        train("plain", [], stage=stage),
        train("pruned", [1, 2, 3], stage=stage),
    )
    assert len(read_rows(pruned)) == 30
    assert watched.losses == result.losses
    assert equal(load_file(plain / "best.pt"), load_file(pruned / "best.pt"))
    left, right = load_file(plain / "last.pt"), load_file(pruned / "last.pt")
    assert equal(left["state_dict"], right["state_dict"])
    assert equal(left["optimizer_states"], right["optimizer_states"])
    assert equal(left["lr_schedulers"], right["lr_schedulers"])
    averages = [
        state["average"]
        for each in (left, right)
        for key, state in each["callbacks"].items()
        if key.startswith("AverageWeights")
    ]
    assert not averages or equal(*averages)
    numbers = [list(csv.DictReader((folder / "metrics.csv").open())) for folder in (plain, pruned)]
    assert numbers[0] == numbers[1]


class Around(pl.Callback):
    """What a training step could notice, where it stands; `gradient`: given to all weights first, as
    Lightning has just dropped theirs."""

    def __init__(self, gradient=None):
        self.seen, self.gradient = [], gradient

    def on_validation_end(self, trainer, module):
        for parameter in module.model.parameters() if self.gradient is not None else ():
            parameter.grad = torch.full_like(parameter, self.gradient)
        gradients = [parameter.grad.clone() for parameter in module.model.parameters()]
        flags = [(p.requires_grad, p.data_ptr()) for p in module.model.parameters()]
        modes = [each.training for each in module.modules()]
        self.seen.append([torch.get_rng_state(), gradients, flags, modes, sorted(module.state_dict())])


def test_random_state_gradients_and_modes_are_left_as_they_were(
    translator, data, corpus, folder, quiet_trainer
):
    before, after = Around(gradient=0.5), Around()
    valid = (corpus.valid.sources, corpus.valid.targets)
    watcher = Dynamics(folder, [1], data=data, valid=valid, facts={})
    quiet_trainer(before, watcher, after).fit(
        StageModule(TASK, translator, STAGE, seed=1).train(), datamodule=data
    )
    assert len(read_rows(folder)) == 10
    assert equal(before.seen, after.seen)


def by_hand(model, translator, data, corpus):
    """(heads closed, BLEU) of every tenth, the slow way: scores sorted by hand, xi of 0 and 1."""
    scores = importance(model, data.batches("train", 211)).l2_per_layer()
    order = sorted(
        (value, site, head) for site, row in scores.items() for head, value in enumerate(row.tolist())
    )
    system = Translator(model, translator.source_vocab, translator.target_vocab, translator.search)
    out = []
    for closed in (0, 3, 5, 7, 9, 11, 13, 15, 17, 19):  # of 21 heads, a tenth more each time, rounded up
        xi = {site: torch.ones(site.heads) for site in scores}
        for _, site, head in order[:closed]:
            xi[site][head] = 0.0
        attach(model, gate="mask", xi=HeadMap(xi))
        lines = system.translate(corpus.valid.sources[:7], beam=1)
        detach(model)
        out.append((closed, BLEU(force=True).corpus_score(lines, [corpus.valid.targets[:7]]).score))
    return out


def test_the_rows_are_those_of_the_validated_model_pruned_by_hand(train, translator, data, corpus):
    stage = replace(STAGE, epochs=9, lr=0.03)
    folder, result = train("nine", [9], stage=stage)
    rows = read_rows(folder)
    assert [row["epoch"] for row in rows] == [9] * 10
    assert [row["closed_share"] for row in rows] == [tenth / 10 for tenth in range(10)]
    assert result.best_epoch == 8  # so that best.pt holds the weights that were validated last
    expected = by_hand(load_model(folder / "best.pt"), translator, data, corpus)
    assert [(row["heads_closed"], row["valid_bleu"]) for row in rows] == [
        (closed, pytest.approx(bleu)) for closed, bleu in expected
    ]
    assert all((row["heads_open"], row["heads_total"]) == (21 - row["heads_closed"], 21) for row in rows)
    whole = rows[0]["valid_bleu"]
    assert len({row["valid_bleu"] for row in rows}) > 4
    assert [row["valid_bleu_relative"] for row in rows] == pytest.approx(
        [row["valid_bleu"] / whole for row in rows]
    )


def test_it_is_the_average_that_is_pruned_and_not_the_weights_in_training(train, data):
    folder, _ = train("one", [1], stage=replace(STAGE, epochs=1))
    kept = HeadMap.load(folder / "scores/dynamics-1.json")
    model = load_model(folder / "best.pt")
    torch.testing.assert_close(importance(model, data.batches("train", 211)).flat(), kept.flat())
    last = load_file(folder / "last.pt")["state_dict"]
    model.load_state_dict({name: last[f"model.{name}"] for name in model.state_dict()})
    assert not torch.allclose(importance(model, data.batches("train", 211)).flat(), kept.flat(), rtol=1e-3)


def test_importance_is_computed_anew_with_the_weights_of_each_epoch(train, computed):
    folder, _ = train("all", [1, 3])
    assert len(computed) == 2
    assert not torch.allclose(computed[0].flat(), computed[1].flat())
    assert [HeadMap.load(folder / f"scores/dynamics-{epoch}.json") for epoch in (1, 3)] == computed


@pytest.mark.parametrize(
    ("method", "owner", "epoch", "again"),
    [("training_step", StageModule, 2, 0), ("on_train_epoch_end", Checkpoints, 1, 1)],
    ids=["in the next epoch", "after pruning, before the epoch is on disk"],
)
def test_an_interrupted_run_has_each_epoch_once_and_keeps_those_it_finished(
    train, computed, monkeypatch, method, owner, epoch, again
):
    whole, _ = train("whole", [1, 2])
    computed.clear()
    original = getattr(owner, method)

    def cut(self, *arguments):
        now = self.current_epoch if isinstance(self, StageModule) else arguments[0].current_epoch
        if now == epoch:
            raise PowerCut
        return original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(owner, method, cut)
        with pytest.raises(PowerCut):
            train("cut", [1, 2])
    assert len(computed) == 2
    resumed, _ = train("cut", [1, 2], resume=True)
    assert len(computed) == 2 + again
    assert (resumed / "curves/dynamics.csv").read_bytes() == (whole / "curves/dynamics.csv").read_bytes()
    assert [row["epoch"] for row in read_rows(resumed)] == [1] * 10 + [2] * 10


def test_its_time_is_not_counted_as_training_time(train, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: clock[0])

    def slow(*arguments, **options):
        clock[0] += 1000
        return importance(*arguments, **options)

    monkeypatch.setattr(dynamics, "importance", slow)
    _, result = train("slow", [1, 2])
    assert clock == [2000.0]
    assert result.seconds == 0


def test_a_failure_leaves_no_gates_on_the_model(translator, corpus, monkeypatch):
    before = translator.model.state_dict().keys()
    monkeypatch.setattr(translator, "translate", lambda *_, **__: [][0])
    scores = HeadMap({site: torch.ones(site.heads) for site in translator.sites})
    with pytest.raises(IndexError):
        dynamics.prune(
            StageModule(TASK, translator, STAGE, seed=1), scores, (corpus.valid.sources, corpus.valid.targets)
        )
    assert translator.model.state_dict().keys() == before


def test_a_model_whose_bleu_is_0_has_no_relative_bleu(train, monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda self, lines, **_: ["" for _ in lines])
    folder, _ = train("silent", [1], stage=replace(STAGE, epochs=1))
    assert [row["valid_bleu_relative"] for row in read_rows(folder)] == [None] * 10


def test_an_epoch_beyond_the_last_is_refused_before_training_starts(train, monkeypatch):
    monkeypatch.setattr(StageModule, "training_step", lambda *_: pytest.fail("it trained"))
    with pytest.raises(ValueError, match="expected epochs from 1 to 3, the last of this training, got 0, 4"):
        train("late", [4, 1, 0])


# ---------------------------------------------------------------- fit.py --dynamics


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--dynamics 1,3", [1, 3]),
        ("--dynamics 3 1", [3, 1]),
        ("--dynamics [2]", [2]),
        ("--dynamics=", []),
        ("", []),
    ],
)
def test_epochs_are_a_list_of_whole_numbers(words, value):
    assert read(FitConfig, words.split()).dynamics == value


@pytest.mark.parametrize(
    ("text", "value"), [("dynamics: [1, 2]", [1, 2]), ("dynamics: 3", [3]), ("dynamics: 1,5", [1, 5])]
)
def test_epochs_are_read_from_yaml(tmp_path, text, value):
    (tmp_path / "c.yaml").write_text(text)
    assert read(FitConfig, ["--config", str(tmp_path / "c.yaml")]).dynamics == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--dynamics 1,8",
            r"--dynamics: expected epochs of the base's training, 1 to 7, each once, got 8; raise --train\.epochs 7",
        ),
        ("--dynamics 0", "1 to 7, each once, got 0"),
        ("--dynamics 2,2", "each once, got one twice"),
        ("--dynamics 1.5", "--dynamics: expected a list of whole numbers"),
        ("--dynamics all", "--dynamics: expected a list of whole numbers"),
        (
            "--dynamics 1 --dynamics-sentences -1",
            "--dynamics-sentences: expected a number at least 0, got -1",
        ),
    ],
)
def test_wrong_epochs_are_one_clear_line(words, message):
    with pytest.raises(ConfigError, match=message):
        read(FitConfig, words.split())


def test_a_base_without_dynamics_is_the_base_it_always_was(configure, corpus):
    def made_of(*flags):
        return base_fingerprint(configure(*flags), corpus, "32")

    plain, other = made_of(), made_of("--dynamics-sentences", "13")
    assert plain.keys() == {"text_digest", "seed", "precision", "devices", "model", "text", "train"}
    assert other == plain
    given = [made_of("--dynamics", epochs) for epochs in ("1,3", "3,1", "1")]
    assert given[0] == given[1] != given[2]
    assert plain.items() < given[2].items()


def test_a_base_is_pruned_while_it_trains_and_its_figure_drawn(configure, corpus, capsys):
    flags = (
        "--gate",
        "none",
        "--train.epochs",
        "2",
        "--dynamics",
        "1,2",
        "--dynamics-sentences",
        "29",
        "--dynamics-valid-sentences",
        "5",
    )
    folder = Experiment(configure(*flags)).run()
    assert [(row["epoch"], row["heads_closed"]) for row in read_rows(folder)][9:12] == [
        (1, 19),
        (2, 0),
        (2, 3),
    ]
    record = folder.read_json("curves/dynamics.json")
    assert (record["epochs"], record["train_sentences"], record["valid_sentences"]) == ([1, 2], 29, 5)
    assert record["kinds"] == ["enc-self", "dec-self", "cross"]
    assert record["signatures"]["bleu"].startswith("nrefs:1")
    assert {"command", "commit", "seed", "device", "versions"} <= record.keys()
    assert str(folder.path.parent) not in json.dumps(record)
    assert (folder / "curves/dynamics.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "curves/dynamics.svg").read_text().startswith("<?xml")
    assert capsys.readouterr().out.count("dynamics: epoch") == 2
    with pytest.raises(
        ValueError,
        match=r"--dynamics prunes a base while it trains, and .* was trained without; leave one of them out",
    ):
        Experiment(configure("--base", str(folder.path), "--dynamics", "1")).run()
    assert (
        Experiment(configure("--base", str(folder.path), "--dynamics", "2,1", "--gate", "none")).run().path
        == folder.path
    )
