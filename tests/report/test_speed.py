"""The speed report: what it measures, its arithmetic from given seconds, its page, its systems, and the whole
of
it on a tiny run. No timing is a test."""

import json
import random

import pytest
import torch
import yaml

from headgates.commands import export
from headgates.configs.schema import ModelConfig
from headgates.data.vocab import Vocab
from headgates.gates import HeadMap, find_sites, heads_left, remove
from headgates.models.checkpoint import save_model
from headgates.models.line_translator import Translation
from headgates.models.multiply_adds import decoding
from headgates.models.transformer import Transformer
from headgates.records.folder import RunFolder
from headgates.report.speed import speed
from headgates.report.speed.speed import (
    Setting,
    System,
    all_settings,
    by_length,
    findings,
    memory_of,
    open_system,
    pooled,
    prepare,
    setting_rows,
)

WORDS = ["dog", "cat", "bird", "man", "sees", "hears", "a", "the", "small", "red", "old", "."]
SIZES = {"d_model": 20, "heads": 2, "ffn": 13, "encoder_layers": 1, "decoder_layers": 2, "max_positions": 60}
CLOSED = [[True, False], [False, False], [True, True], [False, True], [True, False]]  # of the sites in order


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) for _ in range(count)]


LINES = sentences(9), sentences(9, 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    """A run with gates on random weights, as fit.py leaves it; no test writes in it."""
    place = tmp_path_factory.mktemp("speed")
    (place / "text").mkdir()
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            (place / "text" / f"{split}.{language}").write_text("\n".join([*sentences(31), ""]))
    folder = RunFolder(place / "toy-l0")
    folder.path.mkdir()
    vocab = Vocab.train(sentences(200, 100), size=61, path=folder / "vocab.model")
    search = {"beam": 2, "length_penalty": 1.0, "max_ratio": 1.0, "max_extra": 4, "batch_tokens": 61}
    text = {"data": str(place / "text"), "src": "en", "tgt": "de", "seed": 7, "search": search, "gate": "l0"}
    folder.write_text("config.yaml", yaml.safe_dump(text))
    torch.manual_seed(3)
    model = Transformer(ModelConfig(**SIZES, dropout=0.0), len(vocab), len(vocab)).eval()
    save_model(folder / "base.pt", model)
    folder.add_system("base", folder / "base.pt", None)
    closed = HeadMap(dict(zip(find_sites(model), map(torch.tensor, CLOSED), strict=True)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    save_model(folder / "best.pt", model)
    folder.add_system("l0", folder / "best.pt", closed.map(lambda row: (~row).double()).to_json())
    return folder


# ---------------------------------------------------------------- what is measured


def test_thirds_hold_every_sentence_that_is_not_empty_by_its_length():
    parts = by_length([5, 0, 1, 9, 3, 3, 0, 7])
    assert parts == {"short": [2, 4], "middle": [5, 0], "long": [7, 3]}
    with pytest.raises(ValueError, match="at least 3 test sentences that are not empty, got 2"):
        by_length([4, 0, 4])


def test_every_setting_has_some_tens_of_sentences_in_whole_batches_spread_over_their_part():
    lines = [f"sentence {i}" for i in range(300)]
    planned = all_settings([1, 5], [1, 4, 16, 64], lines, by_length(range(1, 301)))
    assert len({(each.batch, each.beam, each.length) for each in planned}) == len(planned) == 24
    assert {each.batch: len(each.sentences) for each in planned} == {1: 16, 4: 32, 16: 32, 64: 64}
    assert all(len(batch) == each.batch for each in planned for batch in each.batches)
    spread = all_settings([1], [1], lines, {"short": list(range(160)), "few": [7, 8]})
    assert spread[0].sentences == lines[0:160:10]
    assert spread[1].sentences == [lines[7]] * 8 + [lines[8]] * 8


def system(name: str, model=None) -> System:
    return System(name, name, {}, model, 1, 1)


def test_rows_hold_what_the_clock_and_the_counts_say(make_model):
    unpruned, removed_model = make_model(), make_model()
    closed = {site: torch.tensor([True, True, False]) for site in find_sites(removed_model)}
    remove(removed_model, HeadMap(closed))
    models = {"unpruned": unpruned, "masked": unpruned, "removed": removed_model}
    setting, sources = Setting(2, "short", 2, ["a dog", "a cat", "the red bird .", "a"]), [4, 7]
    tokens = {"unpruned": 5, "masked": 3, "removed": 3}
    answers = {
        name: [
            [[Translation(line, -1.0, -1.0, n - i) for i in range(2)] for line in batch]
            for batch in setting.batches
        ]
        for name, n in tokens.items()
    }
    seconds = {"unpruned": [4.0, 4.0], "masked": [4.0, 4.0], "removed": [2.0, 1.0]}
    systems = [system(name, model) for name, model in models.items()]
    rows = setting_rows(systems, setting, seconds, answers, sources)
    dense, _, removed = rows
    assert dense["seconds"] == [4.0, 4.0]
    assert dense["sentences_per_second"]["median"] == 1.0
    assert dense["latency_ms"]["values"] == [2000.0, 2000.0]
    assert removed["sentences_per_second"]["values"] == [2.0, 4.0]
    assert removed["speedup"]["values"] == [2.0, 4.0]
    counts = [
        sum(sum(decoding(model, source=source, steps=[steps] * 2, beam=2).values()) for source in sources)
        for model, steps in ((unpruned, 5), (removed_model, 3))
    ]
    assert [dense["multiply_adds"], removed["multiply_adds"]] == counts
    assert removed["saved_share"] == pytest.approx(1 - counts[1] / counts[0])
    assert (dense["speedup"], dense["saved_share"], dense["same_translations"]) == (None, None, 1.0)


def test_systems_are_held_against_the_unpruned_model_on_their_own_engine():
    names = ("unpruned", "unpruned-ct2", "masked", "removed", "removed-onnx", "removed-ct2-int8")
    against = [system(name).against for name in names]
    assert against == [None, None, "unpruned", "unpruned", "unpruned-onnx", "unpruned-ct2-int8"]


def test_the_findings_count_the_settings_in_which_all_rounds_agree():
    ratios = [(0.9, 0.95, 0.99), (1.05, 1.10, 1.20), (1.0, 1.1, 1.2), (0.98, 1.01, 1.04)]
    rows = [
        {
            "system": "removed",
            "saved_share": 0.2,
            "speedup": dict(zip(("lowest", "median", "highest"), each, strict=True)),
        }
        for each in ratios
    ]
    systems = {
        "unpruned": {"label": "unpruned, PyTorch", "against": None},
        "removed": {"label": "removed, PyTorch", "against": "unpruned"},
    }
    saved, removed = findings({"heads": {"total": 48, "closed": 13}, "systems": systems, "rows": rows})
    assert "13 of 48 attention heads are removed" in saved
    assert "1.25 to 1.25 times as fast" in saved
    assert "faster than unpruned, PyTorch in 1 of 4 settings and slower in 1;" in removed


def test_speeds_of_all_lengths_are_pooled_by_time():
    row = {"system": "removed", "beam": 1, "batch": 4, "sentences": 32}
    rows = [row | {"seconds": seconds} for seconds in ([1.0, 2.0], [3.0, 2.0])]
    assert pooled(rows, "removed", 1, 4)["values"] == [16.0, 16.0]


@pytest.mark.slow
def test_a_fresh_process_says_what_it_took(run):
    spec = {"run": str(run.path), "system": "l0", "threads": 1}
    found = memory_of(System("masked", "", spec, None, 1, 1), [Setting(1, "short", 2, ["a dog", "a cat"])])
    assert found.keys() == {"imports", "peak"}
    if found["peak"] is not None:
        assert 0 < found["imports"] <= found["peak"]


# ---------------------------------------------------------------- the systems


def test_masked_and_removed_translate_alike_and_the_run_is_left_as_it_was(run, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "ENGINES", {})
    before = sorted(path.name for path in run.path.iterdir())
    systems, left_out = prepare(run, tmp_path, LINES, threads=1)
    assert [each.name for each in systems] == ["unpruned", "masked", "removed"]
    assert left_out == {}
    unpruned, masked, removed = systems
    assert removed.parameters < unpruned.parameters == masked.parameters
    assert removed.file_bytes < unpruned.file_bytes
    closed = {site.name: row.tolist() for site, row in (~heads_left(removed.model)).items()}
    assert list(closed.values()) == CLOSED
    texts = {each.name: open_system(each.spec).translate(LINES[0]) for each in systems}
    assert texts["removed"] == texts["masked"] != texts["unpruned"]
    assert sorted(path.name for path in run.path.iterdir()) == before


@pytest.mark.slow
def test_an_engine_runs_both_models_and_one_that_is_missing_is_left_out(run, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    require = speed.require_packages

    def missing(packages):
        if "onnxruntime" in packages:
            raise ValueError("pip install onnxruntime")
        require(packages)

    monkeypatch.setattr(speed, "require_packages", missing)
    systems, left_out = prepare(run, tmp_path, LINES, threads=1)
    names = ["unpruned-ct2", "removed-ct2", "unpruned-ct2-int8", "removed-ct2-int8"]
    assert [each.name for each in systems[3:]] == names
    assert left_out == {"ONNX Runtime": "pip install onnxruntime"}
    plain = open_system(systems[2].spec).translate(LINES[0], beam=2)
    assert open_system(systems[4].spec).translate(LINES[0], beam=2) == plain
    assert min(each.file_bytes for each in systems) > 1000


@pytest.mark.parametrize(
    ("gate", "systems", "error"),
    [
        ("none", ["base"], "is a base, a run without gates; .*give a run of fit.py with gates"),
        ("l0", ["base"], r"has no system 'l0' \(it has base\); .*give a run of fit.py with gates"),
        ("l0", ["l0"], r"has no system 'base' \(it has l0\)"),
    ],
)
def test_a_run_without_gates_or_base_has_nothing_to_compare(run, tmp_path, gate, systems, error):
    folder = RunFolder(tmp_path)
    folder.write_text("config.yaml", (run / "config.yaml").read_text().replace("gate: l0", f"gate: {gate}"))
    folder.write_json("systems.json", {name: {"weights": "best.pt", "xi": None} for name in systems})
    with pytest.raises(ValueError, match=error):
        prepare(folder, tmp_path / "scratch", ([], []), threads=1)


def test_the_report_has_every_number_a_page_and_a_figure(run, tmp_path, called, monkeypatch):
    monkeypatch.setattr(speed, "ENGINES", {})
    monkeypatch.setattr(
        speed, "memory_of", lambda system, settings: {"imports": 200 << 20, "peak": 300 << 20}
    )
    out = tmp_path / "quick"
    words = (run.path, "--report", "speed", "--quick", "--set", "beams=1", "--threads", "1", "--out", out)
    code, printed, error = called(export)(*words)
    assert code == 0, error
    assert {path.name for path in out.iterdir()} == {"report.json", "report.md", "speed.png", "speed.svg"}
    found = json.loads((out / "report.json").read_text())
    assert {"command", "commit", "device", "threads", "versions", "date", "text_digest"} <= found.keys()
    assert (found["heads"], found["seed"]) == ({"total": 10, "closed": 5}, 7)
    settings = {(row["length"], row["batch"], row["beam"]) for row in found["rows"]}
    assert settings == {("middle", 1, 1), ("middle", 16, 1)}
    assert all((len(row["seconds"]), row["same_translations"]) == (2, 1.0) for row in found["rows"])
    assert all(sentence in printed for sentence in found["findings"])
    text = (out / "report.md").read_text()
    assert text.count("| removed, PyTorch |") == 1 + 1  # systems, speeds
    assert " | 300.0 | 200.0 |" in text
    assert str(tmp_path) not in text
    assert "holds a speed report already; --fresh measures anew" in called(export)(*words)[2]
