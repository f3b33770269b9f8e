"""Checkpoints come back whole, hold plain tensors only, and a broken one is one clear line."""

import pickle
from pathlib import Path

import pytest
import torch

from headgates.gates import attach
from headgates.models.checkpoint import architecture, load_file, load_model, save_file, save_model
from headgates.models.search import best_hypotheses
from tests.worlds.searched_model import BEAM

MAPS = Path("/proc/self/maps")


@pytest.mark.parametrize(
    "settings", [{}, {"norm": "post", "positions": "learned", "max_positions": 17, "embeddings": "separate"}]
)
def test_a_model_comes_back_from_its_file(make_model, batch, tmp_path, settings):
    model = make_model(**settings)
    save_model(tmp_path / "best.pt", model.train())
    model.eval()
    loaded = load_model(tmp_path / "best.pt")
    assert (loaded.config, loaded.training) == (model.config, False)
    shared = [each.output.weight is each.target_embedding.weight for each in (model, loaded)]
    assert shared[0] == shared[1] == ("embeddings" not in settings)
    assert torch.equal(loaded(*batch), model(*batch))


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    "content",
    [
        *(0.0, 0.01, 0.6, 0.999),  # shares of a whole one
        *(b"hello", b"PK\x03\x04", pickle.dumps({"model": 1})),
        *([1, 2], {"model": {}}, {"architecture": [], "model": {}}, {"architecture": {}, "model": {}}),
    ],
    ids=str,
)
def test_a_file_that_is_cut_short_or_no_checkpoint_is_one_line_that_names_it(model, tmp_path, content):
    path = tmp_path / "best.pt"
    if isinstance(content, float):
        save_model(path, model)
        whole = path.read_bytes()
        content = whole[: int(content * len(whole))]
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        save_file(path, content)
    with pytest.raises(ValueError, match=r"best\.pt") as error:
        load_model(path)
    one_line(error)


def test_a_missing_file_asks_whether_the_run_is_finished(tmp_path):
    with pytest.raises(ValueError, match=r"no checkpoint at .*best\.pt; is the run finished"):
        load_file(tmp_path / "best.pt")


@pytest.mark.parametrize(
    "change",
    [
        {"encoder_layers": 10**7},
        {"max_positions": 10**12},
        {"d_model": 10**9},
        {"heads": 0},
        {"dropout": "much"},
        {},
    ],
    ids=str,
)
def test_an_architecture_of_other_weights_or_any_size_is_refused_before_memory_is_taken(
    model, tmp_path, change
):
    description = architecture(model) | ({} if change else {"target_vocab": 29})
    description["model"] |= change
    save_file(tmp_path / "best.pt", {"architecture": description, "model": model.state_dict()})
    message = r"best\.pt do not fit its architecture .*; repeat the run with --fresh"
    with pytest.raises(ValueError, match=message) as error:
        load_model(tmp_path / "best.pt")
    one_line(error)


def test_a_gated_model_s_file_does_not_load_as_an_ungated_one(model, tmp_path):
    attach(model)
    save_model(tmp_path / "best.pt", model)
    with pytest.raises(ValueError, match="do not fit its architecture"):
        load_model(tmp_path / "best.pt")


def test_loading_makes_no_copy_of_the_weights_and_keeps_bf16(make_model, tmp_path):
    path = tmp_path / "best.pt"
    for dtype, kept in ((torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.float16, torch.float32)):
        model = make_model(embeddings="tied-decoder").to(dtype)
        save_model(path, model)
        loaded = load_model(path)
        assert {each.dtype for each in loaded.parameters()} == {kept}
        assert loaded.output.weight is loaded.target_embedding.weight
        if MAPS.is_file():  # of this process; Linux has it
            assert (str(path) in MAPS.read_text()) == (kept == dtype)
        for name, tensor in load_file(path)["model"].items():
            assert torch.equal(loaded.state_dict()[name], tensor.to(kept))
        del loaded
    loaded = load_model(path)
    with torch.no_grad():  # what is written is this process's own
        loaded.output.weight.zero_()
    assert load_model(path).output.weight.any()


def test_a_model_in_bf16_translates(make_model, batch):
    model = make_model().bfloat16()
    with torch.no_grad():
        logits, whole = model(*batch), model.float()(*batch)
    assert logits.dtype == torch.bfloat16
    assert (logits - whole).abs().max() < 0.05 * whole.abs().max()
    assert len(best_hypotheses(model.bfloat16(), batch[0], BEAM)) == len(batch[0])
