"""A stage that learns from another model too: its loss, and that the teacher stays as it was and in no
checkpoint."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from headgates.configs.schema import DistillConfig, StageConfig
from headgates.lightning_modules.distilling import Distilling
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import Machine, run_stage
from headgates.models.checkpoint import load_file
from headgates.tasks.classification import Classification
from headgates.tasks.translation import Translation
from tests.tasks.bag_of_words import BagOfWords

MACHINE = Machine(devices=1, precision="32", logger="csv")
STAGE = StageConfig(epochs=1, lr=0.003, warmup_steps=3, bleu_sentences=0, label_smoothing=0.1)


@pytest.fixture
def batch(data):
    data.setup("fit")
    return next(iter(data.train_dataloader()))


@pytest.fixture
def teacher(translator):
    """Another model than the student, with dropout that must not show."""
    model = copy.deepcopy(translator.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    return model.train()


def test_the_loss_of_translation_is_that_of_the_whole_logits(translator, teacher, batch):
    model = translator.model.eval()
    distilling = Distilling(teacher, DistillConfig(weight=0.3, temperature=2.0))
    got = distilling.loss(Translation(), model, batch, smoothing=0.1)
    real = batch.target_out != model.target_specials.padding
    logits, dense = (each(batch.source, batch.target_in)[real] for each in (model, teacher.eval()))
    own = F.cross_entropy(logits, batch.target_out[real], label_smoothing=0.1, reduction="sum")
    soft = F.kl_div((logits / 2).log_softmax(1), (dense / 2).softmax(1), reduction="sum")
    torch.testing.assert_close(got, 0.7 * own + 0.3 * 4 * soft)


def test_the_teacher_is_neither_trained_nor_kept(translator, teacher, data, folder):
    before = copy.deepcopy(teacher.state_dict())
    distilling = Distilling(teacher, DistillConfig(weight=1.0))
    module = StageModule(Translation(), translator, STAGE, seed=1, distilling=distilling)
    names = set(module.state_dict())
    run_stage("base-continued", module, data, folder, MACHINE, STAGE)
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    assert not teacher.training
    assert set(load_file(folder / "last.pt")["state_dict"]) == names
    assert not any("teacher" in name for name in names)


def test_a_student_that_learns_from_the_teacher_alone_comes_nearer_to_it(
    translator, teacher, data, folder, batch
):
    teacher.eval()

    def divergence():
        model = translator.model.eval()
        with torch.no_grad():
            dense, own = (each(batch.source, batch.target_in).log_softmax(-1) for each in (teacher, model))
        return float(F.kl_div(own, dense, log_target=True, reduction="sum"))

    before = divergence()
    module = StageModule(
        Translation(), translator, STAGE, seed=1, distilling=Distilling(teacher, DistillConfig(weight=1.0))
    )
    run_stage("base-continued", module, data, folder, MACHINE, STAGE)
    assert divergence() < 0.7 * before


def test_a_task_without_distillation_says_so(translator, teacher, batch):
    with pytest.raises(ValueError, match=r"BagOfWords has no distillation; leave --distill\.weight at 0"):
        Distilling(teacher, DistillConfig(weight=0.5)).loss(
            BagOfWords(), translator.model, batch, smoothing=0.0
        )


def test_the_loss_of_classification_is_that_of_the_whole_logits():
    torch.manual_seed(0)
    source, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([[1], [0], [3], [3], [2]])
    model, teacher = (torch.nn.Linear(3, 4, dtype=torch.float64) for _ in range(2))
    batch = SimpleNamespace(source=source, target_out=labels)
    got = Distilling(teacher, DistillConfig(weight=0.3, temperature=2.0)).loss(
        Classification(), model, batch, smoothing=0.1
    )
    own = F.cross_entropy(model(source), labels[:, 0], label_smoothing=0.1, reduction="sum")
    q, log_s = (teacher(source) / 2).softmax(1), (model(source) / 2).log_softmax(1)
    torch.testing.assert_close(got, 0.7 * own + 0.3 * 4 * (q * (q.log() - log_s)).sum())
