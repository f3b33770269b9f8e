"""export.py as its user meets it: the plain command, and what it refuses and how."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headgates.analysis.alignment import Baseline, alignment_heads, piece_links
from headgates.bridges.exported import open_exported, read_export
from headgates.commands import export
from headgates.configs.settings import SearchConfig
from headgates.data.toy import toy_pairs
from headgates.data.word_pieces import word_of_piece
from headgates.explain import aligning
from headgates.gates import HeadMap, attach, find_sites
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from tests.worlds.families import BY_NAME
from tests.worlds.runs import assert_one_line, well, write_run
from tests.worlds.translators import as_checkpoint

ROOT = Path(__file__).parents[1]
TEXT = {
    "en": ["the dog sleeps .", "dogs sleep", "the cat"] * 2,
    "de": ["der Hund schläft .", "Hunde", "x"] * 2,
}


@pytest.fixture
def run(tmp_path, make_translator) -> RunFolder:
    """A finished run of an untrained model, with gates of which half are closed, and its text."""
    (tmp_path / "text").mkdir()
    for part in ("train", "valid", "test"):
        for language, lines in TEXT.items():
            (tmp_path / f"text/{part}.{language}").write_text("\n".join(lines) + "\n")
    search = SearchConfig(beam=2, max_ratio=1.0, max_extra=3, batch_tokens=53)
    translator = make_translator(joint=True, search=search, encoder_layers=1, decoder_layers=1)
    closed = HeadMap({site: [0.0, 1.0] for site in find_sites(translator.model)})
    data = {"data": str(tmp_path / "text"), "src": "en", "tgt": "de"}
    return write_run(tmp_path / "runs/tiny-en-de-l0-s1", translator, closed, **data)


@pytest.fixture
def soon(monkeypatch):
    """The format onnx writes a checkpoint, which takes no time."""
    as_checkpoint(monkeypatch, "onnx")


@pytest.fixture
def export_here(called):
    """export_here(words...) -> (exit code, stdout, stderr)."""
    return called(export)


# ---------------------------------------------------------------- what it writes


def test_the_plain_command_writes_the_runs_own_model(run, export_here, soon):
    code, out, error = export_here(run.path, "--to", "onnx")
    assert (code, error) == (0, "")
    folder = run / "exported/l0-onnx"
    assert "tiny-en-de-l0-s1: l0 to onnx, which is checked on 6 sentences" in out
    assert "identical translations, greedy: 6 of 6\nidentical translations, beam 2: 6 of 6\n" in out
    assert re.search(
        rf"^{re.escape(str(folder))}: 0\.\d MB; \S+ translate\S* {re.escape(str(folder))} uses it$",
        out,
        re.MULTILINE,
    )
    about = read_export(folder)
    assert {
        "run": "tiny-en-de-l0-s1",
        "system": "l0",
        "format": "onnx",
        "seed": 1,
    }.items() <= about.items()
    assert {"command", "commit", "device", "versions", "date"} <= about.keys()
    assert about["architecture"]["heads"] == {
        "encoder.0.enc-self": 1,
        "decoder.0.dec-self": 1,
        "decoder.0.cross": 1,
    }
    assert open_exported(folder).translate(TEXT["en"]) == open_source(run.path).translator.translate(
        TEXT["en"]
    )
    before = (folder / "export.json").stat().st_mtime_ns
    again = well(export_here(run.path, "--to", "onnx"))
    assert f"{folder}: l0 is there already, as it is now; --fresh writes it again" in again
    assert again.splitlines()[1:] == out.splitlines()[1:]
    assert (folder / "export.json").stat().st_mtime_ns == before
    code, _, error = export_here(run.path, "--to", "onnx", "--sentences", "5")
    assert code == 1
    assert_one_line(error, "exists already; --fresh replaces it")
    well(export_here(run.path, "--to", "onnx", "--system", "base"))
    assert read_export(run / "exported/base-onnx")["architecture"]["heads"] == {}  # of those that lost some


def test_a_ctranslate2_export_gives_the_alignments_of_the_toy_language(tmp_path, export_here, monkeypatch):
    """By the head that analyze found; and where it has not looked, and nobody knows an alignment, by the
    same."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    monkeypatch.setattr(aligning, "TRAIN_PAIRS", 200)
    monkeypatch.setattr(aligning, "VALID_PAIRS", 100)
    example, run = ROOT / "examples/toy_run/toy-en-de-none-s1", tmp_path / "run"
    shutil.copytree(example, run, ignore=shutil.ignore_patterns("exported"))
    out = well(export_here(run, "--to", "ct2", "--sentences", "5", "--threads", "1"))
    assert "12 heads align words, decoder.1.cross.1 best, as analyze found\n" in out
    written = run / "exported/base-ct2/export.json"
    about = json.loads(written.read_text())
    written.write_text(json.dumps({**about, "aligning": []}))  # as `translate` makes it, which needs none
    well(export_here(run, "--to", "ct2", "--sentences", "5", "--threads", "1"))
    assert json.loads(written.read_text())["aligning"][0] == [1, 1]
    source = open_source(run)
    source.corpus = replace(source.corpus, name="other")
    monkeypatch.setattr(aligning, "analysed", lambda source: None)
    # the heads of layer 1 agree with gold alignments at .72 or more, those of layer 0 at .50 or less
    assert {layer for layer, _ in aligning.aligning_heads(source)[0][:8]} == {1}

    vocab = source.translator.source_vocab
    exported = ctranslate2.Translator(str(run / "exported/base-ct2"), intra_threads=1)
    right, total = 0, 0
    for pair, sentence, reference in zip(toy_pairs("test")[:60], *source.lines("test", 60), strict=True):
        pieces, expected = (vocab.pieces(vocab.encode([line])[0]) for line in (sentence, reference))
        (found,) = exported.translate_batch([pieces], beam_size=1, return_attention=True)
        if found.hypotheses[0] != expected:
            continue  # the alignment is of the reference
        texts = ((sentence, pair.words), (reference, pair.target_words))
        words = [word_of_piece(vocab, line, own) for line, own in texts]
        linked = {t: {s for s, other in piece_links(pair.alignment, *words) if other == t} for t in range(99)}
        for t, weights in enumerate(found.attention[0]):
            if linked[t]:
                total += 1
                right += weights[: len(pieces)].index(max(weights[: len(pieces)])) in linked[t]
    assert total > 100
    assert right / total > 0.8  # .86 on validation text; the best fixed offset has .44


def test_an_export_without_alignments_says_why_in_one_line(run, export_here):
    pytest.importorskip("ctranslate2")
    out = well(export_here(run.path, "--to", "ct2"))
    assert len(re.findall("^no head that aligns words was found: .* has no text", out, re.MULTILINE)) == 1
    assert "alignment_heads" not in json.loads((run / "exported/l0-ct2/config.json").read_text())


def test_heads_that_align_are_numbered_without_the_closed_ones():
    model = BY_NAME["T5"].model()
    sites = find_sites(model, ["cross"])
    attach(model, "mask", xi=HeadMap({site: [0.0, 1.0, 0.5] for site in sites}), kinds=["cross"])
    agreement = HeadMap({site: [0.9, 0.1, 0.3 + site.layer] for site in sites})
    left = aligning.without_closed(agreement, model)
    assert alignment_heads(left, Baseline(0, 0.2)) == [(1, 1), (0, 1)]


# ---------------------------------------------------------------- what it refuses


def test_neither_a_format_nor_a_report_is_nothing_to_do(run, export_here):
    code, _, error = export_here(run.path)
    assert code == 2
    assert "nothing to do: give --to onnx, ct2, hf, fairseq, marian, or --report speed" in error
    assert "--report writes no model" in export_here(run.path, "--to", "onnx", "--report", "speed")[2]
    for words, said in (
        (["--to", "ct2", "--beam", "3"], "--beam is for --report"),
        (["--report", "speed", "--out", "x"], "--out is for --to"),
        (["--report", "speed", "--fresh"], "--fresh is for --to"),
    ):
        code, _, error = export_here(run.path, *words)
        assert (code, said in error) == (2, True), error


@pytest.mark.parametrize("result", [{"system": "l0", "finished": False}, None])
def test_an_unfinished_run_says_how_to_finish_it(run, export_here, result):
    (run / "result.json").unlink()
    if result is not None:
        run.write_json("result.json", result)
    code, _, error = export_here(run.path, "--to", "onnx")
    assert code == 1
    assert_one_line(error, "is not finished; the command in its command.txt with --resume continues it")
