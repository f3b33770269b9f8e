"""Marian's models out again: they come back with the same numbers, and CTranslate2's converter reads them."""

import numpy as np
import pytest

from headgates.bridges.formats import export, open_exported
from headgates.bridges.marian import read
from headgates.configs.source import ForeignOptions, SourceOptions
from headgates.gates import HeadMap, attach, find_sites
from headgates.workbench.source import Source, open_source
from tests.bridges.test_marian import CASES, SOURCES, TARGETS, keys, marian_positions
from tests.worlds.marian_models import SSRU, WORDS, D, write_marian

FACTS = {"run": "toy", "system": "base"}


def source(tmp_path, **changes) -> Source:
    path = write_marian(tmp_path / "in", **keys(changes))
    return open_source(f"marian:{path}", options=SourceOptions(runs=str(tmp_path / "runs")))


def exported(source: Source, folder):
    return export(source.translator, "marian", folder, lines=SOURCES, references=TARGETS, facts=FACTS)


OUT = {name: changes for name, changes in CASES.items() if name != "gelu"} | {"ssru": SSRU}


@pytest.mark.parametrize("changes", OUT.values(), ids=OUT)
def test_what_came_in_goes_out_and_comes_back_with_the_same_numbers(tmp_path, changes):
    run = source(tmp_path, **changes)
    about = exported(run, tmp_path / "out")
    assert about["parity"]["log_prob_max_difference"] == 0
    first, again = (np.load(path) for path in (tmp_path / "in/model.npz", tmp_path / "out/model.npz"))
    assert {name.replace("_out_Wt", "_out_W") for name in again.files} == set(first.files)
    for name in set(first.files) & set(again.files) - {"special:model.yml"}:
        assert np.array_equal(first[name], again[name]), name
    assert open_exported(tmp_path / "out").translate(SOURCES) == run.translator.translate(SOURCES)
    back = read(str(tmp_path / "out"), ForeignOptions()).convert().translator
    assert back.score(SOURCES, TARGETS) == run.translator.score(SOURCES, TARGETS)
    assert (back.search.beam, back.search.length_penalty) == (4, 0.6)


@pytest.mark.parametrize("name", ["post", "pre", "separate"])
def test_ctranslate2_s_converter_reads_it_with_closed_heads(tmp_path, name):
    ctranslate2 = pytest.importorskip(
        "ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2"
    )
    run = source(tmp_path, **CASES[name])
    xi = HeadMap({site: [0.0, 1.0, 0.5] if site.layer else [0.0, 0.0, 0.0] for site in find_sites(run.model)})
    attach(run.model, gate="mask", xi=xi)
    exported(run, tmp_path / "out")
    with np.load(tmp_path / "out/model.npz") as file:
        assert not file["encoder_l1_self_Wv"].any()
        np.savez(
            tmp_path / "theirs.npz", **file, Wpos=marian_positions(50)
        )  # it has other frequencies of its own
    words = [str(tmp_path / "out/vocab0.yml")] * 2
    folder = ctranslate2.converters.MarianConverter(str(tmp_path / "theirs.npz"), words).convert(
        str(tmp_path / "ct2")
    )
    tokens = [[word if word in WORDS else "<unk>" for word in line.split()] for line in SOURCES]
    scored = ctranslate2.Translator(folder, device="cpu").score_batch(
        tokens, [line.split() for line in TARGETS]
    )
    for ours, theirs in zip(run.translator.score(SOURCES, TARGETS), scored, strict=True):
        assert ours == pytest.approx(theirs.log_probs, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "error"),
    [({}, "no positions 'sinusoidal', only 'tensor2tensor'"), ({"activation": "gelu"}, "no ")],
)
def test_what_marian_cannot_express_is_refused_by_name(make_translator, tmp_path, settings, error):
    with pytest.raises(ValueError, match=f"Marian has {error}.*take --to torch or onnx"):
        export(
            make_translator(**settings),
            "marian",
            tmp_path / "out",
            lines=SOURCES,
            references=TARGETS,
            facts=FACTS,
        )
    assert not list(tmp_path.iterdir())


def test_a_beginning_that_was_trained_and_other_vocabularies_are_refused(make_translator, tmp_path):
    run = source(tmp_path)
    run.model.target_embedding.weight.data[len(WORDS), D - 1] = 0.1
    with pytest.raises(ValueError, match="begins with an embedding of 0"):
        exported(run, tmp_path / "out")
    settings = {"positions": "tensor2tensor", "norm_eps": 1e-6}
    with pytest.raises(ValueError, match="begins with an embedding of 0"):
        export(
            make_translator(**settings),
            "marian",
            tmp_path / "out",
            lines=SOURCES,
            references=TARGETS,
            facts=FACTS,
        )


def test_an_ssru_decoder_is_no_model_of_ctranslate2(tmp_path):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2")
    with pytest.raises(
        ValueError,
        match="CTranslate2 has no decoder with decoder_mixer 'ssru'; take --to torch, onnx or marian",
    ):
        export(
            source(tmp_path, **SSRU).translator,
            "ct2",
            tmp_path / "out",
            lines=SOURCES,
            references=TARGETS,
            facts=FACTS,
        )
