"""translate.py as its user meets it: files, pipes and terminals, ten thousand lines, what it refuses and how,
and every early end.

The model is untrained; what it says does not matter here."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgates.commands import translate
from headgates.configs.settings import SearchConfig
from headgates.gates import HeadMap, find_sites
from headgates.models.translator import Translator
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from tests.worlds.runs import assert_one_line, well, write_run
from tests.worlds.translators import SOURCES

ROOT = Path(__file__).parents[1]
SEARCH = SearchConfig(beam=2, max_ratio=1.0, max_extra=3, batch_tokens=101)


@pytest.fixture(scope="module")
def make_run(tmp_path_factory, make_translator):
    """make_run(model settings...) -> a finished run with the systems base and l0 (whose heads are half
    closed)."""

    def make(**settings) -> RunFolder:
        shape = {"encoder_layers": 1, "decoder_layers": 1, "joint": True, "search": SEARCH, **settings}
        translator = make_translator(**shape)
        closed = {site: [1.0, 0.0] for site in find_sites(translator.model)}
        return write_run(tmp_path_factory.mktemp("runs") / "toy-en-de-l0-s1", translator, HeadMap(closed))

    return make


@pytest.fixture(scope="module")
def run(make_run) -> Path:
    return make_run().path


@pytest.fixture
def translate_here(monkeypatch, capfdbinary):
    """translate_here(words..., text=bytes of standard input) -> (exit code, stdout, stderr), the last as
    text."""

    def run(*words: object, text: bytes | None = None) -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "argv", [str(ROOT / "translate.py"), *map(str, words), "--runtime", "torch"])
        if text is not None:
            read, write = os.pipe()
            os.write(write, text)
            os.close(write)
            monkeypatch.setattr(sys, "stdin", os.fdopen(read))
        try:
            code = translate.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, error = capfdbinary.readouterr()
        return code, out, error.decode()

    return run


def start(*words: object) -> subprocess.Popen:
    """translate.py in a process of its own, with pipes at both ends."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "translate.py"), *map(str, words), "--runtime", "torch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # tests started in the background inherit an ignored interrupt, which Python would then ignore too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def raw(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def expected(run: Path, lines: list[str], system: str | None = None, **search) -> bytes:
    return raw(open_source(run, system, device="cpu").translator.translate(lines, **search))


# ---------------------------------------------------------------- what comes out


@pytest.mark.parametrize("system", ["base", "l0", None])
def test_lines_are_translated_as_the_translator_does_in_order(run, translate_here, system):
    code, out, error = translate_here(run, *(["--system", system] if system else []), text=raw(SOURCES))
    assert code == 0, error
    assert out == expected(run, SOURCES, system)
    assert [bool(line) for line in out.decode().split("\n")[:-1]] == [bool(line.strip()) for line in SOURCES]
    assert error.startswith("6 lines, ")
    assert error.endswith(" lines/s\n")


def test_search_settings_of_the_command_line_go_before_those_of_the_run(run, translate_here):
    words = ["--beam", "3", "--length-penalty", "0.2", "--batch-tokens", "1"]
    out = well(translate_here(run, *words, "--device", "cpu", text=raw(SOURCES)))
    assert out == expected(run, SOURCES, beam=3, length_penalty=0.2)


def test_text_in_another_script_is_said_once(run, translate_here):
    code, out, error = translate_here(run, text=raw(["собака спит"] * 100))
    assert (code, out.count(b"\n")) == (0, 100)
    assert error.count("another language or script") == 1


def test_ten_thousand_lines_come_out_in_their_order(run, translate_here, tmp_path):
    words = " ".join(SOURCES).split()
    different = [" ".join(words[i % len(words) : i % len(words) + 1 + i % 7]) for i in range(101)]
    translations = expected(run, different, "l0", beam=1).splitlines()
    assert len(set(translations)) > 10
    numbers = [i * i % 101 for i in range(10_000)]
    (tmp_path / "in.txt").write_bytes(raw([different[i] for i in numbers]))
    flags = "--system", "l0", "--beam", "1", "--batch-tokens", "20000"
    files = "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"
    code, out, error = translate_here(run, *flags, *files)
    assert (code, out) == (0, b""), error
    assert (tmp_path / "out.txt").read_bytes().splitlines() == [translations[i] for i in numbers]
    assert error.splitlines()[-1].startswith("10,000 lines, ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_n_best_and_scores_are_columns_before_the_text(run, translate_here):
    out = well(translate_here(run, "--beam", "3", "--n-best", "2", "--scores", text=raw(SOURCES[:2])))
    best, _ = open_source(run, device="cpu").translator.translate_n_best(SOURCES[:2], beam=3)
    *rows, empty = [line.split("\t") for line in out.decode().splitlines()]
    assert empty == ["2", "0.0000", "0.0000", ""]
    assert [(row[0], row[3]) for row in rows] == [("1", one.text) for one in best[:2]]
    found = [float(number) for row in rows for number in row[1:3]]
    ours = [number for one in best[:2] for number in (one.score, one.log_prob)]
    assert found == pytest.approx(ours, abs=1e-3)


# ---------------------------------------------------------------- what is wrong with the text


def test_broken_bytes_leave_no_output_file(run, translate_here, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"the dog\n\xff\n")
    (tmp_path / "out.txt").write_text("old")
    code, _, error = translate_here(run, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    assert code == 1
    assert_one_line(error, f"{tmp_path / 'in.txt'}, line 2")
    assert (tmp_path / "out.txt").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_a_line_of_broken_bytes_is_left_empty_where_that_is_asked_for(run, translate_here):
    code, out, error = translate_here(run, "--not-utf8", "empty", "--quiet", text=b"the dog\n\xff\n")
    assert (code, out) == (0, expected(run, ["the dog", ""]))
    assert error == "standard input, line 2: byte 1 (0xff) is not UTF-8; its translation is left empty\n"


def test_a_line_longer_than_the_models_positions_is_named_or_left_empty(make_run, translate_here):
    run = make_run(positions="learned", max_positions=11).path
    text = raw(["the dog", "the cat " * 7, "the cat"])
    code, out, error = translate_here(run, text=text)
    assert (code, out) == (1, expected(run, ["the dog"]))
    assert_one_line(
        error, "line 2 has", "more than the 10 that the model has positions for", "--too-long empty"
    )
    code, out, error = translate_here(run, "--too-long", "empty", "--quiet", text=text)
    assert (code, out) == (0, expected(run, ["the dog", "", "the cat"]))
    assert error.splitlines()[0].startswith("standard input, line 2 has")


# ---------------------------------------------------------------- what is wrong with the command


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--n-best", "3"], ["at most the beam width, 2", "--beam 3"]),  # 2 is the run's own
        (["--device", "gpu"], ["--device gpu", "take cpu"]),
        (["--input", "nowhere.txt"], ["--input nowhere.txt", "No such file"]),
        (["--output", "nowhere/out.txt"], ["cannot write", "nowhere/out.txt", "No such file"]),
    ],
)
def test_what_is_not_there_is_one_line(run, translate_here, words, parts):
    code, out, error = translate_here(run, *words, text=b"the dog\n")
    assert (code, out) == (1, b"")
    assert_one_line(error, *parts)


def test_too_little_memory_is_one_line_and_any_other_fault_is_not_hidden(run, translate_here, monkeypatch):
    def fail(self, lines, **_):
        raise RuntimeError(lines[0])

    monkeypatch.setattr(Translator, "translate_n_best", fail)
    code, _, error = translate_here(run, text=b"CUDA out of memory. Tried to allocate\n")
    assert code == 1
    assert_one_line(error, "out of memory", "--batch-tokens")
    with pytest.raises(RuntimeError, match="something else"):
        translate_here(run, text=b"something else\n")


def test_closed_ends_are_one_line(run, translate_here, monkeypatch):
    for name, flag, text in (("stdout", "--output", b""), ("stdin", "--input", None)):
        monkeypatch.setattr(sys, name, None)
        code, _, error = translate_here(run, text=text)
        assert code == 1
        assert_one_line(error, "is closed", flag)


# ---------------------------------------------------------------- pipes, terminals, interrupts


def test_the_reader_of_a_pipe_may_leave_early(run, tmp_path):
    text = tmp_path / "in.txt"
    text.write_bytes(raw(["the dog", "the cat"] * 20_000))  # its translations are more than a pipe holds
    process = start(run, "--beam", "1", "--input", str(text))
    try:
        assert process.stdout.readline() == expected(run, ["the dog"], beam=1)
        process.stdout.close()
        process.stdin.close()
        assert (process.wait(timeout=300), process.stderr.read()) == (141, b"")
    finally:
        process.kill()


def test_a_line_is_translated_while_its_pipe_is_open_and_an_interrupt_is_one_line(run):
    process = start(run)
    try:
        process.stdin.write(raw(["the dog"]))
        process.stdin.flush()
        assert process.stdout.readline() == expected(run, ["the dog"])
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, b"")
    assert error.startswith(b"translate.py: interrupted; the lines written so far are whole")
    assert error.count(b"\n") == 1


def test_a_kill_leaves_no_output_file(run, translate_here, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "translate_n_best", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    code, _, error = translate_here(run, "--output", tmp_path / "out.txt", text=b"the dog\n")
    assert code == 143
    assert error.startswith("translate.py: interrupted; ")
    assert error.endswith("an --output file is not made\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line(run, translate_here, monkeypatch):
    full = open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    code, _, error = translate_here(run, text=b"the dog\n")
    assert code == 1
    assert_one_line(error, "No space left")
    full.close()  # nothing is left to write, or this raises


def test_a_person_at_a_terminal_gets_each_line_translated_as_it_comes(run, translate_here, monkeypatch):
    ours, theirs = os.openpty()
    os.write(ours, b"the dog\nthe cat\n\x04")
    monkeypatch.setattr(sys, "stdin", os.fdopen(theirs))
    windows = []
    plain = Translator.translate_n_best
    monkeypatch.setattr(
        Translator,
        "translate_n_best",
        lambda self, lines, **k: windows.append(list(lines)) or plain(self, lines, **k),
    )
    code, out, error = translate_here(run)
    assert (code, out) == (0, expected(run, ["the dog", "the cat"]))
    assert error == "type a line for its translation; Ctrl-D ends\n"
    os.close(ours)
