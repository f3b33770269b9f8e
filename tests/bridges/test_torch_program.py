"""torch.export programs: they say what the model says, for any number of lines and beams, and torch alone can
run them."""

import zipfile
from pathlib import Path

import pytest
import torch

from headgates.bridges import torch_export
from headgates.bridges.formats import open_exported

ROOT = Path(__file__).resolve().parents[2]
CASES = ["uneven", "empty layers", "all", "ssru"]


@pytest.mark.parametrize("name", CASES)
def test_one_line_or_many_with_any_beam_are_translated_as_by_the_model(exported, pairs, name):
    case = exported("torch", name)
    opened = torch_export.open(case.folder)
    for lines in (pairs[0], pairs[0][:1], ["a"], []):
        for beam in (1, 5):
            expected = case.translator.translate_n_best(lines, beam=beam, length_penalty=0.6)
            found = opened.translate_n_best(lines, beam=beam, length_penalty=0.6)
            assert [[one.text for one in best] for best in found] == [
                [one.text for one in best] for best in expected
            ]


def test_its_files_are_the_two_programs_and_the_vocabularies(exported):
    assert set(exported("torch", "uneven").about["files"]) == {
        "encoder.pt2",
        "decoder.pt2",
        "vocab.src.model",
        "vocab.tgt.model",
    }


def test_its_files_hold_every_weight_once(exported):
    case = exported("torch", "uneven")
    size = 0
    for path in case.folder.glob("*.pt2"):
        with zipfile.ZipFile(path) as archive:
            size += sum(each.file_size for each in archive.infolist() if "/weights/weight_" in each.filename)
    assert size == 4 * sum(parameter.numel() for parameter in case.translator.model.parameters())


def test_no_file_names_a_folder_of_the_machine(exported):
    for path in exported("torch", "uneven").folder.glob("*.pt2"):
        with zipfile.ZipFile(path) as archive:
            assert [name for name in archive.namelist() if str(ROOT).encode() in archive.read(name)] == []


def test_torch_alone_scores_whole_sentences_with_it(exported, batch, alone):
    case = exported("torch", "empty layers")
    source, target_in = batch
    code = f"""
import numpy, torch
encoder, decoder = (torch.export.load(name + ".pt2").module() for name in ("encoder", "decoder"))
bias, *cross = encoder(torch.tensor({source.tolist()}))
ids = torch.tensor({target_in.tolist()})[:, None]
past = [torch.empty(3, 1, 1, 0, 11)] * 2
numpy.savez("out.npz", logits=decoder(ids, torch.tensor(0), bias, cross, past)[0])
"""
    with torch.no_grad():
        expected = case.translator.model(source, target_in)
    torch.testing.assert_close(
        torch.from_numpy(alone(case.folder, code)["logits"])[:, 0], expected, atol=1e-5, rtol=1e-5
    )


def test_a_written_program_is_never_opened_again(exported, monkeypatch):
    """Opening a torch program can run code, and nobody can tell who wrote the folder."""
    monkeypatch.setattr(torch.export, "load", None)
    with pytest.raises(
        ValueError, match=r"can run code; translate with the run, or export it --to onnx or ct2"
    ):
        open_exported(exported("torch", "uneven").folder)
