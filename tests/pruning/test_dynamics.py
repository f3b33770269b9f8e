"""Pruning while the base trains: the right model is pruned in the right order, and the training does not
notice."""

import json
from dataclasses import replace

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU

from headgates.analysis.scores.importance import raw_importance
from headgates.configs.cli import read_command
from headgates.configs.settings import Settings
from headgates.gates import HeadMap, attach, detach
from headgates.lab.lab import Lab
from headgates.lightning_modules import stage_callback
from headgates.lightning_modules.stage_callback import StageCallback, Watcher
from headgates.models.checkpoint import load_file, load_model
from headgates.models.translator import Translator
from headgates.pruning import dynamics
from headgates.pruning.base import base_run
from headgates.pruning.dynamics import Dynamics, read_rows
from headgates.records.fingerprint import base_fingerprint
from headgates.records.folder import RunFolder
from tests.lightning_modules import stages
from tests.lightning_modules.stages import STAGE, PowerCut, equal, rows, untrained


@pytest.fixture
def train(translator, data, corpus, tmp_path):
    """train("name", [1, 3]): the folder and the result of a stage that prunes after these epochs; always the
    same weights, dropout 0.2. around: watchers before and after."""

    def run(name, epochs, *, stage=STAGE, resume=False, around=((), ())):
        folder = RunFolder(tmp_path / name)
        valid = (corpus.valid.sources[:7], corpus.valid.targets[:7])
        own = [Dynamics(folder, epochs, data, valid, facts={})] if epochs else []
        watchers = [*around[0], *own, *around[1]]
        result, _ = stages.train(
            untrained(translator), data, folder.path, stage=stage, resume=resume, watchers=watchers
        )
        return folder, result

    return run


class Around(Watcher):
    """What a training step could notice, where it stands; `gradient`: given to all weights first, as
    Lightning has just dropped theirs."""

    def __init__(self, gradient=None):
        self.seen, self.gradient = [], gradient

    def on_validated(self, trainer, module):
        for parameter in module.model.parameters() if self.gradient is not None else ():
            parameter.grad = torch.full_like(parameter, self.gradient)
        gradients = [parameter.grad.clone() for parameter in module.model.parameters()]
        flags = [(p.requires_grad, p.data_ptr()) for p in module.model.parameters()]
        modes = [each.training for each in module.modules()]
        self.seen.append([torch.get_rng_state(), gradients, flags, modes, sorted(module.state_dict())])


def test_the_training_is_bit_by_bit_that_without_it(train):
    stage, before, after = replace(STAGE, average=0.8), Around(gradient=0.5), Around()
    plain, result = train("plain", [], stage=stage)
    pruned, watched = train("pruned", [1, 2, 3], stage=stage, around=([before], [after]))
    assert equal(before.seen, after.seen)
    assert len(read_rows(pruned)) == 30
    assert watched.losses == result.losses
    assert equal(load_file(plain / "best.pt"), load_file(pruned / "best.pt"))
    left, right = load_file(plain / "last.pt"), load_file(pruned / "last.pt")
    assert all(equal(left[name], right[name]) for name in ("state_dict", "optimizer_states", "lr_schedulers"))
    left, right = (each["callbacks"]["StageCallback"]["average"] for each in (left, right))
    assert equal(left, right)
    assert rows(plain) == rows(pruned)


def by_hand(model, translator, data, corpus):
    """(heads closed, BLEU) of every tenth, the slow way: scores sorted by hand, xi of 0 and 1."""
    scores = raw_importance(model, data.batches("train", 211)).l2_per_layer()
    order = sorted((x, site, head) for site, row in scores.items() for head, x in enumerate(row.tolist()))
    system = Translator(model, translator.source_vocab, translator.target_vocab, translator.search)
    out = []
    for closed in (0, 3, 5, 7, 9, 11, 13, 15, 17, 19):  # of 21 heads, a tenth more each time, rounded up
        xi = {site: torch.ones(site.heads) for site in scores}
        for _, site, head in order[:closed]:
            xi[site][head] = 0.0
        attach(model, gate="mask", xi=HeadMap(xi))
        lines = system.translate(corpus.valid.sources[:7], beam=1)
        detach(model)
        bleu = BLEU(force=True).corpus_score(lines, [corpus.valid.targets[:7]]).score
        out.append((closed, pytest.approx(bleu)))
    return out


def test_the_rows_are_those_of_the_validated_average_pruned_by_hand_anew(train, translator, data, corpus):
    folder, result = train("nine", [1, 9], stage=replace(STAGE, epochs=9, lr=0.03))
    found = read_rows(folder)[10:]
    assert [(row["epoch"], row["closed_share"]) for row in found] == [(9, tenth / 10) for tenth in range(10)]
    assert result.best_epoch == 8  # so that best.pt holds the weights that were validated last
    expected = by_hand(load_model(folder / "best.pt"), translator, data, corpus)
    assert [(row["heads_closed"], row["valid_bleu"]) for row in found] == expected
    assert all((row["heads_open"], row["heads_total"]) == (21 - row["heads_closed"], 21) for row in found)
    bleu = [row["valid_bleu"] for row in found]
    assert len(set(bleu)) > 4
    assert [row["valid_bleu_relative"] for row in found] == pytest.approx([each / bleu[0] for each in bleu])


def test_a_run_interrupted_after_pruning_before_the_epoch_is_on_disk_has_each_epoch_once(train, monkeypatch):
    whole, _ = train("whole", [1, 2])
    original = StageCallback.on_train_epoch_end

    def cut(self, trainer, *rest):
        if trainer.current_epoch == 1:
            raise PowerCut
        return original(self, trainer, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(StageCallback, "on_train_epoch_end", cut)
        with pytest.raises(PowerCut):
            train("cut", [1, 2])
    resumed, _ = train("cut", [1, 2], resume=True)
    assert (resumed / "curves/dynamics.csv").read_bytes() == (whole / "curves/dynamics.csv").read_bytes()


def test_its_time_is_not_counted_as_training_time(train, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(stage_callback.time, "perf_counter", lambda: clock[0])

    def slow(*arguments, **options):
        clock[0] += 1000
        return raw_importance(*arguments, **options)

    monkeypatch.setattr(dynamics, "raw_importance", slow)
    _, result = train("slow", [1, 2])
    assert clock == [2000.0]
    assert result.seconds == 0


# ---------------------------------------------------------------- --dynamics


@pytest.mark.parametrize("epochs", ["1,8", "2,2", "1.5"])
def test_epochs_that_the_training_has_not_or_has_once_are_refused(epochs):
    with pytest.raises(ValueError, match="dynamics: expected"):
        read_command(Settings, ["--train.epochs", "7", "--set", f"dynamics={epochs}"]).check_dynamics()


def test_a_base_with_dynamics_is_another_base_and_the_order_of_epochs_is_none(configure, corpus):
    def cache_key(*flags):
        return base_fingerprint(configure(*flags), corpus, "32")

    given = [cache_key("--set", "dynamics=" + epochs) for epochs in ("1,3", "3,1", "1")]
    assert given[0] == given[1] != given[2]
    assert given[2] != cache_key()


def test_a_base_is_pruned_while_it_trains(configure, capsys):
    flags = ("--train.epochs", "2", "--set", "dynamics=1,2", "--set", "sentences=29", "--test-sentences", "5")
    lab = Lab(configure(*flags))
    folder = base_run(lab)
    lab.close()
    found = [(row["epoch"], row["heads_closed"]) for row in read_rows(folder)]
    assert found[9:12] == [(1, 19), (2, 0), (2, 3)]
    record = folder.read_json("curves/dynamics.json")
    assert (record["epochs"], record["train_sentences"], record["valid_sentences"]) == ([1, 2], 29, 5)
    assert record["search"]["beam"] == 1  # between epochs translations are greedy
    assert {"command", "commit", "seed", "device", "versions"} <= record.keys()
    assert str(folder.path.parent) not in json.dumps(record)
    assert capsys.readouterr().out.count("dynamics: epoch") == 2
