"""The loss with a teacher against torch's own functions on the whole logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headgates.data.special_tokens import SpecialTokens
from headgates.models.distillation import distilled_cross_entropy
from headgates.models.loss import CHUNK

PAD = SpecialTokens().padding
V = 31


def side(width, tokens, *, bias=False, seed=0):
    """Decoder states (2, tokens, width) and an output projection."""
    torch.manual_seed(seed)
    output = nn.Linear(width, V, bias=bias, dtype=torch.float64)
    return torch.randn(2, tokens, width, dtype=torch.float64).requires_grad_(), output


def targets_of(tokens):
    targets = torch.randint(1, V, (2, tokens), generator=torch.Generator().manual_seed(1))
    targets[1, tokens // 2 :] = PAD
    return targets


def reference(student, teacher, targets, smoothing, weight, temperature):
    real = targets != PAD
    logits, dense = (output(hidden)[real] for hidden, output in (student, teacher))
    own = F.cross_entropy(logits, targets[real], label_smoothing=smoothing, reduction="sum")
    soft = F.kl_div(
        F.log_softmax(logits / temperature, 1), F.softmax(dense.detach() / temperature, 1), reduction="sum"
    )
    return (1 - weight) * own + weight * temperature**2 * soft


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("tokens", "smoothing", "weight", "temperature"), [(5, 0.1, 0.4, 1.0), (CHUNK + 3, 0.3, 0.9, 2.5)]
)
def test_loss_and_gradients_are_those_of_the_whole_logits(smoothing, weight, temperature, tokens, bias):
    student, teacher, targets = (
        side(7, tokens, bias=bias),
        side(11, tokens, bias=bias, seed=5),
        targets_of(tokens),
    )
    how = {"smoothing": smoothing, "weight": weight, "temperature": temperature}
    ours, theirs = (
        distilled_cross_entropy(student, teacher, targets, padding=PAD, **how),
        reference(student, teacher, targets, **how),
    )
    torch.testing.assert_close(ours, theirs)
    inputs = [student[0], *student[1].parameters()]
    torch.testing.assert_close(torch.autograd.grad(ours / 3, inputs), torch.autograd.grad(theirs / 3, inputs))


def test_a_student_that_is_its_teacher_has_nothing_to_learn_and_a_teacher_gets_no_gradient():
    student, teacher, targets = side(7, 9), side(11, 9, seed=5), targets_of(9)
    how = {"padding": PAD, "smoothing": 0.1, "weight": 1.0, "temperature": 2.0}
    loss = distilled_cross_entropy(student, student, targets, **how)
    torch.testing.assert_close(loss, torch.zeros((), dtype=torch.float64))
    loss.backward()
    assert student[0].grad.abs().max() < 1e-12
    distilled_cross_entropy(student, teacher, targets, **how).backward()
    assert teacher[0].grad is None
    assert teacher[1].weight.grad is None


def test_under_autocast_it_is_close_to_fp32():
    student, teacher, targets = side(7, 9), side(11, 9, seed=5), targets_of(9)
    student, teacher = ((hidden.detach().float(), output.float()) for hidden, output in (student, teacher))
    how = {"padding": PAD, "smoothing": 0.1, "weight": 0.5, "temperature": 2.0}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = distilled_cross_entropy(student, teacher, targets, **how)
    assert low.dtype == torch.float32
    assert low.item() == pytest.approx(
        distilled_cross_entropy(student, teacher, targets, **how).item(), rel=0.02
    )
