"""T5's kin in and out, against their own classes: without heads, neurons and first layers, with distances
beyond the reach, and the words before a line."""

import json
import shutil
import warnings

import pytest
import torch

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; it is in the extra hf"
)
from transformers.models.t5.modeling_t5 import T5Attention  # noqa: E402

from headgates.bridges.formats import export  # noqa: E402
from headgates.bridges.hf import as_ours, read  # noqa: E402
from headgates.configs.settings import ModelConfig, SearchConfig  # noqa: E402
from headgates.configs.source import ForeignOptions  # noqa: E402
from headgates.data.special_tokens import SpecialTokens  # noqa: E402
from headgates.gates import HeadMap, find_sites, load_pruned, remove, save_pruned  # noqa: E402
from headgates.gates.depth import drop_layers  # noqa: E402
from headgates.models.positions import DistanceBias  # noqa: E402
from headgates.models.transformer import Transformer  # noqa: E402
from headgates.records.foreign_run import foreign_run  # noqa: E402
from headgates.records.source import open_source  # noqa: E402
from tests.worlds.hugging_face import IN_WORDS, LINES, logits_differ, options_of  # noqa: E402

GONE = {"encoder.0.enc-self": [0], "encoder.1.enc-self": [1, 2], "decoder.0.dec-self": [2]}
GONE |= {"decoder.1.dec-self": [0, 1], "decoder.1.cross": [1], "decoder.2.dec-ffn": [0, 5, 12]}

GONE_TOO = {
    "uneven": {},
    "a layer without heads, no head 0": {"decoder.0.dec-self": [0], "decoder.1.dec-self": [0, 1, 2]},
    "all": "all",
}


def closed(model, gone=GONE) -> HeadMap:
    sites = {site: torch.zeros(site.heads, dtype=torch.bool) for site in find_sites(model, "all")}
    for site, row in sites.items():
        row[gone.get(site.name, [])] = True
    return HeadMap(sites)


def converted(folder, name):
    return read(str(folder), options_of(name)).convert().translator


@pytest.fixture
def opened(hf_folder, tmp_path):
    """opened("t5") -> the translator of the run that it became, which knows its tokenizer's files."""

    def make(name):
        foreign = read(str(hf_folder(name)), options_of(name))
        translator = open_source(foreign_run("hf", foreign, tmp_path / "runs", {}, {}).path).translator
        translator.search = SearchConfig(beam=2, max_ratio=0.3, max_extra=3)
        return translator

    return make


def exported(translator, folder):
    export(translator, "hf", folder, lines=LINES[:3], references=LINES[3:], provenance={})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (8, 7), (13, 50), (4, 300)])
def test_every_distance_has_the_bucket_that_t5_gives_it(buckets, reach, causal):
    config = ModelConfig(position_buckets=buckets, position_reach=reach)
    distance = torch.arange(-400, 401)
    theirs = T5Attention._relative_position_bucket(
        distance, bidirectional=not causal, num_buckets=buckets, max_distance=reach
    )
    assert DistanceBias(config, 2, causal=causal).buckets(distance).equal(theirs)


@torch.no_grad()
@pytest.mark.parametrize("name", ["t5", "madlad"])
def test_sequences_longer_than_the_reach_have_the_logits_of_their_class(hf_folder, name):
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(hf_folder(name)).eval()
    for path, weight in theirs.named_parameters():
        if path.endswith(".q.weight"):
            weight.mul_(0.2)  # large scores would make much of what is rounded
    specials = SpecialTokens(padding=0, beginning=0, end=1, unknown=2)
    ours = as_ours(theirs, specials, specials)
    torch.manual_seed(1)
    source, target = torch.randint(3, 60, (2, 41)), torch.randint(3, 60, (2, 37))
    expected = theirs(input_ids=source, decoder_input_ids=target, use_cache=False).logits
    torch.testing.assert_close(ours(source, target), expected, rtol=1e-5, atol=1e-5)
    state = ours.start(source)  # a step has to place itself too
    steps = torch.stack([ours.step(ids, state) for ids in target.T], 1)
    torch.testing.assert_close(steps, expected, rtol=1e-5, atol=1e-5)


def test_a_t5_without_heads_neurons_and_its_first_layers_is_read_as_it_is(hf_folder, tmp_path):
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(hf_folder("t5")).eval()
    drop_layers(theirs, {"encoder": [0], "decoder": [0]})
    remove(theirs, closed(theirs))
    save_pruned(theirs, tmp_path / "out")
    for path in hf_folder("t5").glob("tokenizer*"):
        shutil.copy(path, tmp_path / "out")
    ours = converted(tmp_path / "out", "t5")
    assert (ours.model.config.encoder_layers, ours.model.config.decoder_layers) == (1, 2)
    assert ours.model.heads["encoder.0.enc-self"] == 2
    assert logits_differ(ours, theirs) < 1e-5


@pytest.mark.parametrize("name", ["t5", "madlad"])
@pytest.mark.parametrize("gone", GONE_TOO.values(), ids=GONE_TOO)
def test_a_smaller_t5_goes_out_and_comes_in_again(opened, tmp_path, name, gone):
    translator = opened(name)
    drop_layers(translator.model, {"encoder": [0], "decoder": [0]})
    heads = closed(translator.model, GONE if gone == "all" else GONE | gone)
    remove(translator.model, heads.map(torch.ones_like) if gone == "all" else heads)
    exported(translator, tmp_path / "out")
    theirs = load_pruned(tmp_path / "out")
    assert type(theirs).__name__ == "T5ForConditionalGeneration"
    assert logits_differ(translator, theirs) < 1e-4
    again = converted(tmp_path / "out", name)
    assert logits_differ(again, theirs) < 1e-4


def test_layers_whose_distances_were_trained_apart_go_out_as_a_umt5(opened, tmp_path):
    translator = opened("t5")
    with torch.no_grad():
        translator.model.decoder.layers[1].self_attention.distances.weight += 0.5
    exported(translator, tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == "UMT5ForConditionalGeneration"
    assert logits_differ(translator, theirs) < 1e-4


def test_a_closed_head_and_a_removed_one_give_the_same_with_relative_positions(make_model, batch):
    from headgates.gates import attach, detach
    from tests.worlds.small_model import LIBRARIES

    model: Transformer = make_model(**LIBRARIES["as T5"])
    heads = closed(model)
    bank = attach(model, gate="mask", kinds="all")
    bank.assign({site: (~row).float() for site, row in heads.items()})
    with torch.no_grad():
        expected = model(*batch)
        detach(model)
        remove(model, heads)
        torch.testing.assert_close(model(*batch), expected, rtol=1e-4, atol=1e-5)
    assert model.decoder.layers[1].self_attention.distances.weight.shape == (8, 1)


# ---------------------------------------------------------------- words before a line


def test_languages_take_the_words_that_config_json_has_for_them(hf_folder):
    options = ForeignOptions(src_lang="en", tgt_lang="de")
    found = read(str(hf_folder("t5")), options).convert().translator.source_vocab
    assert found.prefix == converted(hf_folder("t5"), "t5").source_vocab.prefix
    assert found.prefix  # and test_huggingface.py compares the latter


def test_the_words_before_a_line_are_no_part_of_its_text(hf_folder):
    vocab = converted(hf_folder("byt5"), "byt5").source_vocab
    assert bytes(i - 3 for i in vocab.encode(["dog"])[0]) == f"{IN_WORDS['byt5']}dog".encode()
    assert vocab.decode(vocab.encode(["the dog"])) == ["the dog"]
    assert vocab.decode([vocab.prefix[:3]]) == ["tra"]  # what only looks like the beginning of it is text


def refusal(folder, **options) -> str:
    with pytest.raises(ValueError, match=r"\w") as error:
        read(str(folder), ForeignOptions(**options)).convert()
    return str(error.value)


def test_words_that_are_missing_unknown_or_said_twice_are_one_line(hf_folder):
    assert "give hf:NAME,tgt=LANGUAGE, one of 'de, fr'" in refusal(hf_folder("madlad"))
    said = refusal(hf_folder("t5"), src_lang="en", tgt_lang="fr")
    assert "it has 'src=en,tgt=de'; give them as text" in said
    assert "leave one of them out" in refusal(hf_folder("t5"), prefix="summarize:", tgt_lang="de")
    assert "leave one of them out" in refusal(hf_folder("bart"), prefix="summarize:")
    with pytest.warns(UserWarning, match="learned tasks by a text before each line"):
        read(str(hf_folder("t5")), ForeignOptions()).convert()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(str(hf_folder("mt5")), ForeignOptions()).convert()


def test_a_broken_task_in_config_json_is_left_alone(hf_folder, tmp_path):
    folder = shutil.copytree(hf_folder("t5"), tmp_path / "copy")
    settings = json.loads((folder / "config.json").read_text())
    broken = {"translation_en_to_de": 7, "translation_en_to_fr": {"prefix": "to French:"}}
    (folder / "config.json").write_text(json.dumps(settings | {"task_specific_params": broken}))
    assert "'src=en,tgt=fr'" in refusal(folder, src_lang="en", tgt_lang="de")
