"""A stage that learns from another model too: its loss, and that the teacher stays as it was and in no
checkpoint."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from headgates.configs.stages import DistillConfig
from headgates.lightning_modules.distilling import Distilling
from headgates.models.checkpoint import load_file
from headgates.tasks.base import Task
from headgates.tasks.classification import Classification
from headgates.tasks.translation import Translation
from tests.lightning_modules.stages import STAGE, train

SOFT = DistillConfig(weight=0.3, temperature=2.0)


@pytest.fixture
def batch(data):
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


def by_hand(own, teacher, labels):
    """0.7 cross-entropy + 0.3 * 4 KL at temperature 2, of whole logits."""
    q, log_s = (teacher / 2).softmax(1), (own / 2).log_softmax(1)
    cross_entropy = F.cross_entropy(own, labels, label_smoothing=0.1, reduction="sum")
    return 0.7 * cross_entropy + 0.3 * 4 * (q * (q.log() - log_s)).sum()


def test_the_loss_of_translation_is_that_of_the_whole_logits(translator, teacher, batch):
    model = translator.model.eval()
    got = Distilling(teacher, SOFT).loss(Translation(), model, batch, smoothing=0.1)
    real = batch.target_out != model.target_specials.padding
    own, dense = (each(batch.source, batch.target_in)[real] for each in (model, teacher.eval()))
    torch.testing.assert_close(got, by_hand(own, dense, batch.target_out[real]))


def test_the_loss_of_classification_is_that_of_the_whole_logits():
    torch.manual_seed(0)
    source, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([[1], [0], [3], [3], [2]])
    model, teacher = (torch.nn.Linear(3, 4, dtype=torch.float64) for _ in range(2))
    batch = SimpleNamespace(source=source, target_out=labels)
    got = Distilling(teacher, SOFT).loss(Classification(), model, batch, smoothing=0.1)
    torch.testing.assert_close(got, by_hand(model(source), teacher(source), labels[:, 0]))


def test_a_student_comes_nearer_to_its_teacher_which_is_neither_trained_nor_kept(
    translator, teacher, data, tmp_path, batch
):
    teacher.eval()

    def divergence():
        model = translator.model.eval()
        with torch.no_grad():
            dense, own = (each(batch.source, batch.target_in).log_softmax(-1) for each in (teacher, model))
        return float(F.kl_div(own, dense, log_target=True, reduction="sum"))

    before, weights = divergence(), copy.deepcopy(teacher.state_dict())
    distilling = Distilling(teacher.train(), DistillConfig(weight=1.0))
    stage = replace(STAGE, epochs=1, lr=0.003, warmup_steps=3, average=0.0)
    train(translator, data, tmp_path, stage=stage, of_module={"distilling": distilling})
    assert divergence() < 0.7 * before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in teacher.state_dict().items())
    assert not teacher.training
    assert not any("teacher" in name for name in load_file(tmp_path / "last.pt")["state_dict"])


def test_a_task_without_distillation_says_so():
    with pytest.raises(ValueError, match=r"object has no distillation; leave --distill\.weight at 0"):
        Task.distilled_loss(object(), None, None, None, smoothing=0.0, distill=SOFT)
