"""Hugging Face's models as ours, against their own classes: logits, encoder outputs, greedy and beam search,
tokens of every line.

Their `generate` counts and ranks as our search does where it is told early_stopping=True (a sentence is
finished when as many hypotheses have ended as the beam is wide; otherwise they go on while a longer one may
still be better) and where the end that is forced at the limit keeps its log-probability (they give it 0).
Padding and beginning, which our
search never produces, are
suppressed there."""

import json
import re
import shutil
import sys
import warnings
from random import Random

import pytest
import torch

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; it is in the extra hf"
)
import huggingface_hub  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from headgates.bridges import hf  # noqa: E402
from headgates.bridges.hf import read, read_model, search_settings  # noqa: E402
from headgates.configs.settings import SearchConfig  # noqa: E402
from headgates.configs.source import ForeignOptions  # noqa: E402
from headgates.data.batch import pad  # noqa: E402
from headgates.data.hf_vocab import own_language  # noqa: E402
from headgates.data.text import DataError  # noqa: E402
from headgates.models.search import best_hypotheses  # noqa: E402
from tests.worlds.hugging_face import (  # noqa: E402
    FAMILY_NAMES,
    IN_WORDS,
    LINES,
    T5_KINDS,
    logits_differ,
    options_of,
)

LIMIT = 11  # tokens of a translation, its end counted
# one of each class, Marian's also with two vocabularies; the others differ from these in their tokenizer
CLASSES = ["marian", "marian-two-vocabularies", "bart", "mbart", "m2m_100", "pegasus", "fsmt"]
CLASSES += ["t5", "mt5", "umt5", "madlad"]


@pytest.fixture(scope="module")
def converted(hf_folder):
    """converted("marian") -> what it became, and the model in its own class."""
    known = {}

    def make(name):
        if name not in known:
            folder = hf_folder(name)
            theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
                folder, attn_implementation="eager"
            ).eval()
            known[name] = read(str(folder), options_of(name)).convert(), theirs
        return known[name]

    return make


def batch(model, lengths) -> torch.Tensor:
    """Random source ids with their ends, padded: (B, S)."""
    specials = model.source_specials
    free = [i for i in range(model.source_vocab) if i not in (specials.padding, specials.end)]
    random = Random(3)
    return pad([random.choices(free, k=length - 1) for length in lengths], specials, end=True)


def their_input(model, source) -> dict:
    return {"input_ids": source, "attention_mask": (source != model.source_specials.padding).long()}


@pytest.mark.parametrize("name", CLASSES)
def test_logits_and_encoder_outputs_are_those_of_its_own_class(converted, name):
    found, theirs = converted(name)
    ours, lengths = found.translator.model, (7, 3, 5)
    source = batch(ours, lengths)
    target_in = batch(ours, [4] * len(lengths)) % ours.target_vocab
    target_in[target_in == ours.target_specials.padding] = ours.target_specials.end
    target_in[:, 0] = ours.target_specials.beginning
    with torch.no_grad():
        out = theirs(**their_input(ours, source), decoder_input_ids=target_in, use_cache=False)
        memory, _ = ours.encode(source)
        logits = ours(source, target_in)
    real = source != ours.source_specials.padding
    assert (memory - out.encoder_last_hidden_state)[real].abs().max() < 1e-5
    assert (logits - out.logits).abs().max() < 1e-4
    assert out.logits.std() > 0.1


@pytest.mark.parametrize(
    ("name", "beam", "least"),
    [*((name, 4, 0) for name in [*CLASSES, "nllb"]), ("bart", 1, 0), ("fsmt", 4, 5), ("nllb", 1, 7)],
)
def test_greedy_and_beam_search_find_what_generate_finds(converted, name, beam, least):
    found, theirs = converted(name)
    ours = found.translator.model
    specials, source = ours.target_specials, batch(ours, (7, 3, 5, 4, 6))
    search = SearchConfig(beam=beam, length_penalty=0.7, max_ratio=0.0, max_extra=LIMIT, min_length=least)
    mine = best_hypotheses(ours, source, search)

    def only_the_end(ids, scores):
        if ids.shape[1] < LIMIT:
            return scores
        others = torch.arange(scores.shape[1]) != specials.end
        return scores.masked_fill(others, -torch.inf)

    found.translator.search = search
    options = search_settings(found.translator) | {
        "max_length": LIMIT + 1,
        "forced_eos_token_id": None,  # its log-probability would be 0
        "logits_processor": [only_the_end],
        "num_return_sequences": beam,
        "return_dict_in_generate": True,
        "output_scores": True,
        "use_cache": name not in T5_KINDS,  # theirs has a place for as many layers as the encoder has
    }
    result = theirs.generate(**their_input(ours, source), **options)
    rows = [row[1:].tolist() for row in result.sequences]
    theirs_ids = [row[: row.index(specials.end)] for row in rows]
    assert theirs_ids[::beam] == [best[0].ids for best in mine]
    if beam > 1:
        scores = result.sequences_scores.view(-1, beam)[:, 0]
        assert [best[0].score for best in mine] == pytest.approx(scores.tolist(), abs=1e-3)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_line_has_the_tokens_that_its_own_tokenizer_gives_it(converted, hf_folder, name):
    found, _ = converted(name)
    source, target = found.translator.source_vocab, found.translator.target_vocab
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf_folder(name))
    options = options_of(name)
    lines = [*LINES, "", "the  dog"]
    if options.src_lang:
        tokenizer.src_lang, tokenizer.tgt_lang = options.src_lang, options.tgt_lang
    prefix = f">>{options.tgt_lang}<<" if name == "marian-languages" else IN_WORDS.get(name, "")
    theirs = tokenizer([prefix + line for line in lines])["input_ids"]
    assert [[*ids, source.specials.end] for ids in source.encode(lines) if ids] == [
        ids for i, ids in enumerate(theirs) if lines[i]
    ]
    assert source.encode([""]) == target.encode([""]) == [[]]
    if name != "fsmt":  # which has no way to cut targets
        after = [target.specials.end, target.specials.beginning] if name == "mbart" else [target.specials.end]
        theirs = tokenizer(text_target=LINES)["input_ids"]
        assert [ids + after for ids in target.encode(LINES)] == theirs
    ids = [
        ids[len(target.specials.forced) :] for ids in target.encode(LINES)
    ]  # M2M100's own decode writes languages down
    assert target.decode(ids) == tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert target.decode([[*ids[0], target.specials.end, target.specials.padding]]) == target.decode(ids[:1])


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_every_piece_has_the_characters_that_it_stands_for(converted, name):
    vocab = converted(name)[0].translator.source_vocab
    text = "a big  cat"
    if name == "fsmt":
        with pytest.raises(DataError, match="cannot say which characters"):
            vocab.characters(text)
        return
    found = vocab.characters(text)
    ids = vocab.encode([text])[0]
    assert len(found) == len(ids)
    assert found[: len(vocab.prefix)] == [[]] * len(vocab.prefix)
    assert sorted({i for own in found for i in own}) == [0, 2, 3, 4, 7, 8, 9]
    for piece, own in zip(vocab.pieces(ids), found, strict=True):
        letters = piece.strip("▁Ġ ")
        assert not own or not letters or "".join(text[i] for i in own) == letters or "<unk>" in piece


@pytest.mark.parametrize("options", [ForeignOptions(), ForeignOptions(tgt_lang="fra")])
@pytest.mark.filterwarnings("ignore:this model has several languages")
def test_a_line_s_own_language_goes_before_the_one_given_and_other_marks_are_text(hf_folder, options):
    translator = read(str(hf_folder("marian-languages")), options).convert().translator
    source, target = translator.source_vocab, translator.target_vocab

    def pieces(line):
        return source.pieces(source.encode([line])[0])

    given = [">>fra<<"] if options.tgt_lang else []
    plain = pieces("dogs")
    assert pieces(">>deu<<dogs") == [">>deu<<", *plain[len(given) :]]
    for text in ("dogs", ">>the cat << dogs", ">>nld<< dogs", "dogs >>deu<<"):
        found = pieces(text)
        assert found[: len(given)] == given
        assert "dogs" in "".join(found[len(given) :])
        assert ("cat" in text) == ("cat" in "".join(found))
        assert len(source.characters(text)) == len(found)
    assert source.characters(">>deu<<dogs")[0] == [*range(7)]
    assert ">>deu<<" not in target.pieces(target.encode([">>deu<<dogs"])[0])
    assert translator.translate([">>deu<<dogs"])


def test_a_line_s_language_is_found_without_going_through_all_pieces():
    class Pieces(dict):
        def items(self):
            raise AssertionError("every line would go through all pieces")

    class MarianTokenizer:
        encoder = Pieces({">>fra<<": 3})
        current_spm = spm_source = "source"

    assert own_language(MarianTokenizer(), ">>fra<<dogs") == ([">>fra<<"], "dogs")
    assert own_language(MarianTokenizer(), ">>the cat << dogs") == ([], ">>the cat << dogs")


def test_several_languages_without_one_are_said(hf_folder):
    with pytest.warns(UserWarning, match=r"tgt=LANGUAGE, one of 'deu, fra'; or begin every line"):
        read(str(hf_folder("marian-languages")), ForeignOptions()).convert()


def test_special_tokens_in_a_text_are_text(converted):
    for name in FAMILY_NAMES:
        translator = converted(name)[0].translator
        for vocab in (translator.source_vocab, translator.target_vocab):
            (ids,) = vocab.encode(["the </s> dog <pad> ."])
            own = ids[len(vocab.prefix) : len(ids) - len(vocab.suffix)]
            assert not {vocab.specials.padding, vocab.specials.end} & set(own), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_conversion_makes_no_copy_of_the_weights_and_keeps_bf16(hf_folder, tmp_path, monkeypatch, dtype):
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(hf_folder("m2m_100"), dtype=dtype)
    folder = shutil.copytree(hf_folder("m2m_100"), tmp_path / "in")
    theirs.save_pretrained(folder)
    seen = []
    monkeypatch.setattr(hf, "read_model", lambda *given: seen.append(read_model(*given)) or seen[-1])
    ours = read(str(folder), options_of("m2m_100")).convert().translator.model
    assert {each.dtype for each in ours.parameters()} == {dtype}
    known = {each.data_ptr() for each in seen[0].parameters()}
    assert {each.data_ptr() for each in ours.parameters()} == known


def with_generation(folder, place, **settings):
    """A copy of a folder with these fields in its generation_config.json."""
    copy = copy_of(folder, place)
    about = copy / "generation_config.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | settings))
    return copy


@pytest.mark.parametrize(
    ("settings", "least"), [({"min_length": 3}, 2), ({"min_new_tokens": 2}, 2), ({"min_length": 1}, 0)]
)
def test_a_search_of_generate_is_kept_and_goes_out_again(hf_folder, tmp_path, settings, least):
    folder = with_generation(hf_folder("marian"), tmp_path, length_penalty=-0.5, **settings)
    translator = read(str(folder), ForeignOptions()).convert().translator
    search = translator.search
    assert (search.beam, search.length_penalty, search.min_length) == (4, -0.5, least)
    assert min(one[0].tokens for one in translator.translate_n_best(LINES)) > least
    out = search_settings(translator)
    assert (out.get("min_new_tokens", 0), out["length_penalty"]) == (least, -0.5)


IGNORED = {
    "no_repeat_ngram_size": 1,
    "bad_words_ids": [[5]],
    "suppress_tokens": [5],
    "begin_suppress_tokens": [5],
    "sequence_bias": [[[5], -1.0]],
    "repetition_penalty": 1.2,
    "exponential_decay_length_penalty": [3, 1.1],
    "early_stopping": "never",
    "do_sample": True,
    "renormalize_logits": True,
    "max_length": 20,
}


def test_every_field_of_generation_config_that_would_change_outputs_is_named(hf_folder, tmp_path):
    folder = with_generation(hf_folder("marian"), tmp_path, **IGNORED)
    with pytest.warns(UserWarning, match="of generation_config.json these are not used") as caught:
        read(str(folder), ForeignOptions()).convert()
    named = str(caught[0].message).split("used: ")[1]
    assert sorted(re.findall(r"(?:^|, )([a-z_]+) ", named)) == sorted(IGNORED)


def test_fields_that_change_nothing_and_tokens_that_are_never_produced_are_not_named(hf_folder, tmp_path):
    padding = json.loads((hf_folder("marian") / "config.json").read_text())["pad_token_id"]
    off = {"bad_words_ids": [[padding]], "suppress_tokens": [padding], "repetition_penalty": 1.0}
    off |= {"no_repeat_ngram_size": 0, "early_stopping": True, "max_length": 512, "top_k": 50}
    folder = with_generation(hf_folder("marian"), tmp_path, **off)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(str(folder), ForeignOptions()).convert()


@pytest.mark.parametrize("name", ["bad_words_ids", "suppress_tokens"])
def test_a_generation_that_never_writes_an_unknown_piece_is_searched_so(hf_folder, tmp_path, name):
    plain = read(str(hf_folder("marian")), ForeignOptions()).convert().translator
    unknown = plain.target_vocab.specials.unknown
    words = [[unknown]] if name == "bad_words_ids" else [unknown]
    folder = with_generation(hf_folder("marian"), tmp_path, **{name: words})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = read(str(folder), ForeignOptions()).convert().translator
    assert unknown in ours.model.target_specials.never_produced
    assert ours.target_vocab.specials == ours.model.target_specials


def test_a_table_that_is_no_sinusoid_is_kept_as_learned_positions(hf_folder, tmp_path):
    folder = copy_of(hf_folder("marian"), tmp_path)
    state = load_file(folder / "model.safetensors")
    tables = {f"model.{side}.embed_positions.weight": torch.randn(37, 24) for side in ("encoder", "decoder")}
    save_file(state | tables, folder / "model.safetensors", metadata={"format": "pt"})
    ours = read(str(folder), ForeignOptions()).convert().translator
    assert (ours.model.config.positions, ours.model.config.max_positions) == ("learned", 37)
    assert logits_differ(ours, transformers.MarianMTModel.from_pretrained(folder).eval()) < 1e-4


# ---------------------------------------------------------------- what is refused


def copy_of(folder, place):
    return shutil.copytree(folder, place / "copy")


def set_config(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def failure(folder, options=None) -> str:
    """The one line in which the folder is refused."""
    with pytest.raises(ValueError, match=r"\w") as error:
        read(str(folder), options or ForeignOptions()).convert()
    assert "\n" not in str(error.value)
    return str(error.value)


def cut_short(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1000])


def other_names(folder):
    state = load_file(folder / "model.safetensors")
    state["model.encoder.layers.0.fc9.weight"] = state.pop("model.encoder.layers.0.fc1.weight")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def more_pieces(folder):
    vocab = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(vocab | {f"more{i}": 70 + i for i in range(9)}))


def another_end(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "nowhere"}))


def outside(folder):
    shards = {"weight_map": {"final_logits_bias": "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))


BROKEN = {
    "a shard outside": (outside, "names '../other/model.safetensors', a file outside the folder"),
    "a tokenizer of another model": (
        more_pieces,
        "up to the id 78, the model embeds 67: they belong to different models",
    ),
    "a token around lines that the model does not embed": (
        another_end,
        "around a source line, and the model embeds 67: they belong to different models",
    ),
    "cut short": (cut_short, "do not make a MarianMTModel"),
    "other names": (
        other_names,
        r"missing: model.encoder.layers.0.fc1.weight; unexpected: model.encoder.layers.0.fc9.weight",
    ),
    "other sizes": (
        lambda folder: set_config(folder, encoder_ffn_dim=7),
        r"mismatched: \('model\.encoder\.layers\.0\.fc1\.bias', torch\.Size\(\[\d+\]\), torch\.Size\(\[7\]",
    ),
    "an activation": (
        lambda folder: set_config(folder, activation_function="gelu_fast"),
        "activation_function 'gelu_fast' in config.json",
    ),
    "code": (
        lambda folder: set_config(folder, auto_map={"AutoModel": "own.Model"}),
        "has auto_map, which is not read",
    ),
    "another family": (
        lambda folder: set_config(folder, model_type="led"),
        "of the type 'led'; these are read: m2m_100, fsmt, marian",
    ),
    "no settings": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "has no weights; expected model.safetensors",
    ),
    "pieces": (lambda folder: (folder / "vocab.json").write_text("[]"), "tokenizer's files cannot be read"),
    "an adapter": (
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        "has an adapter; merge it",
    ),
    "heads left": (
        lambda folder: set_config(folder, headgates={"heads": {"encoder.0.enc-self": [0, 9]}}),
        "head 9 is said to be left",
    ),
}


@pytest.mark.parametrize(("break_it", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_one_clear_line(hf_folder, tmp_path, break_it, words):
    folder = copy_of(hf_folder("marian"), tmp_path)
    break_it(folder)
    assert re.search(words, failure(folder))


def test_weights_of_torch_s_own_kind_are_read(hf_folder, tmp_path, converted):
    folder = copy_of(hf_folder("marian"), tmp_path)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    ours = read(str(folder), ForeignOptions()).convert().translator
    assert ours.score(LINES[:2], LINES[3:5]) == converted("marian")[0].translator.score(LINES[:2], LINES[3:5])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "nllb",
            ForeignOptions(src_lang="eng_Latn"),
            "several languages: give hf:NAME,tgt=LANGUAGE, one of ",
        ),
        ("mbart", ForeignOptions(src_lang="en", tgt_lang="de_DE"), "src=en"),
        (
            "m2m_100",
            ForeignOptions(src_lang="en", tgt_lang="deu"),
            r"tgt=deu \(did you mean 'de'\?\): expected one of",
        ),
        (
            "marian",
            ForeignOptions(tgt_lang="fra"),
            "tgt=fra: this model's tokenizer has no token for a target language",
        ),
        (
            "marian-languages",
            ForeignOptions(src_lang="eng", tgt_lang="fra"),
            "src=eng: .* no token for a source language",
        ),
    ],
)
def test_languages_that_are_missing_unknown_or_not_asked_for_are_one_line(hf_folder, name, options, words):
    assert re.search(words, failure(hf_folder(name), options))


@pytest.mark.parametrize("package", ["transformers", "huggingface_hub"])
def test_a_missing_library_names_the_extra(hf_folder, monkeypatch, package):
    folder = hf_folder("marian") if package == "transformers" else "some/name"
    monkeypatch.setitem(sys.modules, package, None)
    assert r"python -m pip install '.[hf]'" in failure(folder)


def test_a_name_that_the_hub_does_not_know_is_one_line(monkeypatch):
    def refuse(name, **options):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nand no copy")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    place = "some/name is neither a folder here nor a model that the Hugging Face Hub gives"
    assert f"{place} (no connection and no copy)" in failure("some/name")


def test_a_name_is_read_from_the_hub_s_copy_without_weights_that_are_not_used(hf_folder, monkeypatch):
    asked = []

    def give(name, *, allow_patterns):
        asked.append((name, allow_patterns))
        return str(hf_folder("marian"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", give)
    found = read("Helsinki-NLP/opus-mt-en-de", ForeignOptions())
    assert (found.name, len(asked), asked[0][0]) == ("opus-mt-en-de", 1, "Helsinki-NLP/opus-mt-en-de")
    assert not any("bin" in pattern.split(".")[-1] for pattern in asked[0][1])
    assert {path.name for path in found.files} >= {"config.json", "model.safetensors", "source.spm"}
