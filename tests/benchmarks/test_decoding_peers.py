"""All decoders translate alike into as many pieces as were asked for, and are refused where they do not; how
fast is no test."""

import json
import sys
import time
from functools import partial

import pytest
import torch

from benchmarks import decoding_peers
from benchmarks.decoding_peers import (
    CLOCKS,
    CT2,
    CT2_INT8,
    GENERATE,
    MOST_BATCHES,
    OURS,
    SPECIALS,
    check_parity,
    cut,
    draw_sources,
    figures,
    make_searches,
    table,
)
from headgates.configs.schema import ModelConfig
from headgates.data.batch import pad
from headgates.report.speed.measure import alternate

pytest.importorskip("transformers", reason="transformers is not installed; it is in the extra hf")
pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2")

WIDTH, VOCABULARY, STEPS = 94, 307, 7


def tiny(width: int, dropout: float) -> ModelConfig:
    return ModelConfig(d_model=width, ffn=189, heads=2, encoder_layers=3, decoder_layers=3, dropout=dropout)


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    monkeypatch.setattr(decoding_peers, "sized", tiny)
    monkeypatch.setattr(decoding_peers, "VOCAB", VOCABULARY)


@pytest.fixture
def searches():
    return make_searches(WIDTH)


@pytest.fixture
def sources():
    return pad(draw_sources(11), SPECIALS)


@pytest.mark.parametrize("beam", [1, 3])
def test_all_translate_alike(searches, sources, beam):
    found = check_parity(searches, sources, beam, STEPS)
    assert found["same_hypotheses"][GENERATE] == found["same_hypotheses"][CT2] == found["sentences"] == 11
    assert 0 <= found["same_hypotheses"][CT2_INT8] <= 11
    assert found["different_translations"] > 5


@pytest.mark.parametrize("beam", [1, 3])
def test_every_translation_has_as_many_steps_as_asked_for_and_no_end_before(searches, sources, beam):
    for name, search in searches.items():
        best = [hypotheses for (hypotheses,) in search(sources, beam, STEPS, 1)]
        assert {len(ids) for ids in best} == {STEPS - 1 if name == OURS else STEPS}, name
        assert min(min(ids) for ids in best) > SPECIALS.end, name


@pytest.mark.parametrize("peer", [GENERATE, CT2])
def test_a_peer_of_other_weights_is_not_timed(searches, sources, peer, monkeypatch):
    monkeypatch.setattr(decoding_peers, "SEED", 2)
    searches[peer] = make_searches(WIDTH)[peer]
    with pytest.raises(
        ValueError,
        match=f"ours and {peer} have the same hypotheses for [0-9] of 11 sentences only, with beam 3",
    ):
        check_parity(searches, sources, 3, STEPS)


def test_a_peer_that_takes_another_of_the_beam_is_not_timed(searches, sources):
    def without_the_last(search, source, beam, steps, n_best):
        return [[*best[:-1], best[0]] for best in search(source, beam, steps, n_best)]

    searches[CT2] = partial(without_the_last, searches[CT2])
    with pytest.raises(ValueError, match=f"ours and {CT2} have the same hypotheses for 0 of 11"):
        check_parity(searches, sources, 3, STEPS)


def test_weights_that_translate_everything_alike_show_nothing(searches, sources):
    same = sources[:1].expand(11, -1)
    with pytest.raises(ValueError, match="11 sentences have 1 different translations only"):
        check_parity(searches, same, 1, STEPS)


def test_sentences_end_and_are_cut_into_few_batches_longest_first():
    sources = draw_sources(7 * MOST_BATCHES)
    assert all(ids[-1] == SPECIALS.end and min(ids[:-1]) > SPECIALS.unknown for ids in sources)
    assert [len(ids) for ids in sources] == sorted(map(len, sources), reverse=True)
    batches = cut(sources, 3)
    assert len(batches) <= MOST_BATCHES
    assert all(len(batch) == 3 for batch in batches)
    torch.testing.assert_close(cut(sources, 1000)[0], pad(sources, SPECIALS))
    assert len(cut(sources, 7)) == MOST_BATCHES


SECONDS = {OURS: [2.0, 4.0, 2.0], GENERATE: [4.0, 4.0, 6.0], CT2: [1.0, 4.0, 1.8], CT2_INT8: [1.0, 1.0, 1.0]}


def test_a_ratio_above_one_says_that_ours_is_faster():
    found = figures(SECONDS, 12)
    assert found["over"][GENERATE]["values"] == [2.0, 1.0, 3.0]
    assert found["over"][CT2]["median"] == pytest.approx(0.9)
    assert found["sentences_per_second"][OURS]["values"] == [6.0, 3.0, 6.0]


def test_the_aim_is_asked_of_batches_of_16_and_64_alone():
    slow = figures({**SECONDS, CT2: [1.0, 1.0, 1.0]}, 12)
    rows = [
        {"beam": 5, "batch": 1, **slow},
        {"beam": 5, "batch": 16, **slow},
        {"beam": 5, "batch": 64, **figures(SECONDS, 12)},
    ]
    assert [line[-1] for line in table([{"d_model": WIDTH, "rows": rows}])] == ["", "no", "yes"]


def test_the_command_leaves_one_line_with_every_number(tmp_path, monkeypatch, capsys):
    out = tmp_path / "peers.jsonl"
    words = [
        "--widths",
        WIDTH,
        "--beams",
        1,
        3,
        "--batches",
        1,
        16,
        "--sentences",
        19,
        "--pieces",
        5,
        "--rounds",
        2,
        "--threads",
        1,
    ]
    monkeypatch.setattr(
        sys, "argv", ["decoding_peers.py", *map(str, [*words, "--clock", "cpu", "--out", out])]
    )
    assert decoding_peers.main() == 0
    (line,) = out.read_text().splitlines()
    record = json.loads(line)
    (measured,) = record["measurements"]
    assert [(row["beam"], row["batch"], row["sentences"]) for row in measured["rows"]] == [
        (1, 1, 10),
        (1, 16, 19),
        (3, 1, 10),
        (3, 16, 19),
    ]
    for row in measured["rows"]:
        assert set(row["over"]) == {GENERATE, CT2, CT2_INT8}
        assert all(len(each["values"]) == 2 for each in row["sentences_per_second"].values())
    assert [each["beam"] for each in measured["parity"]] == [1, 3]
    assert (record["clock"], record["threads"]) == ("cpu", 1)
    assert "protobuf" in record["left_out"]["joeynmt"]
    assert {"transformers", "ctranslate2", "torch"} <= record["versions"].keys()
    assert "sentences/s of cpu time" in capsys.readouterr().out


def test_the_processor_does_not_count_what_others_wait_for():
    seconds = {
        name: alternate({"sleep": partial(time.sleep, 0.05)}, rounds=1, clock=clock)["sleep"][0]
        for name, clock in CLOCKS.items()
    }
    assert seconds["wall"] >= 0.05 > 2 * seconds["cpu"]
