"""Folders for Hugging Face: their own classes read them and compute the same, whatever family a model came
from, and without some heads."""

import json
from dataclasses import replace

import pytest

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; it is in the extra hf"
)

from headgates.bridges.formats import export  # noqa: E402
from headgates.bridges.hf import read  # noqa: E402
from headgates.configs.settings import SearchConfig  # noqa: E402
from headgates.configs.source import ForeignOptions  # noqa: E402
from headgates.gates import heads_left, load_pruned  # noqa: E402
from headgates.models.translator import Translator  # noqa: E402
from headgates.records.foreign_run import foreign_run  # noqa: E402
from headgates.records.source import open_source  # noqa: E402
from tests.worlds.hugging_face import LINES, logits_differ, options_of  # noqa: E402
from tests.worlds.translators import scores_differ  # noqa: E402

OURS = {  # our own settings, and the class that computes the same
    "pre": ({"joint": True, "embeddings": "tied"}, "PegasusForConditionalGeneration"),
    "post, two vocabularies": (
        {"norm": "post", "positions": "learned", "max_positions": 61, "embeddings": "separate"},
        "MarianMTModel",
    ),
    "norm of embeddings": (
        {"norm": "post", "embedding_norm": True, "decoder_ffn": 7},
        "BartForConditionalGeneration",
    ),
    "pre, norm of embeddings": (
        {"embedding_norm": True, "output_bias": True, "embeddings": "tied-decoder"},
        "MBartForConditionalGeneration",
    ),
}
# of each class one, with one vocabulary, two, or a language that Marian's sources name
FAMILIES = ["marian-languages", "marian-two-vocabularies", "bart", "mbart", "m2m_100", "pegasus", "fsmt"]
FAMILIES += ["t5", "madlad", "byt5"]
TARGETS = ["der Hund schläft .", "eine Katze", "", "Hunde", "die", "der"]


def exported(translator: Translator, folder):
    """export.json: scores, greedy and beam search by their class are as ours, or there is no folder."""
    translator.search = SearchConfig(
        beam=3, max_ratio=0.3, max_extra=3
    )  # short: their classes are run without a cache
    return export(translator, "hf", folder, lines=LINES, references=TARGETS, provenance={})


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_that_came_from_a_family_goes_out_as_one(hf_folder, tmp_path, name):
    run = foreign_run("hf", read(str(hf_folder(name)), options_of(name)), tmp_path / "runs", {}, {})
    translator = open_source(run.path, device="cpu").translator
    converted = read(str(hf_folder(name)), options_of(name)).convert().translator
    assert translator.source_vocab.encode(LINES) == converted.source_vocab.encode(LINES)
    assert translator.target_vocab.encode(TARGETS) == converted.target_vocab.encode(TARGETS)
    exported(translator, tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    assert (
        theirs.config.architectures
        == transformers.AutoConfig.from_pretrained(hf_folder(name)).architectures
        == [type(theirs).__name__]
    )
    assert logits_differ(translator, theirs) < 1e-4
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(tokenizer) is type(transformers.AutoTokenizer.from_pretrained(hf_folder(name)))
    again = read(str(tmp_path / "out"), options_of(name)).convert().translator
    longest = again.model.config.max_positions  # theirs end, so more are written
    assert again.model.config == replace(translator.model.config, max_positions=longest)
    assert again.source_vocab.encode(LINES) == translator.source_vocab.encode(LINES)


@pytest.mark.parametrize(("settings", "expected"), OURS.values(), ids=OURS)
def test_our_models_go_out_as_the_class_that_computes_the_same(make_translator, tmp_path, settings, expected):
    translator = make_translator(**settings)
    exported(translator, tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == expected
    assert logits_differ(translator, theirs) < 1e-4
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs_ids = tokenizer([line for line in LINES])["input_ids"]
    assert theirs_ids == [
        [*ids, translator.model.source_specials.end] for ids in translator.source_vocab.encode(LINES)
    ]


@pytest.mark.parametrize(
    ("closed", "norm", "left"),
    [
        ("uneven", "pre", {"encoder.0.enc-self": [1]}),
        ("empty layers", "post", {"encoder.0.enc-self": [0]}),  # one that adds nothing
        ("neurons", "pre", {"encoder.0.enc-ffn": [*range(5, 13)], "encoder.1.enc-ffn": []}),
        ("depth", "post", {"encoder.0.enc-ffn": [*range(5, 13)], "decoder.0.dec-ffn": [*range(8, 13)]}),
    ],
)
def test_a_model_without_some_heads_and_neurons_is_read_by_load_pruned_and_as_a_source(
    make_translator, tmp_path, closed, norm, left
):
    translator = make_translator(closed, norm=norm, joint=True, embeddings="tied")
    exported(translator, tmp_path / "out")
    heads = json.loads((tmp_path / "out/config.json").read_text())["headgates"]["heads"]
    assert left.items() <= heads.items()
    assert logits_differ(translator, load_pruned(tmp_path / "out")) < 1e-4
    again = read(str(tmp_path / "out"), ForeignOptions()).convert().translator
    assert scores_differ(translator, again, LINES, TARGETS) < 1e-4
    stay = {site.name: row for site, row in heads_left(again.model, "all").items()}
    for site, row in heads_left(translator.model, "all").items():
        assert stay[site.name].equal(row) or (not row.any() and stay[site.name].sum() == 1)
    settings = json.loads((tmp_path / "out/generation_config.json").read_text())
    said = settings["num_beams"], settings["early_stopping"], settings["suppress_tokens"]
    assert said == (3, True, [0, 1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"decoder_norm": "post"}, "it would need layer norms at the same place in both stacks"),
        ({"final_norm": "none"}, "it would need a last layer norm of both stacks"),
        ({"norm_eps": 1e-3}, "it would need layer norms with an eps of 1e-5"),
    ],
)
def test_what_no_class_has_is_refused_by_its_name(make_translator, tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        exported(make_translator(joint=True, embeddings="tied", **settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()
