"""The share of the ideal from given seconds, and the whole measurement on a tiny model; how long it took is
no test."""

import json
import sys

import pytest
import torch

from benchmarks import removal_speed
from benchmarks.removal_speed import (
    BEAM,
    agreement,
    model_config,
    models,
    multiply_adds,
    table,
    time_figures,
    timed_work,
)
from headgates.configs.schema import ModelConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import find_sites, heads_left

EOS = SpecialTokens().end

TINY = ModelConfig(d_model=20, ffn=13, heads=4, encoder_layers=1, decoder_layers=2, dropout=0.3)
VOCABULARY, SENTENCES, LENGTH = 53, 6, 7


def test_the_share_of_the_ideal_is_one_where_time_goes_with_the_multiply_adds():
    seconds = {"dense": [2.0, 4.0, 1.0], "masked": [2.0, 4.0, 1.0], "removed": [1.5, 3.0, 0.75]}
    found = time_figures(seconds, 0.25)
    assert found["share_of_ideal"]["values"] == pytest.approx([1.0, 1.0, 1.0])
    assert found["dense_over_removed"]["median"] == pytest.approx(found["ideal"])
    assert found["dense_over_masked"]["values"] == [1.0, 1.0, 1.0]


def test_the_share_of_the_ideal_is_taken_round_by_round():
    found = time_figures(
        {"dense": [2.0, 4.0, 2.0], "masked": [3.0, 3.0, 3.0], "removed": [2.0, 3.0, 2.2]}, 0.5
    )
    assert found["share_of_ideal"]["values"] == pytest.approx([0.0, 0.5, -0.2])
    assert found["share_of_ideal"]["median"] == 0.0
    assert found["share_of_ideal_of_medians"] == pytest.approx(-0.2)
    assert found["ideal"] == 2.0


@pytest.fixture(scope="module")
def made():
    return models(TINY, VOCABULARY)


@pytest.fixture
def ids():
    ids = torch.randint(4, VOCABULARY, (2, SENTENCES, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return ids[0, :, :LENGTH], ids[1]


def test_half_of_the_heads_of_every_site_are_gone(made):
    assert {site.heads for site in find_sites(made["removed"])} == {2}
    assert {site.heads for site in find_sites(made["masked"])} == {4}
    assert heads_left(made["removed"]) == made["masked"].head_gates.open()


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("what", ["scoring", f"beam-{BEAM}"])
def test_masked_and_removed_do_the_same_work_and_dense_does_as_much(made, ids, what, batch):
    found = {name: torch.cat(timed_work(what, model, *ids, batch)()) for name, model in made.items()}
    length = LENGTH if what == "scoring" else LENGTH - 1  # without the end
    assert {tuple(each.shape) for each in found.values()} == {(SENTENCES, length)}
    assert agreement(found["masked"], found["removed"]) == 1.0
    assert not torch.equal(found["dense"], found["removed"])
    assert what == "scoring" or not (found["dense"] == EOS).any()


def test_models_that_do_not_agree_are_not_timed():
    masked = torch.zeros(10, 3)
    removed = masked.clone()
    removed[4, 2] = 1.0
    assert agreement(masked, removed) == 0.9
    removed[5, 0] = 1.0
    with pytest.raises(ValueError, match="agree on 80% of the sentences only"):
        agreement(masked, removed)


def test_the_beams_of_a_search_are_counted(made):
    score, search = (
        multiply_adds(what, made["dense"], sentences=3, length=LENGTH) for what in ("scoring", "beam-5")
    )
    assert search["output"] == BEAM * score["output"]
    assert search["enc-self"] == score["enc-self"]


def test_the_sizes_are_those_of_the_question_and_of_the_reference_run():
    base, multi30k = model_config("base"), model_config("multi30k")
    assert (base.d_model, base.ffn, base.heads, base.encoder_layers, base.decoder_layers) == (
        512,
        2048,
        8,
        6,
        6,
    )
    assert (multi30k.d_model, multi30k.heads, multi30k.encoder_layers) == (128, 8, 3)


def test_the_command_leaves_one_line_with_every_number(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(removal_speed, "model_config", lambda size: TINY)
    monkeypatch.setattr(removal_speed, "VOCABULARY", VOCABULARY)
    words = [
        "--rounds",
        "2",
        "--sentences",
        "6",
        "--length",
        "7",
        "--batches",
        "4",
        "1",
        "--out",
        str(tmp_path / "speed.jsonl"),
    ]
    monkeypatch.setattr(sys, "argv", ["removal_speed.py", *words])
    assert removal_speed.main() == 0
    (line,) = (tmp_path / "speed.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert [(row["size"], row["work"], row["batch"]) for row in found["measured"]] == [
        (size, what, batch)
        for size, what in (("base", "scoring"), ("multi30k", "scoring"), ("multi30k", "beam-5"))
        for batch in (4, 1)
    ]
    for row in found["measured"]:
        assert 0 < row["saved_share"] < 1
        assert row["parameters"]["removed"] < row["parameters"]["dense"]
        assert all(len(each["values"]) == 2 for each in row["seconds"].values())
    assert {"command", "commit", "device", "versions", "aim", "load_average_before"} <= found.keys()
    assert found["command"].startswith("python -m benchmarks.removal_speed")
    out = capsys.readouterr().out
    assert "share of ideal" in out
    assert "multi30k, beam-5" in out


def test_the_table_has_milliseconds_a_batch():
    found = time_figures({"dense": [0.5], "masked": [0.6], "removed": [0.4]}, 0.25)
    (line,) = table(
        [{"size": "base", "work": "scoring", "batch": 4, **found}], sentences=9
    )  # 3 batches, the last of one sentence
    assert line[:5] == ["base, scoring", "4", "166.7", "200.0", "133.3"]
    assert line[-3:] == ["25.0%", "0.80", "0.80 to 0.80"]
