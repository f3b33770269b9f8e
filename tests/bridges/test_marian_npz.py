"""Marian's models out again: they come back with the same numbers, and CTranslate2's converter reads them."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from headgates.bridges.exported import open_exported
from headgates.bridges.formats import export
from headgates.bridges.marian import load_arrays, read
from headgates.configs.source import ForeignOptions, SourceOptions
from headgates.data.shortlist import SHORTLIST_FILE, Shortlist, read_shortlist
from headgates.gates import FFN_KINDS, HeadMap, attach, find_sites, remove
from headgates.gates.depth import drop_layers
from headgates.lightning_modules.module import keep_zero_beginning
from headgates.models.translator import Translator
from headgates.records.foreign_run import foreign_run
from headgates.records.source import Source, open_source
from tests.bridges.test_marian import CASES, SOURCES, TARGETS, keys, scored_by_ctranslate2
from tests.worlds.marian_models import SSRU, WORDS, D, write_marian
from tests.worlds.translators import difference


def source(tmp_path, name="model.npz", **changes) -> Source:
    path = write_marian(tmp_path / "in", name, **keys(changes))
    return open_source(f"marian:{path}", options=SourceOptions(runs=str(tmp_path / "runs")))


OUT = ["pre, relu", "embedding norm, gelu", "separate"]


def exported(translator: Translator, folder, format="marian"):
    translator.search = replace(translator.search, max_ratio=1.0, max_extra=3)  # an untrained model ends late
    return export(translator, format, folder, lines=SOURCES, references=TARGETS, provenance={})


@pytest.mark.parametrize("changes", [*map(CASES.get, OUT), SSRU], ids=[*OUT, "ssru"])
def test_what_came_in_goes_out_and_comes_back_with_the_same_numbers(tmp_path, changes):
    run = source(tmp_path, **changes)
    about = exported(run.translator, tmp_path / "out")
    assert about["parity"]["log_prob_max_difference"] == 0
    first, again = (np.load(path) for path in (tmp_path / "in/model.npz", tmp_path / "out/model.npz"))
    assert {name.replace("_out_Wt", "_out_W") for name in again.files} == set(first.files)
    gelu = changes.get("transformer-ffn-activation") == "gelu"  # which goes out as the swish that it is
    for name in set(first.files) & set(again.files) - {"special:model.yml"}:
        assert np.array_equal(first[name], again[name]) or (gelu and "_ffn_" in name), name
    back = read(str(tmp_path / "out"), ForeignOptions()).convert().translator
    assert back.score(SOURCES, TARGETS) == run.translator.score(SOURCES, TARGETS)
    assert (back.search.beam, back.search.length_penalty) == (4, 0.6)


@pytest.mark.parametrize("closed", ["none", "some", "trained"])
def test_int8_that_came_in_goes_out_as_int8(tmp_path, closed):
    run, path = source(tmp_path, "model.int8.bin"), tmp_path / "in/model.int8.bin"
    if closed == "some":
        attach(run.model, gate="mask", xi=HeadMap({site: [0.0, 1.0, 1.0] for site in find_sites(run.model)}))
    elif closed == "trained":
        with torch.no_grad():
            run.model.encoder.layers[0].feed_forward.inner.weight *= torch.linspace(0.9, 1.1, D)
    about = exported(run.translator, tmp_path / "out")
    apart = about["parity"]["log_prob_max_difference"]
    assert about["rounded"] == (closed == "trained")
    assert apart <= {"none": 0, "some": 1e-5, "trained": 0.1}[closed]
    assert f"{path.stat().st_size / 1e6:.1f} MB; {12 if closed == 'some' else 18} of 18" in about["said"]
    (first, _, by), (again, _, by_again) = map(load_arrays, (path, tmp_path / "out/model.intgemm8.bin"))
    assert (by.keys(), again.keys()) == (by_again.keys(), first.keys())
    if closed == "none":
        assert all(np.array_equal(first[name], again[name]) for name in first)


def test_a_model_that_was_trained_on_goes_out_again(tmp_path):
    run = source(tmp_path)
    model, table = run.model.train(), run.model.target_embedding.weight
    keep_zero_beginning(model)
    ids = torch.tensor(run.translator.encode(SOURCES[:1]))
    begun = torch.full((1, 3), model.target_specials.beginning)  # as every decoder begins
    before, optimizer = table.detach().clone(), torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(2):
        model(ids, begun).logsumexp(-1).sum().backward()
        optimizer.step()
    assert not torch.equal(table, before)
    assert exported(run.translator, tmp_path / "out")["parity"]["log_prob_max_difference"] < 1e-4


@pytest.mark.parametrize("joint", [True, False])
def test_a_shortlist_goes_out_as_marian_checks_it(tmp_path, joint):
    run = source(tmp_path, **({} if joint else CASES["separate"]))
    translator, words = run.translator, run.translator.model.target_vocab - 1
    lists = [[piece % words, 1] for piece in range(translator.model.source_vocab - 1)] + [[words]]
    lists[-2] = []  # the last that Marian knows
    exported(translator.with_shortlist(Shortlist.of(lists)), tmp_path / "out")
    found = read_shortlist(tmp_path / "out" / SHORTLIST_FILE)
    assert found.sources == translator.model.source_vocab - 1
    # marian-dev, data/shortlist.cpp, contentCheck
    assert all(found.offsets[:-1] < len(found.ids))
    assert found.offsets[-1] == len(found.ids)
    assert all(found.ids < words)


def smaller(model):
    """Two of its four layers, with 9 of 14 neurons in the encoder and 11 in the decoder."""
    drop_layers(model, {"encoder": [0], "decoder": [0]})
    sites = find_sites(model, FFN_KINDS)
    closed = {site: torch.arange(14) < (5 if site.stack == "encoder" else 3) for site in sites}
    remove(model, HeadMap(closed))


@pytest.mark.parametrize("closed", ["heads", "layers and neurons"])
def test_ctranslate2_s_converter_reads_it_with_less_of_it(tmp_path, closed):
    run = source(tmp_path)
    if closed == "heads":
        rows = {site: [0.0, 1.0, 0.5] if site.layer else [0.0, 0.0, 0.0] for site in find_sites(run.model)}
        attach(run.model, gate="mask", xi=HeadMap(rows))
    else:
        smaller(run.model)
    exported(run.translator, tmp_path / "out")
    arrays, settings, _ = load_arrays(tmp_path / "out/model.npz")
    if closed == "heads":
        assert not arrays["encoder_l1_self_Wv"].any()
        # no site has more than 2 of its 3 heads of width 4: 2 of width 6
        assert (settings["transformer-heads"], arrays["encoder_l2_self_Wv"].shape) == (2, (D, D))
        assert not arrays["encoder_l2_self_Wv"].reshape(D, 2, 6)[..., 4:].any()
    else:
        sizes = ("enc-depth", "dec-depth", "transformer-dim-ffn", "transformer-decoder-dim-ffn")
        assert [settings[name] for name in sizes] == [1, 1, 9, 11]
    expected = scored_by_ctranslate2(tmp_path, arrays, settings, tmp_path / "out/vocab0.yml")
    assert difference(run.translator.score(SOURCES, TARGETS), expected) < 1e-4


def test_int8_layers_that_stay_keep_their_own_multipliers(tmp_path):
    run, path = source(tmp_path, "model.int8.bin"), tmp_path / "in/model.int8.bin"
    smaller(run.model)
    about = exported(run.translator, tmp_path / "out")
    assert not about["rounded"]
    assert about["parity"]["log_prob_max_difference"] < 1e-5
    (first, _, by), (again, settings, by_again) = map(
        load_arrays, (path, tmp_path / "out/model.intgemm8.bin")
    )
    assert by_again["encoder_l1_ffn_W1"] == by["encoder_l2_ffn_W1"] != by["encoder_l1_ffn_W1"]
    assert {name for name in first if "_l2_" not in name} == set(again)
    assert settings["transformer-dim-ffn"] == 14  # 64 at most, as the engine's products need it


@pytest.mark.parametrize(
    ("settings", "error"),
    [({}, "no positions 'sinusoidal', only 'tensor2tensor'"), ({"activation": "gelu"}, "no ")],
)
def test_what_marian_cannot_express_is_refused_by_name(make_translator, tmp_path, settings, error):
    with pytest.raises(ValueError, match=f"Marian has {error}.*take --to onnx"):
        exported(make_translator(**settings), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_beginning_that_was_trained_and_other_vocabularies_are_refused(make_translator, tmp_path):
    run = source(tmp_path)
    run.model.target_embedding.weight.data[len(WORDS), D - 1] = 0.1
    for translator in (run.translator, make_translator(positions="tensor2tensor", norm_eps=1e-6)):
        with pytest.raises(ValueError, match="begins with an embedding of 0"):
            exported(translator, tmp_path / "out")


def test_an_ssru_decoder_is_no_model_of_ctranslate2(tmp_path):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2")
    with pytest.raises(ValueError, match="no decoder with decoder_mixer 'ssru'; take --to onnx"):
        exported(source(tmp_path, **SSRU).translator, tmp_path / "out", "ct2")


def test_ctranslate2_keeps_marian_s_numbers_of_special_tokens(tmp_path):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2")
    translator = source(tmp_path).translator
    exported(translator, tmp_path / "out", "ct2")  # its searches are compared here
    opened = open_exported(tmp_path / "out")
    specials = translator.model.target_specials
    assert specials.padding == specials.beginning == len(WORDS)
    assert (opened.source_vocab.specials, opened.target_vocab.specials) == (specials, specials)


def test_a_model_that_another_process_made_a_run_of_meanwhile_is_not_made_again(tmp_path, monkeypatch):
    foreign = read(str(write_marian(tmp_path / "in", "model.npz")), ForeignOptions())
    made, convert = [], foreign.convert
    foreign = replace(foreign, convert=lambda: made.append(1) or convert())
    start = partial(foreign_run, "marian", foreign, tmp_path / "runs", {}, {})

    @contextmanager
    def locked(name):  # as it is given: the other has ended
        monkeypatch.undo()
        start()
        yield

    monkeypatch.setattr("headgates.records.foreign_run.locked", locked)
    assert start().path == start().path
    assert len(made) == 1
