"""close_heads and closed_heads: what each way leaves, that a context leaves nothing, and the text they are
calibrated on."""

import copy
from dataclasses import replace

import pytest
import torch

from headgates.analysis.scores.weight_norm import weight_norm
from headgates.configs.closing import CLOSED_OUTPUTS, REFITS, RESAMPLE
from headgates.data.text import ParallelText
from headgates.gates import HeadMap, find_sites, zero_heads
from headgates.pruning.closing import Calibration, close_heads, closed_heads

CLOSINGS = [*CLOSED_OUTPUTS, *REFITS]
PERMANENT = [name for name in CLOSINGS if name != RESAMPLE]
MORE = {
    "distill": [""],
    "out+ffn+v": [".feed_forward.outer.", ".v_proj."],
}  # beside W_O


@pytest.fixture
def dense(make_dense):
    return make_dense()


def some(dense, count: int = 3) -> HeadMap:
    return weight_norm(dense.model, []).lowest(count)


def weights(dense) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in dense.model.state_dict().items()}


def logits(dense) -> torch.Tensor:
    (batch, *_) = Calibration(dense)
    with torch.no_grad():
        return dense.model(batch.source, batch.target_in)


@pytest.mark.parametrize("how", CLOSINGS)
def test_a_context_closes_and_leaves_the_model_bit_for_bit_as_it_was(dense, how):
    before, whole, state = (
        weights(dense),
        logits(dense),
        {name: set(vars(m)) for name, m in dense.model.named_modules()},
    )
    with closed_heads(dense.model, some(dense), how, Calibration(dense)):
        assert not torch.allclose(logits(dense), whole)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(dense).items())
    assert torch.equal(logits(dense), whole)
    assert {name: set(vars(module)) for name, module in dense.model.named_modules()} == state


def test_a_context_that_fails_leaves_the_model_as_it_was_too(dense):
    before = weights(dense)
    with (
        pytest.raises(ZeroDivisionError),
        closed_heads(dense.model, some(dense), "out", Calibration(dense)),
    ):
        raise ZeroDivisionError
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(dense).items())


@pytest.mark.parametrize("how", PERMANENT)
def test_closing_for_good_changes_last_projections_alone_and_zeroes_the_closed_columns(dense, how):
    before, closed = weights(dense), some(dense)
    close_heads(dense.model, closed, how, Calibration(dense))
    changed = [name for name, tensor in weights(dense).items() if not torch.equal(tensor, before[name])]
    assert changed
    assert all(any(part in name for part in [".out_proj.", *MORE.get(how, ())]) for name in changed)
    for site, module in find_sites(dense.model).items():
        columns = module.out_proj.weight.unflatten(1, (site.heads, -1))  # (D, H, K)
        assert not columns[:, closed[site]].any()
        assert columns[:, ~closed[site]].any() or closed[site].all()
    twice = weights(dense)
    zero_heads(dense.model, closed)
    assert all(torch.equal(tensor, twice[name]) for name, tensor in weights(dense).items())


def test_the_sample_is_always_the_same_and_pairs_stay_together(dense):
    pairs = dict(zip(dense.corpus.train.sources, dense.corpus.train.targets, strict=True))
    first, again, all_of_it = (Calibration(dense, sentences=count).text for count in (7, 7, 0))
    assert (first.sources, first.targets) == (again.sources, again.targets)
    assert len(first) == 7
    assert all(pairs[source] == target for source, target in zip(first.sources, first.targets, strict=True))
    assert len(all_of_it) == len(dense.corpus.train)


def test_of_a_run_on_part_of_the_text_only_that_part_is_drawn(dense):
    dense.config["text"] = {**dense.config["text"], "train_sentences": 5}
    assert Calibration(dense, sentences=1000).text.sources == dense.corpus.train.sources[:5]


def test_own_targets_are_the_whole_models_translations(dense):
    calibration = Calibration(dense, targets="own")
    expected = dense.translator.translate(calibration.text.sources, beam=1)
    close_heads(dense.model, some(dense), "out", calibration)
    assert calibration.data.corpus.train.targets == expected


def test_no_text_is_refused(dense):
    dense.corpus = replace(dense.corpus, train=ParallelText([" "], ["x"]))
    with pytest.raises(ValueError, match="the calibration text is empty; give at least one source line"):
        close_heads(dense.model, some(dense), "out", Calibration(dense))


def test_distilling_comes_nearer_to_the_unpruned_model_than_its_refit_and_keeps_heads_closed(dense):
    teacher, closed, calibration = copy.deepcopy(dense.model), some(dense, 7), Calibration(dense)

    def divergence() -> float:
        found = []
        for batch in calibration:
            real = batch.target_out != dense.model.target_specials.padding
            with torch.no_grad():
                ours, theirs = (
                    m(batch.source, batch.target_in)[real].log_softmax(-1) for m in (dense.model, teacher)
                )
            found.append(float(torch.nn.functional.kl_div(ours, theirs, log_target=True, reduction="sum")))
        return sum(found)

    reached = {}
    for how in ("zero", "out+ffn+v", "distill"):
        with closed_heads(dense.model, closed, how, calibration):
            reached[how] = divergence()
            inside = logits(dense)
            zero_heads(dense.model, closed)
            assert torch.equal(logits(dense), inside), "closed heads give nothing"
    assert reached["distill"] < reached["out+ffn+v"] < reached["zero"]
