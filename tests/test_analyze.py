"""analyze.py as its user meets it: a tiny toy run, all that lies in its folder afterwards, the second call,
and what is refused and how."""

import json
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import spearmanr

from headgates.analysis import causal_gating
from headgates.commands import analyze, fit
from headgates.data.text import DataError
from headgates.data.toy import toy_pairs
from headgates.data.vocab import Vocab
from headgates.explain.analysed_model import AnalysedModel
from headgates.gates import HeadMap, HeadSite, Subnet, find_sites
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from headgates.records.table import read_table, write_table
from tests.worlds.runs import assert_one_line, well
from tests.worlds.tiny_language import conllu_of

ROOT = Path(__file__).parents[1]
FEW = ["--sentences", "29"]
HEADS = 6
PARTS = ["confidence", "lrp", "positions", "syntax", "rare", "alignment"]


@pytest.fixture
def analyze_here(called):
    """analyze_here(words...) -> (exit code, stdout, stderr)."""
    return called(analyze)


@pytest.fixture
def runs(trained, tmp_path) -> Path:
    """A copy of the trained runs that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture
def base(runs) -> RunFolder:
    return RunFolder.open(runs / "toy-en-de-none-s1")


@pytest.fixture
def gated(runs) -> RunFolder:
    return RunFolder.open(next(runs.glob("toy-en-de-l0-*")))


def page_data(run: RunFolder) -> dict:
    text = (run / "report.html").read_text(encoding="utf-8")
    return json.loads(text.split('<script id="data" type="application/json">')[1].split("</script>")[0])


# ---------------------------------------------------------------- what lies there afterwards


def test_the_plain_command_makes_maps_tables_cards_and_figures_and_the_second_call_reads_them(
    base, gated, analyze_here
):
    out = well(analyze_here(base.path, "--siblings", *FEW))
    place = base / "analysis/base"
    for name in PARTS:
        about = json.loads((place / f"{name}.json").read_text())
        assert about["cache_key"]["sentences"] == 29
        for head_map in about["head_maps"].values():
            assert HeadMap.from_json(head_map).heads_total in (2, HEADS)
    shares = base.read_json("analysis/base/lrp.json")["head_maps"]["share"]
    assert HeadMap.from_json(shares).sum() == pytest.approx(3)  # three layers
    assert len(read_table(base, "analysis/base/syntax.csv")) == 4 * 2 * 2  # labels, directions, heads
    survival = read_table(base, "analysis/base/survival.csv")
    assert {row["heads_open"] for row in survival if row["kind"] == "all" and row["run"] == "base"} == {HEADS}
    best = read_table(base, "analysis/base/nearest.csv")
    assert [row["family"] for row in best] == ["positional", "syntactic", "rare words", "aligned"]
    assert f"report: {base / 'report.html'}" in out
    assert base.path.name in (base / "report.html").read_text()
    assert {path.name for path in place.glob("*.svg")} == {"heads.svg", "survival.svg", "retained.svg"}

    text = (place / "cards.json").read_text()
    cards = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (cards["run"], cards["base"], cards["system"]) == (base.path.name, base.path.name, "base")
    assert len(cards["heads"]) == HEADS
    history = np.load(gated / "gates_history.npz")
    first = cards["heads"][0]
    assert (first["site"], first["head"]) == ("encoder.0.enc-self", 0)
    path = first["gate_path"][gated.path.name]
    assert path["steps"] == history["steps"].tolist()
    assert path["log_alpha"] == pytest.approx(history["log_alpha"][:, 0].tolist(), abs=1e-3)
    learned = cards["states"][0]  # learned gates come first
    left = gated.row_of("pruned").heads_by_site.items()
    assert (learned["run"], learned["lambda"]) == (gated.path.name, 0.01)
    assert learned["open"] == {site: [head in heads for head in range(2)] for site, heads in left}
    assert len(cards["examples"]) == 3
    for example in cards["examples"]:
        source, target = len(example["source"]), len(example["target"])
        assert len(example["produced"]) == target
        shapes = {site: np.array(weights).shape for site, weights in example["weights"].items()}
        cross, own = (2, target, source), (2, target, target)
        assert shapes == {
            "encoder.0.enc-self": (2, source, source),
            "decoder.0.dec-self": own,
            "decoder.0.cross": cross,
        }
        assert np.array(example["weights"]["decoder.0.cross"]).sum(2) == pytest.approx(1, abs=0.02)  # rounded

    before = {path: path.stat().st_mtime_ns for path in place.glob("*.json") if path.name != "cards.json"}
    out = well(analyze_here(gated.path, *FEW))  # a run stands for its base
    assert [f"{name}: there already, same settings" in out for name in PARTS] == [True] * len(PARTS)
    assert "one pass" not in out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # other settings: done anew, those alone
    out = well(analyze_here(base.path, *FEW, "--what", "confidence,rare", "--set", "rare_rank=20"))
    assert "confidence: there already" in out
    assert "rare: one pass over 29 pairs of valid" in out


def test_a_system_of_the_run_itself_is_analysed_in_its_own_folder_and_kind_by_kind(
    base, gated, analyze_here, monkeypatch
):
    monkeypatch.setattr("headgates.models.progress.LINE_SECONDS", 0.0)
    words = "--system pruned --kinds cross --what confidence,alignment,lrp --examples 1 --sentences 290"
    out = well(analyze_here(gated.path, *words.split()))
    assert re.search(r"^lrp: \d+ of 290, at most about \d+ s left$", out, flags=re.MULTILINE)
    assert not (base / "analysis").exists()
    assert re.search(r"^cross +\d of \d heads without a role", out, flags=re.MULTILINE)
    cards = gated.read_json("analysis/pruned-cross/cards.json")
    left = len(gated.row_of("pruned").heads_by_site["decoder.0.cross"])
    assert [head["site"] for head in cards["heads"]] == ["decoder.0.cross"] * left
    assert [head["importance"] for head in cards["heads"]] == [None] * left  # the base's is of another model
    assert cards["survival"] == []
    assert "agreement" in gated.read_json("analysis/pruned-cross/alignment.json")["head_maps"]


def test_ablations_of_the_base_are_tables_figures_and_a_part_of_its_page(base, gated, analyze_here):
    words = ["--ablate", "one", "--kinds", "cross", "--test-sentences", "7"]
    out = well(analyze_here(gated.path, *words, "--also", "toy"))
    rows = read_table(base, "ablation/one-cross.csv")
    assert [(row["site"], row["head"]) for row in rows] == [("decoder.0.cross", 0), ("decoder.0.cross", 1)]
    assert (base / "ablation/one-cross.svg").is_file()
    assert len(read_table(base, "ablation/transfer-toy-cross.csv")) == 2
    assert f"report: {base / 'report.html'}" in out
    well(analyze_here(base.path, *words[2:], "--ablate", "all-but-one"))
    (row,) = read_table(base, "ablation/all-but-one-cross.csv")
    assert row["site"] == "decoder.0.cross"


def test_sentences_of_a_file_are_looked_at_without_translations(base, analyze_here, monkeypatch, tmp_path):
    trees = tmp_path / "news.2014.conllu"
    trees.write_text("".join(conllu_of(pair) for pair in toy_pairs("test")[:23]))
    out = well(analyze_here(base.path, "--text", trees, "--parses", f"conllu:{trees}"))
    assert "left out: lrp starts at the words of translations" in out
    rows = base.read_json("analysis/base-news.2014/syntax.json")
    known = {"split": "text", "sentences": 23, "kinds": ["enc-self"], "parses": "conllu:news.2014.conllu"}
    assert known.items() <= rows["cache_key"].items()
    gold = read_table(base, "analysis/base-news.2014/syntax.csv")
    well(analyze_here(base.path, "--text", trees, "--parses", "gold", "--what", "syntax", "--name", "gold"))
    assert read_table(base, "analysis/gold/syntax.csv") == gold  # the trees of the file are the toy's own
    characters, strange = Vocab.characters, toy_pairs("test")[7].source

    def of_known(vocab: Vocab, text: str) -> list[list[int]]:
        if text == strange:
            raise DataError("pieces of another text")
        return characters(vocab, text)

    monkeypatch.setattr(Vocab, "characters", of_known)
    out = well(
        analyze_here(base.path, "--text", trees, "--parses", "gold", "--what", "syntax", "--name", "less")
    )
    assert "syntax: 1 of 23 sentences left out: pieces of another text" in out
    counted = base.read_json("analysis/less/syntax.json")["facts"]["left_out"]
    assert counted["sentences without a tree that fits"] == 1
    cards = base.read_json("analysis/base-news.2014/cards.json")
    assert {head["kind"] for head in cards["heads"]} == {"enc-self"}
    _, _, error = analyze_here(base.path, "--text", trees, "--what", "lrp")
    assert_one_line(error, "--text has none")


def shown_pieces(pieces: list[str]) -> str:
    return "".join(pieces[:-1]).replace("▁", " ").strip()


def test_the_page_draws_attention_on_sentences_of_the_reader_and_no_call_takes_from_a_page_what_it_has(
    base, analyze_here, monkeypatch, tmp_path
):
    monkeypatch.setattr("headgates.analysis.roles.THRESHOLD", 0.0)  # every head is positional
    lines, sentences = tmp_path / "mine.en", ["the old dog sees a cat .", "the dog sleeps ."]
    lines.write_text("\n\n".join(sentences))
    well(analyze_here(base.path, "--siblings", *FEW))
    before = page_data(base)
    tables = {name: read_table(base, f"analysis/base/{name}.csv") for name in ("roles", "nearest")}
    assert len(tables["roles"]) >= HEADS
    well(analyze_here(base.path, "--what", "sentences", "--contrast", "toy:case", *FEW))
    page = page_data(base)
    files = {path.name: path.read_bytes() for path in (base / "analysis/base").glob("*.json")}
    for words in (
        ["--what", "confidence", "--examples-from", lines],
        ["--what", "lrp", "--kinds", "cross"],
        ["--what", "lrp,confidence,sentences", "--contrast", "toy:case", "--kinds", "cross"],
    ):
        well(analyze_here(base.path, *words, *FEW))
        for name, rows in tables.items():
            assert read_table(base, f"analysis/base/{name}.csv") == rows, (words, name)
        for name in files.keys() - {"cards.json"}:
            assert (base / "analysis/base" / name).read_bytes() == files[name], (words, name)
        now = page_data(base)
        for name in ("states", "systems", "survival", "tests", "correlations"):
            assert now[name] == before[name], (words, name)
        for name in ("sentences", "contrasts"):
            assert now[name] == page[name], (words, name)
        for head, old in zip(now["heads"], before["heads"], strict=True):
            assert {**head, "asked": set(head["asked"])} == {**old, "asked": set(old["asked"])}
        own, theirs = now["examples"][:2], now["examples"][2:]
        assert [shown_pieces(each["source"]) for each in own] == sentences
        assert theirs == before["examples"]
        produced = [shown_pieces(each["produced"]) for each in own]
        assert produced == open_source(base.path).translator.translate(sentences)
        for each in own:
            shape = (2, len(each["produced"]), len(each["source"]))
            assert np.array(each["weights"]["decoder.0.cross"]).shape == shape
    # of some kinds, in a folder of its own
    assert base.read_json("analysis/base-cross/confidence.json")["cache_key"]["kinds"] == ["cross"]
    # what is counted stays what it was
    assert base.read_json("analysis/base/confidence.json")["cache_key"]["split"] == "valid"
    lines.write_text("a cat .\n" * 51)
    code, _, error = analyze_here(base.path, "--what", "confidence", "--examples-from", lines)
    assert code == 1
    assert_one_line(error, "expected at most 50 sentences, got 51")


def test_heads_of_which_no_role_was_looked_for_are_not_said_to_be_without_one(base, analyze_here):
    out = well(analyze_here(base.path, "--what", "confidence", *FEW))
    assert len(re.findall(r"^(?:enc-self|dec-self|cross) +no role was looked for", out, re.MULTILINE)) == 3
    assert "without a role" not in out


def test_tables_of_what_was_not_looked_for_again_stay(base, analyze_here):
    folder, names = base / "analysis/base", ("roles", "nearest", "survival", "survival-test")
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.csv").write_text("site,head\nencoder.0.enc-self,1\n")
    well(analyze_here(base.path, "--what", "confidence", *FEW))
    for name in names:
        assert (folder / f"{name}.csv").read_text().endswith("encoder.0.enc-self,1\n")


def test_heads_that_have_moved_up_are_known_by_what_they_were_called_before(make_model):
    model = make_model()
    closed = HeadMap({site: torch.arange(site.heads) == 0 for site in find_sites(model, ["cross"])})
    Subnet.of(model).without(closed, {"decoder": [0]}).remove(model)
    before = AnalysedModel.before.func(SimpleNamespace(predictor=SimpleNamespace(model=model)))
    heads = {site.kind: site.heads for site in find_sites(model) if site.stack == "decoder"}
    assert before == {
        **{("decoder.0.dec-self", head): f"decoder.1.dec-self.{head}" for head in range(heads["dec-self"])},
        **{("decoder.0.cross", head): f"decoder.1.cross.{head + 1}" for head in range(heads["cross"])},
    }


# ---------------------------------------------------------------- what is refused


def test_runs_of_two_bases_unfinished_runs_and_missing_runs_are_one_line_each(
    base, gated, runs, analyze_here
):
    other = Path(shutil.copytree(base.path, runs / "other"))
    settings = yaml.safe_load((other / "config.yaml").read_text())
    (other / "config.yaml").write_text(yaml.safe_dump({**settings, "run_hash": "0123456789ab"}))
    code, _, error = analyze_here(gated.path, other)
    assert code == 1
    assert_one_line(error, "the runs are on different bases", str(base.path), str(other))
    code, _, error = analyze_here(runs / "toy-en-de-non-s1")
    assert_one_line(error, "no run at", f"did you mean '{base.path}'")
    result = gated.result()
    gated.write_json("result.json", {**result, "finished": False})
    code, _, error = analyze_here(gated.path)
    assert_one_line(error, str(gated.path), "is not finished")
    rows = [{**row, "subnet": {}} for row in result["rows"]]
    gated.write_json("result.json", {**result, "rows": rows})
    few = ("--what", "confidence", "--examples", "0", *FEW)
    out = well(analyze_here(base.path, "--siblings", *few))
    assert "left out: " in out, "a broken sibling does not stop the others"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--what", "syntax", "--set", "labels=nsubjj"],
            ["no word of the parses has the label 'nsubjj'", "did you mean"],
        ),
        (["--what", "rare", "--kinds", "cross"], ["rare looks at enc-self attention", "add enc-self"]),
        (["--parses", "trees.conllu"], ["cannot get parses from 'trees.conllu'"]),
        (["--system", "l1"], ["has no system 'l1'"]),
    ],
)
def test_what_does_not_fit_the_run_is_one_line(base, analyze_here, words, expected):
    code, _, error = analyze_here(base.path, *words, *FEW)
    assert code == 1
    assert_one_line(error, *expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--what", "rare", "--parses", "gold"], "parses is for --what syntax: add it"),
        (["run", "--text", "lines.txt", "--kinds", "cross"], "--text has no translations"),
        (["run", "--name", "../up"], "expected a plain name"),
        (["one", "two", "--ablate", "one"], "expected one run, got 2"),
        (["run", "--ablate", "one", "--causes"], "leave --causes out"),
        (["run", "--also", "toy"], "give --ablate one too"),
        (["run", "--ablate", "one", "--sentences", "5"], "give --test-sentences"),
        (["run", "--ablate", "one", "--examples-from", "x"], "leave --examples-from out"),
        (["run", "--beam", "3"], "--beam is for --ablate"),
        (["run", "--set", "pair_heads=3"], "pair_heads is for --causes: add it"),
    ],
)
def test_flags_that_cannot_go_together_are_refused_before_anything_is_loaded(analyze_here, words, expected):
    code, _, error = analyze_here(*words)
    assert code == 2
    assert expected in error


# ---------------------------------------------------------------- the page of a run


def test_fit_ends_with_a_look_at_the_heads_that_analyze_does_not_repeat(base, gated, called, analyze_here):
    (gated / "report.html").unlink()
    tiny = ["--config", ROOT / "configs/toy_tiny.yaml", "--precision", gated.result()["precision"]]
    out = well(called(fit)(*tiny, "--runs", base.path.parent, "--set", "look_sentences=29"))
    assert re.search(r"^confidence, .* of each head: from 29 pairs of valid, \d+ s$", out, re.MULTILINE)
    data = page_data(gated)
    assert data["unlearned"]  # the tiny model: no finding is a title
    known = ("confidence", "lrp_share", "importance", "loss", "offsets")
    assert all(head[name] not in (None, []) for head in data["heads"] for name in known)
    out = well(analyze_here(base.path, *FEW))
    assert [f"{name}: there already" in out for name in PARTS] == [True] * len(PARTS)


def test_all_pairs_are_asked_of_every_score_where_causes_reads_all(base, analyze_here, monkeypatch):
    asked = []

    def request(source, *, sentences, **_):
        asked.append(sentences)
        raise ValueError("seen")

    monkeypatch.setattr("headgates.explain.causes.ScoreRequest", request)
    analyze_here(base.path, "--what", "confidence", "--causes", "--set", "causes_sentences=0", *FEW)
    source = open_source(base.path)
    assert asked == [source.train_sentences or len(source.corpus.train)]


def test_causes_compare_every_score_with_closing_each_head_and_stay_on_the_page(
    base, gated, analyze_here, monkeypatch
):
    monkeypatch.setattr(causal_gating, "causal_gates", partial(causal_gating.causal_gates, updates=7))
    sites = ["encoder.0.enc-self", "decoder.0.dec-self", "decoder.0.cross"]
    numbers = {"p_value": 0.25, "p_sacrebleu": 0.125, "p_value_holm": 1.0}
    heads = [HeadSite.parse(site, 2).row(head) for site in sites for head in range(2)]
    falls = [{**head, **numbers, "bleu_difference": -1.0 * number} for number, head in enumerate(heads)]
    write_table(base, "ablation/one.csv", falls)
    words = [
        base.path,
        "--what",
        "confidence",
        "--causes",
        "--set",
        "causes_sentences=17",
        "pair_heads=4",
        *FEW,
    ]
    out = well(analyze_here(*words))
    card = {row["approximation"]: row for row in read_table(base, "analysis/base/causes.csv")}
    (exact_row, *_) = card.values()
    assert (exact_row["spearman"], exact_row["sign"], exact_row["top_quarter"]) == (1, 1, 1)
    folder = base / "scores"
    exact, found = (HeadMap.load(folder / f"{name}-sampled17.json").flat() for name in ("loss", "integrated"))
    row = card["integrated, 5 points"]
    assert row["spearman"] == pytest.approx(spearmanr(exact, found).statistic)
    assert row["sign"] == pytest.approx(float(((exact > 0) == (found > 0)).double().mean()))
    assert row["spearman_bleu"] == pytest.approx(spearmanr(range(HEADS), found).statistic)
    assert card["importance, |.|"]["sign"] is None
    assert {"gradient", "integrated, 20 points", "fisher", "obs", "lrp", "confidence"} < card.keys()
    pairs = read_table(base, "analysis/base/interactions.csv")
    dearest = exact.argsort(descending=True)[:4].tolist()  # though some are closed in the run beside it
    names = [f"{head['site']}.{head['head']}" for head in heads]
    assert len(pairs) == 6
    assert {row[each] for row in pairs for each in ("head", "other")} == {names[i] for i in dearest}
    for row in pairs:
        assert row["interaction"] == pytest.approx(row["both"] - row["head_alone"] - row["other_alone"])
    gates = read_table(base, "analysis/base/causal-gates.csv")
    assert [row["loss"] for row in gates] == pytest.approx(exact.tolist())
    for name in ("facilitation", "irrelevance"):
        sign = 1 if name == "facilitation" else -1
        rho = spearmanr(exact, [sign * row[name] for row in gates]).statistic
        label = name if sign == 1 else f"{name}, highest first"
        assert card[label]["spearman"] == pytest.approx(rho)
    labels = {row["label"]: row for row in read_table(base, "analysis/base/causal-labels.csv")}
    assert sum(row["by_the_mean"] for row in labels.values()) == HEADS
    kept = sum(row["seeds_alike"] == 5 for row in gates)
    assert kept == sum(row["in_every_seed"] for row in labels.values())
    for label, row in labels.items():
        own = [each["loss"] for each in gates if each["label"] == label]
        assert row["by_the_mean"] == len(own)
        assert row["singly"] == pytest.approx(sum(own))
        always = [each["loss"] for each in gates if (each["label"], each["seeds_alike"]) == (label, 5)]
        assert row["singly_every"] == pytest.approx(sum(always))
        order = [row[name] for name in ("in_every_seed", "fewest", "in_one_seed", "most", "in_any_seed")]
        assert order == sorted(order)
    assert f"{kept} of {HEADS} heads have the same label in every seed" in out
    assert (base / "analysis/base/causes.png").is_file()
    shown = page_data(base)["causes"]
    assert shown["gating"]["heads"] == gates
    assert len(shown["heads"]) == HEADS
    third = page_data(base)["heads"][2]["ablation"]
    assert third == {"difference": -2.0, "p_value": 0.25, "p_value_holm": 1.0}
    assert "causes: there already" in analyze_here(*words)[1]
    # as it is named where --causes reads its own number of pairs: a file of several scores
    shutil.copy(folder / "facilitation-sampled17.json", folder / "facilitation-sampled200.json")
    well(analyze_here(base.path, "--what", "confidence", *FEW))
    assert page_data(base)["causes"] == shown
    means = HeadMap.from_json(base.read_json("scores/facilitation-sampled200.json")["parts"]["facilitation"])
    on_cards = [head["scores"]["facilitation"] for head in page_data(base)["heads"]]
    assert on_cards == pytest.approx(means.flat().tolist())


def test_causes_of_another_text_are_refused(base, analyze_here, tmp_path):
    lines = tmp_path / "lines.en"
    lines.write_text("the dog sees a cat .\n")
    code, _, error = analyze_here(base.path, "--causes", "--text", lines)
    assert code == 1
    assert_one_line(error, "--causes reads the base", "--text")


def test_a_page_that_cannot_be_made_is_said_and_ends_nothing(base, analyze_here):
    base.write_text("analysis/base/cards.json", "{")
    out = well(analyze_here(base.path, "--ablate", "one", "--kinds", "cross", "--test-sentences", "7"))
    assert "no report page: " in out
    assert "--fresh" in out
