"""CTranslate2 against the model it was written from: random models with uneven heads, whole layers without
any, every architecture.

Random models give padding as much probability as any piece, and end rarely: `settled` makes them do neither,
as training does.
"""

import json
import random
from dataclasses import asdict

import numpy as np
import pytest
import torch

from headgates.bridges.exported import FORMATS
from headgates.bridges.formats import ABOUT, copy_vocabs
from headgates.configs.settings import SearchConfig
from headgates.gates import HeadMap, attach, find_sites, remove
from headgates.gates.headmap import write_json
from headgates.models.checkpoint import architecture
from headgates.models.translator import Translator
from tests.worlds import translators
from tests.worlds.small_model import LIBRARIES
from tests.worlds.translators import scores_differ, settled, shortened

ctranslate2 = pytest.importorskip(
    "ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2"
)
from headgates.bridges import ct2, ct2_search  # noqa: E402
from headgates.models import description  # noqa: E402

SOURCES = [*translators.SOURCES[:-1], 'cats "sleep" \\ {well} 🐈']
ARCHITECTURES = {
    "pre, tied": {"joint": True, "embeddings": "tied"},
    "post, learned": {
        "norm": "post",
        "positions": "learned",
        "max_positions": 61,
        "embeddings": "tied-decoder",
    },
    **{name: LIBRARIES[name] for name in ("as M2M100", "as T5", "pre, post", "post, pre")},
}
CASES = [
    *(("uneven", name) for name in ARCHITECTURES if name != "pre, tied"),
    ("empty layers", "post, learned"),
    ("neurons", "as M2M100"),
    ("neurons", "as T5"),
    ("empty layers", "as T5"),
    ("neurons", "post, pre"),
    ("depth", "as M2M100"),
    ("all", "post, pre"),
    ("none", "pre, tied"),
]


@pytest.fixture
def make(make_translator):
    return lambda closed="none", **settings: make_translator(closed, **settings)


@pytest.fixture
def write(tmp_path):
    """The folder that holds a translator as CTranslate2's model, as `export` would leave it."""

    def write(translator: Translator):
        folder = tmp_path / f"exported-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        write_json(
            folder / ABOUT,
            {
                "format": "ct2",
                "sha256": {},
                "search": asdict(translator.search),
                "architecture": architecture(translator.model),
            },
        )
        copy_vocabs(translator, folder)
        ct2.write(translator, folder)
        return folder

    return write


@pytest.fixture
def exported(write):
    return lambda translator, **options: FORMATS["ct2"].open(write(translator), threads=1, **options)


def check_best(translator, model, lines, **options):
    """The best hypotheses are the same ones. Returns all, the model's first."""
    both = [each.translate_n_best(lines, **options) for each in (translator, model)]
    first = [[best[0] for best in each] for each in both]
    ours, theirs = (
        [number for one in each for number in (one.log_prob, one.score, one.tokens)] for each in first
    )
    assert [one.text for one in first[1]] == [one.text for one in first[0]]
    assert theirs == pytest.approx(ours, abs=1e-3)
    return both


def check_beams(translator, model, **options):
    """The best hypotheses are the same ones, and none of the others is worse than the model's at its
    place."""
    ours, theirs = check_best(translator, model, SOURCES, **options)
    for mine, best in zip(ours, theirs, strict=True):
        assert len(best) == len(mine)
        assert all(b.score > a.score - 1e-4 for a, b in zip(mine, best, strict=True))


@pytest.mark.parametrize(("closed", "name"), CASES)
def test_every_token_has_the_log_probability_that_the_model_gives_it(make, exported, closed, name):
    translator = make(closed, **ARCHITECTURES[name])
    assert scores_differ(translator, exported(translator), SOURCES) < 1e-4


def test_heads_that_were_removed_are_gone(make, write):
    translator = make()
    unpruned = write(translator)
    remove(translator.model, HeadMap({site: [True, False] for site in find_sites(translator.model)}))
    assert (write(translator) / "model.bin").stat().st_size < (unpruned / "model.bin").stat().st_size


@pytest.mark.parametrize(("closed", "name"), CASES)
def test_greedy_and_beam_search_say_what_the_model_says(make, exported, closed, name):
    translator = settled(make(closed, **ARCHITECTURES[name]))
    model = exported(translator)
    check_best(translator, model, SOURCES, beam=1)
    # padding may come into a beam of these, which `settled` settles for our own embeddings alone; then the
    # others may be worse
    if name in LIBRARIES:
        check_best(translator, model, SOURCES)
    else:
        check_beams(translator, model)


@pytest.mark.parametrize(("beam", "penalty"), [(2, 0.0), (5, 0.6), (2, 2.0), (3, -0.7)])
def test_the_length_penalty_ranks_as_the_model_s_search_does(make, exported, penalty, beam):
    translator = settled(make("uneven", search=SearchConfig(max_ratio=0.5, max_extra=5)), end=3.0)
    words = sorted({word for line in SOURCES for word in line.split()})
    generator = random.Random(1)
    lines = [" ".join(generator.choices(words, k=generator.randint(1, 7))) for _ in range(53)]
    _, found = check_best(translator, exported(translator), lines, beam=beam, length_penalty=penalty)
    assert len({best[0].tokens for best in found}) > 3  # some translations end, others reach their limits


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("extra", [1, 7])
def test_every_sentence_has_a_length_limit_of_its_own_where_its_end_is_forced(make, exported, beam, extra):
    translator = settled(
        make("uneven", search=SearchConfig(max_ratio=0.5, max_extra=extra, batch_tokens=997)), end=-9.0
    )
    limits = [len(ids) // 2 + extra if ids else 0 for ids in translator.encode(SOURCES)]
    model = exported(translator)
    assert [best[0].tokens for best in model.translate_n_best(SOURCES, beam=beam)] == limits
    check_beams(translator, model, beam=beam)


def test_a_hypothesis_that_ends_a_token_after_its_own_limit_is_searched_again(make, exported, monkeypatch):
    translator = settled(make(), end=3.0)
    model, search = exported(translator), SearchConfig(beam=1, max_ratio=0.0, max_extra=31)
    lines = [ids for ids in translator.encode(SOURCES) if ids]
    said = [best[0].ids for best in translator.n_best(lines, search)]
    short = min(range(len(lines)), key=lambda i: len(said[i]) or 99)
    sources, limits = [lines[short], max(lines, key=len)], np.array([len(said[short]), 31])
    for module in ("bridges.ct2_search", "models.search"):
        monkeypatch.setattr(f"headgates.{module}.length_limits", lambda *_: limits)
    found = [[best[0].ids for best in each.search_batch(sources, search)] for each in (translator, model)]
    assert found[0] == found[1]
    assert len(found[0][0]) < len(said[short]) < 30


@pytest.mark.parametrize("closed", ["none", "all"])
def test_padding_and_beginning_are_never_produced(make, exported, closed):
    translator = make(closed)
    specials = translator.model.target_specials
    with torch.no_grad():
        translator.model.output.weight[list(specials.never_produced)] *= 3  # so that they come first at times
    model = exported(translator)
    check_best(translator, model, SOURCES, beam=1)
    ids = translator.encode(SOURCES[:1])
    for best in (model.search_again(ids[0], SearchConfig(beam=5), 9, cut) for cut in (False, True)):
        assert not any({*specials.never_produced, specials.end} & set(one.ids) for one in best)
        assert [one.log_prob for one in best] == pytest.approx(
            [sum(row) for row in model.log_probs(ids * 5, [one.ids for one in best])]
        )
        assert [one.score for one in best] == pytest.approx(
            [one.log_prob / (len(one.ids) + 1) for one in best]
        )


def test_a_joint_vocabulary_and_tied_tables_are_stored_once(make, write):
    sizes = {
        embeddings: (write(make(embeddings=embeddings)) / "model.bin").stat().st_size
        for embeddings in ("tied-decoder", "separate")
    }
    table = 41 * 22 * 4  # bytes, but for the names of tensors
    assert sizes["separate"] - sizes["tied-decoder"] > table - 100
    folder = write(make(embeddings="tied", joint=True))
    assert (folder / "shared_vocabulary.json").is_file()
    assert not (folder / "source_vocabulary.json").exists()


def test_ctranslate2_alone_translates_sentencepiece_s_pieces(make, write):
    translator = settled(make("uneven", search=SearchConfig(max_ratio=0.0, max_extra=12)))
    folder = write(translator)
    plain = ctranslate2.Translator(str(folder), intra_threads=1)
    source, target = translator.source_vocab, translator.target_vocab
    pieces = [source.pieces(ids) for ids in source.encode(SOURCES)]
    found = plain.translate_batch(pieces, beam_size=1, min_decoding_length=0, max_decoding_length=12)
    ids = [[target.processor.piece_to_id(piece) for piece in one.hypotheses[0]] for one in found]
    ours = translator.translate_n_best(SOURCES, beam=1)
    assert all(
        text == best[0].text
        for text, best in zip(target.decode(ids), ours, strict=True)
        if best[0].tokens < 12
    )
    assert json.loads((folder / "source_vocabulary.json").read_text())[3] == "<unk>"


def test_positions_end_where_those_of_the_model_do_and_a_longer_line_is_refused(make, exported):
    line = " ".join(["cat"] * 3)
    tokens = len(make().encode([line])[0]) + 1
    translator = settled(make(max_positions=tokens, positions="learned"), end=-9.0)
    model = exported(translator)
    check_best(translator, model, [line])
    assert model.translate_n_best([line])[0][0].tokens == tokens  # max_extra would let it be longer
    with pytest.raises(
        ValueError, match=f"line 2: a source of {tokens + 1} tokens is longer than the {tokens} positions"
    ):
        model.translate([line, line + " ."])
    with pytest.raises(ValueError, match="line 1: a target of"):
        model.score([line], ["der Hund schläft . der Hund schläft . der Hund"])


def test_sinusoids_reach_further_than_max_positions(make, exported, monkeypatch):
    line, target = "the dog sleeps . " * 7, "der Hund schläft . " * 7
    translator = settled(make(max_positions=5))
    model = exported(translator)
    assert scores_differ(translator, model, [line], [target]) < 1e-4
    check_best(translator, model, [line])
    monkeypatch.setattr(description, "POSITIONS", 7)
    with pytest.raises(ValueError, match="longer than the 7 positions"):
        exported(translator).translate([line])


def test_int8_says_nearly_the_same(make, exported):
    translator = make("empty layers")
    # matrices of this size are quantised too; by how much depends on the CPU's kernels, 0.5 to 0.8 nats were
    # seen
    assert 1e-4 < scores_differ(translator, exported(translator, compute_type="int8"), SOURCES) < 5


def test_a_compute_type_that_this_cpu_lacks_names_those_that_it_has(make, exported, monkeypatch):
    translator = make()
    exported(translator)
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"float32"})
    with pytest.raises(ValueError, match="no int8 on this CPU; expected one of float32"):
        exported(translator, compute_type="int8")


def test_a_model_with_gates_is_refused(make, write):
    translator = make()
    attach(translator.model, gate="mask")
    with pytest.raises(ValueError, match="has gates"):
        write(translator)


def test_weights_that_are_no_numbers_are_refused(make, exported):
    translator = make()
    with torch.no_grad():
        translator.model.decoder.norm.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="its weights hold NaN"):
        exported(translator).translate(SOURCES)


def test_a_file_that_is_cut_short_is_refused(make, write):
    folder = write(make())
    (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:-1000])
    with pytest.raises(ValueError, match="CTranslate2 cannot open"):
        FORMATS["ct2"].open(folder)


def test_two_pieces_of_one_name_are_refused(make, monkeypatch):
    vocab = make().source_vocab
    monkeypatch.setattr(vocab, "pieces", lambda ids: ["a"] * len(ids))
    with pytest.raises(ValueError, match="has the piece 'a' twice"):
        ct2_search.piece_names(vocab)


def test_attention_that_ctranslate2_returns_is_that_of_the_head_that_aligns_best(make, write):
    translator = settled(make(**ARCHITECTURES["post, learned"]))
    model, line = translator.model, "the cat sleeps"
    plain, aligned = write(translator), write(translator)
    last = model.config.heads - 1
    ct2.write(translator, aligned, aligning=[(0, last), (1, 1), (0, 0)])
    assert json.loads((aligned / "config.json").read_text())["alignment_heads"] == [[0, 0], [1, 1], [0, 1]]
    assert "alignment_heads" not in json.loads((plain / "config.json").read_text())
    sources, targets = map(ct2_search.piece_names, (translator.source_vocab, translator.target_vocab))
    ids = translator.source_vocab.encode([line])[0]
    pieces = [sources[number] for number in ids if number != model.source_specials.end]
    opened = {folder: ctranslate2.Translator(str(folder), intra_threads=1) for folder in (plain, aligned)}
    found = {
        folder: each.translate_batch([pieces], beam_size=1, return_attention=True, max_decoding_length=5)[0]
        for folder, each in opened.items()
    }
    assert found[plain].hypotheses == found[aligned].hypotheses
    produced = [targets.index(piece) for piece in found[aligned].hypotheses[0]]
    kept = []
    model.decoder.layers[0].cross_attention.keep = kept.append
    source = torch.tensor([[*(sources.index(piece) for piece in pieces), model.source_specials.end]])
    model(source, torch.tensor([[model.target_specials.beginning, *produced]]))
    weights = kept[0][0, last, : len(produced), : len(pieces)]
    got = torch.tensor(found[aligned].attention[0])[: len(produced), : len(pieces)]
    torch.testing.assert_close(got, weights, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(got, kept[0][0, 0, : len(produced), : len(pieces)], atol=1e-2)


def test_a_head_to_align_with_that_there_is_not_is_refused(make, tmp_path):
    with pytest.raises(ValueError, match="there is no cross head 7 of layer 0"):
        ct2.write(make(), tmp_path, aligning=[(0, 7)])


@pytest.mark.parametrize("beam", [1, 3])
def test_a_shortlist_is_ctranslate2_s_map_of_candidates(make, exported, beam):
    whole = settled(make(), end=3.0)
    short, _ = shortened(whole)
    model = exported(short)
    # one by one: what reaches its limit is searched again, and then alone
    found = [
        [each.translate([line], beam=beam)[0] for line in SOURCES if line] for each in (short, model, whole)
    ]
    assert found[0] == found[1] != found[2]
    assert scores_differ(short, model, SOURCES) < 1e-4  # scores are of all pieces


def test_padding_has_no_share_of_the_probability_among_candidates(make, exported):
    whole = settled(make(), end=5.0)
    with torch.no_grad():  # as likely as the end
        output, specials = whole.model.output.weight, whole.model.target_specials
        output[specials.padding] = output[specials.end]
    short, _ = shortened(whole)
    model = exported(short)
    pairs = [[each.translate_n_best([line], beam=1)[0][0] for each in (short, model)] for line in SOURCES]
    ended = [(a, b) for a, b in pairs if 0 < a.tokens < 6]  # what is cut is scored by all pieces
    assert ended
    assert all(a.log_prob == pytest.approx(b.log_prob, abs=1e-4) for a, b in ended)
