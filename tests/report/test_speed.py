"""The speed report: what it measures, its arithmetic from given seconds, its page from given numbers, its
systems, and the whole of it on a tiny run. No timing is a test."""

import json
import random
import re

import pytest
import torch
import yaml

from headgates.commands import export
from headgates.configs.export import ExportConfig
from headgates.configs.schema import ModelConfig
from headgates.data.vocab import Vocab
from headgates.gates import HeadMap, find_sites, heads_left, remove
from headgates.models.checkpoint import save_model
from headgates.models.multiply_adds import decoding
from headgates.models.transformer import Transformer
from headgates.models.translator import Translation
from headgates.report.speed import speed
from headgates.report.speed.speed import (
    Plan,
    ReportCell,
    System,
    TimedTranslation,
    add_memory,
    cell_rows,
    findings,
    in_fresh_process,
    open_system,
    page,
    pooled,
    prepare,
    report,
    report_cells,
    speedup_columns,
)
from headgates.workbench.folder import RunFolder
from headgates.workbench.source import open_source

WORDS = ["dog", "cat", "bird", "man", "sees", "hears", "a", "the", "small", "red", "old", "."]
SMALL = {
    "d_model": 20,
    "heads": 2,
    "ffn": 13,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "dropout": 0.0,
    "max_positions": 60,
}
CLOSED = [
    [True, False],
    [False, False],
    [True, True],
    [False, True],
    [True, False],
]  # of the sites in their order
AMOUNT = {"batch_sizes": [16, 32], "beams": [1, 2], "repeats": 2, "threads": 1}


def config(**changes) -> ExportConfig:
    return ExportConfig(**{"source": "", "report": "speed", **AMOUNT, **changes})


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    """A run with gates on random weights, as fit.py leaves it, but without l0-removed; no test writes in
    it."""
    place = tmp_path_factory.mktemp("speed")
    (place / "text").mkdir()
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            lines = sentences(31, seed=len(split))
            (place / "text" / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    folder = RunFolder(place / "toy-l0")
    folder.path.mkdir()
    vocab = Vocab.train(sentences(200, 100), size=61, path=folder / "vocab.model")
    search = {"beam": 2, "length_penalty": 1.0, "max_ratio": 1.0, "max_extra": 4, "batch_tokens": 61}
    text = {"data": str(place / "text"), "src": "en", "tgt": "de", "seed": 7, "search": search, "gate": "l0"}
    folder.write_text("config.yaml", yaml.safe_dump(text))
    torch.manual_seed(3)
    model = Transformer(ModelConfig(**SMALL), len(vocab), len(vocab)).eval()
    save_model(folder / "base.pt", model)
    folder.add_system("base", folder / "base.pt", None)
    closed = HeadMap(dict(zip(find_sites(model), map(torch.tensor, CLOSED), strict=True)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    save_model(folder / "best.pt", model)
    folder.add_system("l0", folder / "best.pt", closed.map(lambda row: (~row).double()).to_json())
    return folder


@pytest.fixture
def torch_alone(monkeypatch):
    monkeypatch.setattr(speed, "ENGINES", {})


@pytest.fixture
def no_processes(monkeypatch):
    """Memory from a table instead of a process a system."""
    given: list[list[dict]] = []

    def grow(spec, work):
        given.append(work)
        return {
            "imports": 200 << 20,
            "peaks": [(300 + i) << 20 for i in range(len(work))],
        }

    monkeypatch.setattr(speed, "in_fresh_process", grow)
    return given


class Tick:
    """A clock that goes on by the given seconds between the two times that each batch is looked at."""

    def __init__(self, *seconds: float):
        self.times = iter([time for second in seconds for time in (0.0, second)])

    def __call__(self) -> float:
        return next(self.times)


class Parrot:
    """A system that answers every sentence with itself."""

    def __init__(self, vocab, tokens: int = 3):
        self.source_vocab, self.tokens = vocab, tokens

    def translate_n_best(self, lines, *, beam):
        return [[Translation(line, -1.0, -1.0, self.tokens - i) for i in range(beam)] for line in lines]


# ---------------------------------------------------------------- what is measured


def test_thirds_hold_every_sentence_that_is_not_empty_by_its_length():
    plan = Plan([1], [], [1], 1)
    parts = plan.sentences_by_length([5, 0, 1, 9, 3, 3, 0, 7])
    assert parts == {"short": [2, 4], "middle": [5, 0], "long": [7, 3]}
    with pytest.raises(ValueError, match="at least 3 test sentences that are not empty, got 2"):
        plan.sentences_by_length([4, 0, 4])


def test_every_setting_has_some_tens_of_sentences_in_whole_batches_spread_over_their_part():
    plan = Plan([1, 4, 16, 64], [], [1, 5], 5)
    lines = [f"sentence {i}" for i in range(300)]
    planned = report_cells(plan, lines, plan.sentences_by_length(range(1, 301)))
    assert len({(each.batch, each.beam, each.length) for each in planned}) == len(planned) == 24
    assert {each.batch: len(each.sentences) for each in planned} == {1: 16, 4: 32, 16: 32, 64: 64}
    assert all(len(batch) == each.batch for each in planned for batch in each.batches)
    spread = report_cells(Plan([1], [], [1], 1), lines, {"short": list(range(160)), "few": [7, 8]})
    assert spread[0].sentences == lines[0:160:10]
    assert spread[1].sentences == [lines[7]] * 8 + [lines[8]] * 8


def test_quick_is_one_length_two_batch_sizes_and_two_rounds_and_a_length_its_nearest_sentences():
    plan = Plan.from_config(config(quick=True, repeats=7))
    assert (plan.batch_sizes, plan.beams, plan.repeats) == ([1, 16], [1, 2], 2)
    assert list(plan.sentences_by_length(range(1, 301))) == ["middle"]
    parts = Plan.from_config(config(lengths=[200, 10])).sentences_by_length([0, *range(1, 301)])
    assert parts == {"10 pieces": list(range(1, 65)), "200 pieces": list(range(168, 232))}


# ---------------------------------------------------------------- numbers


def test_a_gain_is_taken_round_by_round_and_the_share_is_of_what_was_saved():
    found = speedup_columns([2.0, 4.0, 2.0], [1.5, 4.0, 1.0], 100, 50)
    assert found["speedup"]["values"] == pytest.approx([4 / 3, 1.0, 2.0])
    assert found["saved_share"] == 0.5
    assert found["share_of_ideal"]["values"] == pytest.approx([0.5, 0.0, 1.0])


def test_where_nothing_is_saved_there_is_no_share_of_it():
    assert speedup_columns([2.0], [1.0], 1000, 995)["share_of_ideal"] is None
    assert speedup_columns([2.0], [1.0], 100, 120)["saved_share"] == pytest.approx(-0.2)
    assert speedup_columns(None, [1.0], 0, 5) == {
        "speedup": None,
        "saved_share": None,
        "share_of_ideal": None,
    }


def given(speedups: dict[str, dict[tuple[int, int], tuple[float, float, float]]]) -> dict:
    """A report with these ratios (lowest, median, highest) for each system, beam and batch."""
    systems, rows = {}, []
    for name, cells in speedups.items():
        kind, _, engine = name.partition("-")
        against = None if kind == "dense" else "-".join(["dense", engine]).rstrip("-")
        words = f"{kind}, {engine or 'PyTorch'}"
        systems[name] = {
            "words": words,
            "against": against,
            "parameters": 1234,
            "file_bytes": 4 << 20,
            "memory": {"imports": 200 << 20},
        }
        for (beam, batch), (lowest, median, highest) in cells.items():
            ratio = {"median": median, "lowest": lowest, "highest": highest, "values": []}
            is_dense = kind == "dense"
            rows.append(
                {
                    "system": name,
                    "beam": beam,
                    "length": "short",
                    "batch": batch,
                    "sentences": 16,
                    "seconds": [1.0, 2.0 / median],
                }
                | {
                    "sentences_per_second": ratio,
                    "latency_ms": ratio,
                    "peak_memory": 300 << 20,
                    "same_translations": 1.0,
                }
                | {"speedup": None if is_dense else ratio, "saved_share": None if is_dense else 0.2}
                | {
                    "share_of_ideal": ratio if kind == "removed" else None,
                    "speedup_over_masked": ratio if name == "removed" else None,
                }
            )
    made_by = {
        "command": "python export.py",
        "commit": "abc",
        "date": "today",
        "device": "a CPU",
        "threads": 2,
        "versions": {"torch": "2"},
    }
    head = {
        "run": "toy",
        "searches": True,
        "corpus": "toy",
        "heads": {"total": 48, "closed": 13},
        "lengths": {"short": [2, 5, 333]},
        "left_out": {},
    }
    made = {**made_by, **head, "settings": {"repeats": 3}, "systems": systems, "rows": rows}
    return {**made, "findings": findings(made)}


SLOW = (0.9, 0.95, 0.99)
EVEN = (0.98, 1.01, 1.04)
FAST = (1.05, 1.10, 1.20)
CELLS = [(1, 1), (1, 16), (5, 1), (5, 16)]
REPORT = given(
    {
        "dense": dict.fromkeys(CELLS, EVEN),
        "masked": dict.fromkeys(CELLS, SLOW),
        "removed": dict(zip(CELLS, (EVEN, FAST, SLOW, FAST), strict=True)),
        "dense-ct2": dict.fromkeys(CELLS, EVEN),
        "removed-ct2": dict.fromkeys(CELLS, FAST),
    }
)


def test_the_findings_count_the_settings_in_which_pruning_helps():
    saved, torch_words, ct2_words, masked_words = findings(REPORT)
    assert "13 of 48 attention heads are removed" in saved
    assert "1.25 to 1.25 times as fast" in saved
    assert "in 2 of 4 settings and slower in 1; in the other 1 the" in torch_words
    assert "at 0.95 to 1.10 times (median 1.06)" in torch_words
    assert "in 4 of 4 settings and slower in 0;" in ct2_words
    assert "in 0 of 4 settings and slower in 4;" in masked_words
    nothing = given({"dense": {(1, 1): EVEN}, "masked": {(1, 1): EVEN}, "removed": {(1, 1): (1.0, 1.1, 1.2)}})
    assert "in 0 of 1 settings and slower in 0" in findings(nothing)[1], "a ratio that reaches 1"


def test_the_page_has_a_line_for_every_setting_and_system(tmp_path):
    text = page(REPORT, "speed.png")
    assert text.count("| removed, PyTorch |") == 1 + 2 + 4  # systems, speeds for each beam, every number
    line = "| removed, PyTorch | short | 5 | 16 | 1.1 (1.1 to 1.2) | 1.1 (1.1 to 1.2) | 300.0 | "
    assert line + "1.10 (1.05 to 1.20) | 20.0% | 1.25 | 1.10 (1.05 to 1.20) | 100.0% |" in text
    assert "| removed, PyTorch | 1,234 | 4.0 | 300.0 | 200.0 |" in text
    rows = [
        {**REPORT["rows"][0], "batch": 4, "sentences": 32, "seconds": s} for s in ([1.0, 2.0], [3.0, 2.0])
    ]
    assert pooled(rows, "dense", 1, 4)["values"] == [16.0, 16.0], "by time"
    speed.draw(REPORT, tmp_path / "speed")
    assert (tmp_path / "speed.png").stat().st_size > 1000


def system(name: str, model: Transformer) -> System:
    return System(name, name, {}, model, 1, 1)


@pytest.fixture
def models(make_model):
    dense, removed = make_model(), make_model()
    remove(removed, HeadMap({site: torch.tensor([True, True, False]) for site in find_sites(removed)}))
    return {"dense": dense, "masked": dense, "removed": removed}


def test_rows_hold_what_the_clock_and_the_counts_say(run, models, monkeypatch):
    vocab = open_source(run.path, "base").translator.source_vocab
    setting = ReportCell(2, "short", 2, ["a dog", "a cat", "the red bird .", "a"])
    timed = {
        name: TimedTranslation(Parrot(vocab, tokens), setting)
        for name, tokens in (("dense", 5), ("masked", 3), ("removed", 3))
    }
    for name, seconds in {
        "dense": (9, 9, 1.0, 3.0, 2.0, 2.0),
        "masked": (9, 9, 2, 2, 2, 2),
        "removed": (9, 9, 1, 1, 0.5, 0.5),
    }.items():
        monkeypatch.setattr(speed, "clock", Tick(*seconds))
        for _ in range(3):  # a warm-up and two rounds
            timed[name]()
    dense, masked, removed = cell_rows([system(name, model) for name, model in models.items()], timed)
    assert dense["seconds"] == [4.0, 4.0]
    assert dense["sentences_per_second"]["median"] == 1.0
    assert dense["latency_ms"] == {"median": 2000.0, "lowest": 1000.0, "highest": 3000.0}
    assert removed["sentences_per_second"]["values"] == [2.0, 4.0]
    assert removed["speedup"]["values"] == [2.0, 4.0]
    assert removed["speedup_over_masked"]["values"] == [2.0, 4.0]
    assert masked["share_of_ideal"] is dense["speedup"] is None
    sources = [1 + max(map(len, vocab.encode(batch))) for batch in setting.batches]
    counts = {
        name: sum(
            sum(decoding(models[name], source=source, steps=[steps] * 2, beam=2).values())
            for source in sources
        )
        for name, steps in (("dense", 5), ("removed", 3))
    }
    assert [dense["multiply_adds"], removed["multiply_adds"]] == list(counts.values())
    saved = 1 - counts["removed"] / counts["dense"]
    assert removed["saved_share"] == pytest.approx(saved)
    assert removed["share_of_ideal"]["values"] == pytest.approx([0.5 / saved, 0.75 / saved])
    assert (dense["target_tokens"], removed["target_tokens"], removed["sentences"]) == (20, 12, 4)
    assert dense["same_translations"] == 1.0


def test_systems_are_held_against_the_dense_model_on_their_own_engine(model):
    names = ("dense", "dense-ct2", "masked", "removed", "removed-onnx", "removed-ct2-int8")
    against = [system(name, model).against for name in names]
    assert against == [None, None, "dense", "dense", "dense-onnx", "dense-ct2-int8"]


def test_memory_is_measured_from_the_least_work_to_the_most(model, no_processes):
    planned = [
        ReportCell(beam, length, batch, sentences(batch))
        for beam in (1, 5)
        for length in ("short", "long")
        for batch in (1, 16)
    ]
    rows = [
        {"system": "dense", "beam": each.beam, "length": each.length, "batch": each.batch} for each in planned
    ]
    memory = add_memory(rows, system("dense", model), planned)
    assert [each["beam"] * len(each["lines"]) for each in no_processes[0]] == [1, 1, 5, 5, 16, 16, 80, 80]
    assert memory == 200 << 20
    assert {row["peak_memory"] >> 20 for row in rows if row["batch"] * row["beam"] == 80} == {306, 307}


def test_a_fresh_process_says_what_it_took(run):
    spec = {"run": str(run.path), "system": "l0", "threads": 1}
    found = in_fresh_process(
        spec, [{"lines": ["a dog"], "beam": 1}, {"lines": ["a dog sees a cat"] * 3, "beam": 2}]
    )
    order = [found["imports"], *found["peaks"]]
    assert len(found["peaks"]) == 2
    if None not in order:
        assert order == sorted(order)
    with pytest.raises(ValueError, match=r"the process that measures memory failed: .*no system 'none'"):
        in_fresh_process({**spec, "system": "none"}, [])


# ---------------------------------------------------------------- the systems


def test_the_three_models_of_a_run_are_opened_and_a_missing_removed_one_is_made(run, tmp_path, torch_alone):
    systems, left_out = prepare(run, tmp_path, (sentences(9), sentences(9, 1)), threads=1)
    assert [each.name for each in systems] == ["dense", "masked", "removed"]
    assert left_out == {}
    dense, masked, removed = systems
    assert removed.parameters < dense.parameters == masked.parameters
    assert removed.file_bytes < dense.file_bytes
    closed = {site.name: row.tolist() for site, row in (~heads_left(removed.model)).items()}
    assert list(closed.values()) == CLOSED
    opened = {each.name: open_system(each.spec) for each in systems}
    assert opened["removed"].translate(sentences(9)) == opened["masked"].translate(sentences(9))
    assert opened["dense"].translate(sentences(9)) != opened["masked"].translate(sentences(9))
    assert sorted(path.name for path in run.path.iterdir()) == [
        "base.pt",
        "best.pt",
        "config.yaml",
        "systems.json",
        "vocab.model",
    ]


def test_ctranslate2_runs_both_models_in_both_types(run, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(
        speed,
        "ENGINES",
        {name: about for name, about in speed.ENGINES.items() if about[0] == "ct2"},
    )
    systems, left_out = prepare(run, tmp_path, (sentences(9), sentences(9, 1)), threads=1)
    names = ["dense-ct2", "removed-ct2", "dense-ct2-int8", "removed-ct2-int8"]
    assert [each.name for each in systems[3:]] == names
    assert left_out == {}
    lines = sentences(9)
    plain = open_system(systems[2].spec).translate(lines, beam=2)
    assert open_system(systems[4].spec).translate(lines, beam=2) == plain
    assert all(
        each.file_bytes > 1000 and each.parameters == systems[2].parameters
        for each in systems
        if each.name.startswith("removed")
    )


def test_an_engine_that_is_not_installed_is_left_out_with_what_to_install(run, tmp_path, monkeypatch):
    def missing(packages):
        raise ValueError(f"this format needs {packages[0]}: python -m pip install {packages[0]}")

    monkeypatch.setattr(speed, "require_packages", missing)
    systems, left_out = prepare(run, tmp_path, (sentences(9), sentences(9, 1)), threads=1)
    assert len(systems) == 3
    assert list(left_out) == ["ONNX Runtime", "CTranslate2", "CTranslate2 int8"]
    assert "pip install ctranslate2" in left_out["CTranslate2"]


def test_an_engine_that_cannot_hold_the_model_is_left_out_with_its_reason(run, tmp_path, monkeypatch):
    """CTranslate2 has no SSRU decoder; torch.export takes any."""
    pytest.importorskip("ctranslate2")
    torch_program = {"program": ("torch", {}, "torch.export")}
    engines = {name: about for name, about in speed.ENGINES.items() if about[0] == "ct2"} | torch_program
    monkeypatch.setattr(speed, "ENGINES", engines)
    folder = RunFolder(tmp_path / "ssru")
    folder.path.mkdir()
    for name in ("config.yaml", "vocab.model"):
        (folder / name).write_bytes((run / name).read_bytes())
    pieces = len(Vocab.load(folder / "vocab.model"))
    model = Transformer(ModelConfig(**SMALL, decoder_mixer="ssru"), pieces, pieces).eval()
    open_heads = HeadMap({site: torch.tensor([1.0] + [0.0] * (site.heads - 1)) for site in find_sites(model)})
    for system, xi in (("base", None), ("l0", open_heads.to_json())):
        save_model(folder / f"{system}.pt", model)
        folder.add_system(system, folder / f"{system}.pt", xi)
    systems, left_out = prepare(folder, tmp_path / "scratch", (sentences(9), sentences(9, 1)), threads=1)
    reason = "CTranslate2 has no decoder with decoder_mixer 'ssru'; take --to torch, onnx or marian"
    assert left_out == {"CTranslate2": reason, "CTranslate2 int8": reason}
    assert [each.name for each in systems] == [
        "dense",
        "masked",
        "removed",
        "dense-program",
        "removed-program",
    ]
    assert [path.name for path in sorted((tmp_path / "scratch").iterdir())] == [
        "dense-torch",
        "removed-torch",
        "run",
    ]


def test_a_run_without_gates_has_nothing_to_compare(run, tmp_path):
    folder = RunFolder(tmp_path)
    folder.add_system("base", run / "base.pt", None)
    folder.write_text("config.yaml", (run / "config.yaml").read_text().replace("gate: l0", "gate: none"))
    with pytest.raises(ValueError, match=r"is a base, a run without gates;.*give a run of fit.py with gates"):
        prepare(folder, tmp_path / "scratch", ([], []), threads=1)


def test_a_run_whose_gates_or_base_are_missing_has_nothing_to_compare(run, tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_text("config.yaml", (run / "config.yaml").read_text())
    for there, missing in (("base", "l0"), ("l0", "base")):
        folder.write_json("systems.json", {there: {"weights": "best.pt", "xi": None}})
        with pytest.raises(
            ValueError,
            match=rf"has no system '{missing}' \(it has {there}\); .*give a run of fit.py with gates",
        ):
            prepare(folder, tmp_path / "scratch", ([], []), threads=1)


# ---------------------------------------------------------------- the whole


@pytest.mark.usefixtures("torch_alone", "no_processes")
def test_the_report_has_every_number_a_page_and_a_figure(run, tmp_path, capsys):
    out = report(config(source=str(run.path), out=str(tmp_path / "speed")))
    assert sorted(path.name for path in out.iterdir()) == [
        "report.json",
        "report.md",
        "speed.png",
        "speed.svg",
    ]
    found = json.loads((out / "report.json").read_text())
    assert {
        "command",
        "commit",
        "device",
        "threads",
        "versions",
        "date",
        "text_digest",
        "load_average_before",
    } <= found.keys()
    assert (found["heads"], found["seed"]) == ({"total": 10, "closed": 5}, 7)
    assert len(found["rows"]) == 3 * 2 * 3 * 2  # systems, beams, lengths, batch sizes
    for row in found["rows"]:
        assert (len(row["seconds"]), row["same_translations"]) == (2, 1.0)
        assert row["peak_memory"] > 0
    printed = capsys.readouterr().out
    assert "3 systems, 12 settings, 2 rounds and a warm-up" in printed
    assert re.search(r"^1/12  beam 1, .* left$", printed, re.MULTILINE)
    assert all(sentence in printed for sentence in found["findings"])
    assert "5 of 10 attention heads are removed" in (text := (out / "report.md").read_text())
    assert str(tmp_path) not in text + (out / "report.json").read_text()
    with pytest.raises(ValueError, match="holds a speed report already; --fresh measures anew"):
        report(config(source=str(run.path), out=str(out)))


@pytest.mark.usefixtures("torch_alone", "no_processes")
def test_the_report_is_quick_where_it_is_told_to(run, tmp_path, called):
    assert (
        called(export)(
            run.path,
            "--report",
            "speed",
            "--quick",
            "--set",
            "beams=1",
            "--threads",
            "1",
            "--out",
            tmp_path / "quick",
        )[0]
        == 0
    )
    found = json.loads((tmp_path / "quick/report.json").read_text())
    assert {(row["length"], row["batch"], row["beam"]) for row in found["rows"]} == {
        ("middle", 1, 1),
        ("middle", 16, 1),
    }
    assert "--report speed --quick" in found["command"]
