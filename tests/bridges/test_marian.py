"""Marian's files against CTranslate2's own reader of them, and against arithmetic written out; and what is
refused."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from headgates.bridges.formats import copy_vocabs
from headgates.bridges.marian import read, write
from headgates.configs.settings import SearchConfig
from headgates.configs.source import ForeignOptions, SourceOptions
from headgates.data.shortlist import Shortlist
from headgates.models.translator import Translator
from headgates.pruning.runtime_cost import exported_once
from headgates.records.source import open_source
from tests.worlds.marian_models import (
    PRE,
    SEPARATE,
    SETTINGS,
    SSRU,
    WORDS,
    D,
    marian_arrays,
    model_yml,
    write_marian,
    write_model,
    write_spm,
    write_words,
)
from tests.worlds.translators import difference

SOURCES = ["the dog sleeps", "a cat sees the dog and no 1.0 cat", "cat"]
TARGETS = ["der Hund", "Katze a Katze der Hund sees", "a"]


def keys(changes: dict) -> dict:
    return {name.replace("-", "_"): value for name, value in changes.items()}


def opened(path: Path, **options) -> Translator:
    return read(str(path), ForeignOptions(**options)).convert().translator


def marian_positions(length: int) -> np.ndarray:
    """As in Marian's node_initializers.cpp."""
    angles = np.arange(length)[:, None] * np.exp(np.arange(D // 2) * -math.log(10000) / (D / 2 - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


CASES = {
    "post": {},
    "pre, relu": PRE | {"transformer-ffn-activation": "relu"},
    "embedding norm, gelu": {"transformer-postprocess-emb": "nd", "transformer-ffn-activation": "gelu"},
    "tied decoder": {"tied-embeddings-all": False, "tied-embeddings": True},
    "separate": SEPARATE,
}


def scored_by_ctranslate2(folder: Path, arrays: dict, settings: dict, vocabulary: Path) -> list[list[float]]:
    """The log probabilities of TARGETS by CTranslate2's own reader of Marian's files."""
    ctranslate2 = pytest.importorskip(
        "ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2"
    )
    # that reader has other frequencies than Marian, unless the file has a table of positions
    write_model(folder / "theirs.npz", arrays | {"Wpos": marian_positions(50)}, settings)
    converter = ctranslate2.converters.MarianConverter(str(folder / "theirs.npz"), [str(vocabulary)] * 2)
    words = [[word if word in WORDS else "<unk>" for word in line.split()] for line in SOURCES]
    model = ctranslate2.Translator(converter.convert(str(folder / "ct2")), device="cpu")
    return [row.log_probs for row in model.score_batch(words, [line.split() for line in TARGETS])]


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_log_probabilities_are_those_of_ctranslate2_s_own_reader(tmp_path, changes):
    path, settings = write_marian(tmp_path / "model", **keys(changes)), SETTINGS | changes
    expected = scored_by_ctranslate2(tmp_path, marian_arrays(settings), settings, path.with_name("vocab.yml"))
    assert difference(opened(path).score(SOURCES, TARGETS), expected) < 1e-4


@pytest.mark.parametrize("allowed", [False, True])
def test_no_translation_holds_an_unknown_piece_unless_decoder_yml_allows_it(tmp_path, allowed):
    path, settings = write_marian(tmp_path / "model"), SETTINGS
    arrays = marian_arrays(settings)
    arrays["decoder_ff_logit_out_b"][0, WORDS.index("<unk>")] += 9.0  # so that it comes first everywhere
    write_model(path, arrays, settings)
    beside = path.with_name("decoder.yml")
    beside.write_text(beside.read_text() + "allow-unk: true\n" * allowed)
    run = open_source(f"marian:{path.parent}", options=SourceOptions(runs=str(tmp_path / "runs")))
    found = run.translator.translate(SOURCES) + run.translator.translate(SOURCES, beam=1)
    assert any("<unk>" in line for line in found) is allowed
    (tmp_path / "again").mkdir()
    copy_vocabs(run.translator, tmp_path / "again")
    write(run.translator, tmp_path / "again")
    assert ("allow-unk: true" in (tmp_path / "again/decoder.yml").read_text()) is allowed


def test_positions_that_a_model_does_not_have_are_refused(tmp_path):
    path = write_marian(tmp_path, transformer_disable_position_embeddings=True)
    with pytest.raises(ValueError, match="transformer-disable-position-embeddings"):
        opened(path)


def test_what_decoder_yml_leaves_out_is_as_marian_has_it(tmp_path):
    path = write_marian(tmp_path)
    assert opened(path).search == SearchConfig(beam=4, length_penalty=0.6, max_ratio=3.0)
    path.with_name("decoder.yml").write_text("models: [model.npz]\nvocabs: [vocab.yml, vocab.yml]\n")
    assert opened(path).search == SearchConfig(beam=12, length_penalty=0.0, max_ratio=3.0)


def test_a_word_penalty_is_said_not_to_be_used(tmp_path):
    path = write_marian(tmp_path).with_name("decoder.yml")
    path.write_text(path.read_text() + "word-penalty: 0.5\n")
    with pytest.warns(UserWarning, match=r"decoder.yml this is not used: word-penalty 0.5"):
        read(str(tmp_path), ForeignOptions())


def test_an_ssru_has_marian_s_weights_each_in_its_place(tmp_path):
    """What it computes of them is tested in tests/models; no CTranslate2 reads one."""
    arrays = marian_arrays(SETTINGS | SSRU)
    layer = opened(write_marian(tmp_path, **keys(SSRU))).model.decoder.layers[1]
    unit, norm = layer.self_attention, layer.self_residual.norm
    found = {"W": unit.update.weight.T, "Wf": unit.forget.weight.T, "bf": unit.forget.bias[None]}
    found |= {"ffn_ln_scale": norm.weight[None], "ffn_ln_bias": norm.bias[None]}
    for name, tensor in found.items():
        assert np.array_equal(tensor.detach().numpy(), arrays[f"decoder_l2_rnn_{name}"]), name
    assert (norm.eps, layer.self_residual.pre) == (1e-6, False)


def test_a_bin_says_what_the_npz_says(tmp_path):
    names = ("model.npz", "model.bin", "model.int8.bin")
    plain, binary, int8 = (opened(write_marian(tmp_path / name, name, **keys(SEPARATE))) for name in names)
    expected = plain.score(SOURCES, TARGETS)
    assert binary.score(SOURCES, TARGETS) == expected
    for (name, ours), theirs in zip(
        int8.model.state_dict().items(), plain.model.state_dict().values(), strict=True
    ):
        # of int8: half a step of the largest number's 127th
        assert float((ours - theirs).abs().max()) <= 0.5001 * float(theirs[: len(WORDS)].abs().max()) / 127, (
            name
        )


def test_two_decoder_layers_may_have_one_layer_s_weights(tmp_path):
    arrays = {
        name: array for name, array in marian_arrays(SETTINGS).items() if not name.startswith("decoder_l2")
    }
    path = write_marian(tmp_path)
    write_model(path, arrays, SETTINGS | {"transformer-tied-layers": [1, 1]})
    first, second = opened(path).model.decoder.layers
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_made_of_it_translates_as_it_does_and_knows_its_search(tmp_path):
    path = write_marian(tmp_path / "opus", **keys(SSRU))
    run = open_source(f"marian:{path.parent}", options=SourceOptions(runs=str(tmp_path / "runs")))
    assert run.translator.score(SOURCES, TARGETS) == opened(path).score(SOURCES, TARGETS)
    assert (run.translator.search.beam, run.translator.search.length_penalty) == (4, 0.6)
    translations = run.translator.translate_n_best(SOURCES)
    padding = run.model.target_specials.padding
    assert padding == len(WORDS)
    assert all("<pad>" not in one.text for best in translations for one in best)
    again = open_source(f"marian:{path}", options=SourceOptions(runs=str(tmp_path / "runs")))
    assert again.folder.path == run.folder.path


LEX = """\
der the 0.5
Hund the 0.3
Katze the 0.2
Hund dog 0.9
Katze cat 0.8
der cat 0.01
der nowhere 0.9
NULL dog 0.7
"""


@pytest.mark.parametrize(
    ("numbers", "first", "lists"),
    [
        ([2, 2], 2, {"the": ["der", "Hund"], "dog": ["Hund"], "cat": ["Katze", "der"]}),
        ([3, 9, 0.1], 3, {"the": ["der", "Hund", "Katze"], "dog": ["Hund"], "cat": ["Katze"]}),
    ],
)
def test_the_shortlist_that_its_settings_name_is_used_by_its_runs_and_exports(
    tmp_path, numbers, first, lists
):
    """As in Marian, a piece lists itself too where both sides have one vocabulary."""
    path = write_marian(tmp_path / "student")
    settings = yaml.safe_load(path.with_name("decoder.yml").read_text())
    path.with_name("decoder.yml").write_text(yaml.safe_dump(settings | {"shortlist": ["lex.s2t", *numbers]}))
    path.with_name("lex.s2t").write_text(LEX, encoding="utf-8")
    run = open_source(f"marian:{path.parent}", options=SourceOptions(runs=str(tmp_path / "runs")))
    for piece, names in lists.items():
        expected = {*range(first), *map(WORDS.index, [*names, piece])}
        assert {*run.translator.shortlist.candidates([WORDS.index(piece)]).tolist()} == expected
    assert len(run.translator.candidates(run.translator.encode(SOURCES[:1]))) < len(WORDS)
    (tmp_path / "again").mkdir()
    copy_vocabs(run.translator, tmp_path / "again")
    write(run.translator, tmp_path / "again")
    again = opened(tmp_path / "again")  # from Marian's binary file now
    both = again.shortlist, run.translator.shortlist
    one, two = ([each.of_piece(i).tolist() for i in range(len(WORDS))] for each in both)  # without padding
    assert one == two
    assert again.translate(SOURCES) == run.translator.translate(SOURCES)


def test_a_piece_of_a_vocabulary_of_many_languages_lists_itself_too(tmp_path):
    """The language goes before the source by a vocabulary of its own, made of the same file."""
    path = write_marian(tmp_path)
    write_words(path.with_name("vocab.yml"), [*WORDS[:-1], ">>deu<<"])
    settings = yaml.safe_load(path.with_name("decoder.yml").read_text())
    path.with_name("decoder.yml").write_text(yaml.safe_dump(settings | {"shortlist": ["lex.s2t", 2, 2]}))
    path.with_name("lex.s2t").write_text(LEX, encoding="utf-8")
    translator = opened(path, tgt_lang="deu")
    assert translator.source_vocab is not translator.target_vocab
    assert WORDS.index("dog") in translator.shortlist.candidates([WORDS.index("dog")]).tolist()


def test_with_a_shortlist_ctranslate2_translates_one_batch_after_another_as_the_own_search(tmp_path):
    """Its beginning is the last piece, whose place among the candidates is another in every batch."""
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2")
    for name, changes in (("tied", {}), ("separate", SEPARATE)):
        whole = opened(write_marian(tmp_path / name, **keys(changes)))
        lists = [[i, (3 * i) % len(WORDS)] for i in range(len(WORDS) + 1)]
        folder = tmp_path / f"{name}-runs"
        run = open_source(f"marian:{tmp_path / name}", options=SourceOptions(runs=str(folder))).translator
        short = run.with_shortlist(Shortlist.of(lists))
        with exported_once(short, "ct2", 1) as open_model:
            model = open_model()
            three = (short, model, whole)
            found = [[each.translate([line], beam=1)[0] for line in SOURCES] for each in three]
        assert found[0] == found[1] != found[2]


def test_a_source_may_be_told_which_language_to_write(tmp_path):
    path = write_marian(tmp_path)
    write_words(path.with_name("vocab.yml"), [*WORDS[:-1], ">>deu<<"])
    translator = opened(path, tgt_lang="deu")
    assert translator.source_vocab.encode(["the dog", ""]) == [[12, 2, 3], []]
    assert translator.target_vocab.encode(["the dog"]) == [[2, 3]]
    with pytest.raises(ValueError, match="has no token >>fra<<; of such tokens it has >>deu<<"):
        opened(path, tgt_lang="fra")


@pytest.mark.parametrize("given", [None, "deu"])
def test_a_line_s_own_language_goes_before_the_one_given_and_other_marks_are_text(tmp_path, given):
    path = write_marian(tmp_path)
    write_words(path.with_name("vocab.yml"), [*WORDS[:-2], ">>fra<<", ">>deu<<"])
    translator = opened(path, tgt_lang=given)
    before = [12] if given else []
    lines = [">>fra<<the dog", "the dog", ">>the cat << a", ">>", ">>nld<< a", "a >>fra<<"]
    expected = [
        *([11, 2, 3], [*before, 2, 3], [*before, 1, 4, 1, 7], [*before, 1], [*before, 1, 7]),
        [*before, 7, 11],
    ]
    source = translator.source_vocab
    assert source.encode(lines) == expected
    assert translator.target_vocab.encode(["the >>the cat << a"]) == [[2, 1, 4, 1, 7]]
    assert [len(source.characters(line)) for line in lines] == list(map(len, expected))
    assert source.characters(lines[0]) == [[*range(7)], [7, 8, 9], [11, 12, 13]]


LETTERS = ["abba abab", "ba ab", "cab", "baa cabab"]


def test_a_sentencepiece_vocabulary_has_the_model_s_numbers(tmp_path):
    """As a YAML vocabulary of the same pieces, whose text is cut beforehand; without decoder.yml, as
    Bergamot's students come."""
    path = write_marian(tmp_path / "student")
    for name in ("vocab.yml", "decoder.yml"):
        path.with_name(name).unlink()
    processor = write_spm(path.with_name("vocab.spm"), LETTERS, len(WORDS))
    run = open_source(f"marian:{path.parent}", options=SourceOptions(runs=str(tmp_path / "runs")))
    source, target = run.translator.source_vocab, run.translator.target_vocab
    assert source.encode(LETTERS) == processor.encode(LETTERS)
    assert target.decode(processor.encode(LETTERS)) == LETTERS
    assert source.characters("cab ba") == [[0, 1, 2], [4, 5]]
    words = write_marian(tmp_path / "words")
    write_words(words.with_name("vocab.yml"), [processor.id_to_piece(i) for i in range(len(WORDS))])
    cut = [" ".join(processor.encode(line, out_type=str)) for line in LETTERS]
    assert run.translator.score(LETTERS, LETTERS[::-1]) == opened(words).score(cut, cut[::-1])
    again = open_source(str(run.folder.path))
    assert again.translator.score(LETTERS, LETTERS) == run.translator.score(LETTERS, LETTERS)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", "s2s"),
        ("transformer-decoder-autoreg", "average-attention"),
        ("transformer-ffn-activation", "tanh"),
        ("transformer-ffn-depth", 3),
        ("transformer-no-projection", True),
        ("transformer-train-position-embeddings", True),
        ("transformer-postprocess", "dhn"),
        ("transformer-postprocess-emb", "r"),
        ("transformer-postprocess-top", "n"),
        ("transformer-tied-layers", [1, 1, 1]),
        ("lemma-dim-emb", 4),
        ("dim-emb", "many"),
        ("transformer-heads", 5),
        ("right-left", True),
        ("dec-cell", "gru"),
    ],
)
def test_a_setting_that_our_transformer_has_not_is_refused_by_its_name(tmp_path, name, value):
    path = write_marian(tmp_path)
    settings = SETTINGS | (SSRU if name == "dec-cell" else {}) | {name: value}
    write_model(path, marian_arrays(SETTINGS), settings)
    with pytest.raises(ValueError, match=rf"model\.npz: .*{name}"):
        opened(path)


def changed(**arrays: np.ndarray | None) -> dict[str, np.ndarray]:
    found = marian_arrays(SETTINGS) | arrays
    return {name: array for name, array in found.items() if array is not None}


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        (
            changed(encoder_l1_self_Wq=None),
            "there is no encoder_l1_self_Wq, which its special:model.yml asks for",
        ),
        (changed(encoder_l1_ffn_W3=np.zeros((2, 2), np.float32)), "nothing reads its encoder_l1_ffn_W3"),
        (
            changed(encoder_l1_ffn_W1=np.zeros((D, 5), np.float32)),
            "does not hold the weights of our Transformer with its settings .*size mismatch",
        ),
        (changed(Wemb=np.zeros((5, D), np.float32)), "ids up to 12, but the model has 5 embeddings"),
        (changed(Wemb=np.zeros((len(WORDS), D), np.int64)), "Wemb is of type int64"),
        (changed(Wemb=np.array([print], dtype=object)), "not a whole .npz of plain arrays"),
        ({"Wemb": np.zeros((5, D), np.float32)}, r"has no special:model\.yml"),
    ],
)
def test_arrays_that_do_not_fit_are_one_clear_error(tmp_path, arrays, error):
    path = write_marian(tmp_path)
    np.savez(path, **arrays, **({"special:model.yml": model_yml(SETTINGS)} if len(arrays) > 1 else {}))
    with pytest.raises(ValueError, match=error):
        opened(path)


@pytest.mark.parametrize("name", ["model.npz", "model.bin"])
def test_a_file_that_was_cut_short_is_one_clear_error(tmp_path, name):
    path = write_marian(tmp_path, name)
    data = path.read_bytes()
    for share in (0.0, 0.0001, 0.01, 0.5, 0.99):
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises(ValueError, match="copy it again"):
            opened(path)


@pytest.mark.parametrize(
    ("at", "number", "error"),
    [
        (0, 7, "begins with 7, expected 1"),
        (8, 2**60, "ends too early"),
        (24, 0x402, r"is of type 0x402; expected float32 \(0x404\)"),
        (32, 99, "ends too early"),
        (40, 5, "does not fit into its 5 bytes"),
    ],
)
def test_a_bin_with_wrong_numbers_is_one_clear_error(tmp_path, at, number, error):
    path = write_marian(tmp_path, "model.bin")
    data = bytearray(path.read_bytes())
    data[at : at + 8] = number.to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(ValueError, match=error):
        opened(path)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("vocab.yml", "the: one\n", "is no vocabulary of YAML `word: id`"),
        ("vocab.yml", "- the\n", "is no vocabulary of YAML `word: id`"),
        ("vocab.yml", "the: 1\na: 1\n", "expected a different id from 0 on for every word, got 1 for 2"),
        ("vocab.yml", "the: 1\na: 2\n", "it has no </s> and no <unk>"),
        ("decoder.yml", "models: [", "line 1: not YAML"),
        ("decoder.yml", "models: [model.npz, model.npz]\nvocabs: [vocab.yml]\n", "expected one model"),
        (
            "decoder.yml",
            "models: [model.npz]\nvocabs: [vocab.en.yml, vocab.yml]\n",
            "there is no .*vocab.en.yml, which the files beside",
        ),
        (
            "decoder.yml",
            "models: [model.npz]\nvocabs: [vocab.yml]\nshortlist: [lex.bin, false]\n",
            "there is no .*lex.bin, which the files beside",
        ),
        ("decoder.yml", "models: [model.npz]\nvocabs: [vocab.yml]\nshortlist: 3\n", "is no name of a file"),
    ],
)
def test_broken_files_beside_the_model_are_one_clear_error(tmp_path, name, text, error):
    path = write_marian(tmp_path)
    path.with_name(name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=error):
        opened(path.parent)


def test_without_decoder_yml_the_vocabularies_must_say_their_sides(tmp_path):
    path = write_marian(tmp_path)
    expected = opened(path).score(SOURCES, TARGETS)
    path.with_name("decoder.yml").unlink()
    assert opened(path).score(SOURCES, TARGETS) == expected
    path.with_name("vocab.yml").rename(tmp_path / "srcvocab.yml")
    write_words(tmp_path / "trgvocab.yml")
    assert opened(tmp_path).score(SOURCES, TARGETS) == expected
    (tmp_path / "srcvocab.yml").rename(tmp_path / "vocab.en.yml")
    (tmp_path / "trgvocab.yml").rename(tmp_path / "vocab.de.yml")
    with pytest.raises(
        ValueError, match=r"cannot tell the vocabularies of model\.npz; write them into decoder\.yml"
    ):
        opened(tmp_path)


@pytest.mark.parametrize("place", ["nowhere", "nowhere.npz"])
def test_a_place_without_a_model_is_one_clear_error(tmp_path, place):
    with pytest.raises(ValueError, match=r"there is no .*nowhere"):
        opened(tmp_path / place)
    with pytest.raises(ValueError, match=r"expected one model, \.npz or \.bin, got none"):
        opened(tmp_path)
