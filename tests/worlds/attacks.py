"""Files that attack their reader: one list, each with what the reader must say. tests/test_attacks.py tries
them as they are, benchmarks/fuzz.py damages them at random.

An attack fills a folder `inside` with what somebody else sent, beside a folder `outside` that is the user's,
and gives what reads it."""
# mypy: ignore-errors

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from headgates.bridges.foreign import ForeignModel
from headgates.configs.registry import imported
from headgates.configs.source import ForeignOptions
from headgates.models.checkpoint import load_model
from headgates.records.folder import RunFolder, base_of
from headgates.records.foreign_run import foreign_run
from headgates.records.foreign_source import SOURCES
from headgates.records.source import open_source
from tests.worlds.marian_models import write_marian

EXAMPLES = Path(__file__).parents[2] / "examples/toy_run"
BASE, GATED = "toy-en-de-none-s1", "toy-en-de-l0-0.015-s1"
MEMORY, SECONDS = 3 * 2**30, 10  # bytes of address space beside what is there, and seconds of a case
RUNS = {"os.system", "os.exec", "os.posix_spawn", "os.forkpty", "subprocess.Popen"}
ASKED = {"git", "nvidia-smi", "lscpu", "uname", "ldconfig", "gcc", "fc-list"}  # about the machine
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
Action = Callable[[], object]
Attack = Callable[[Path, Path], Action]  # (inside, outside) -> what reads it
Attacks = dict[str, tuple[Attack, str]]  # what they do -> the attack, and what its reader must say


# ---------------------------------------------------------------- trying one


def tried(action: Action, inside: Path, outside: Path, *, seconds: float = SECONDS) -> tuple[str, str]:
    """What becomes of a case, in a process of its own with limits of time and memory, and its words: fine,
    one clear error, traceback, hang, crash, wrote outside, read outside, or executed code."""
    report, before = inside.parent / "report.json", contents(outside)
    child = os.fork()
    if child == 0:
        try:
            report.write_text(json.dumps(alone(action, inside, outside, report, seconds)), encoding="utf-8")
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    if (inside.parent / "marker").exists():
        return "executed code", "the marker was made"
    if contents(outside) != before:
        return "wrote outside", "the folder beside it has changed"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM):
        return "hang", f"longer than {seconds:g} s"
    if not report.is_file():
        return "crash", f"wait status {status}"
    outcome, words = json.loads(report.read_text(encoding="utf-8"))
    return outcome, words


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def alone(action: Action, inside: Path, outside: Path, report: Path, seconds: float) -> tuple[str, str]:
    """The outcome of a case in this process, which is changed for it."""
    work = inside.parent / "work"
    work.mkdir(exist_ok=True)
    sys.dont_write_bytecode = True
    os.environ |= {"TMPDIR": str(work), "HOME": str(work), "XDG_CACHE_HOME": str(work)}
    tempfile.tempdir = str(work)
    os.chdir(work)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (used + int(seconds) + 1, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)  # what waits for something that does not come
    seen: list[tuple[str, str]] = []
    sys.addaudithook(watch(seen, inside.parent, outside, report))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        outcome, words = judged(action, said)
    return seen[0] if seen else (outcome, words)


def judged(action: Action, said: io.StringIO) -> tuple[str, str]:
    try:
        code = action()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except (ValueError, OSError) as error:
        clear = not isinstance(error, UnicodeError) and str(error) and "\n" not in str(error).strip()
        if clear and len(str(error)) < 2000:
            return "one clear error", str(error)
        return "traceback", traceback.format_exc()[-1500:]
    except BaseException:
        return "traceback", traceback.format_exc()[-1500:]
    lines = [line for line in said.getvalue().splitlines() if "error:" in line]
    if not isinstance(code, int) or not code:
        return "fine", said.getvalue()[-1500:]
    return ("one clear error", lines[0]) if len(lines) == 1 else ("traceback", said.getvalue()[-1500:])


def watch(
    seen: list[tuple[str, str]], place: Path, outside: Path, report: Path
) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that notes in `seen` what is opened in `outside`, what is written elsewhere than in
    `place`, and programs that start."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        paths: list[Any] = []
        reads = event == "open" and isinstance(arguments[0], str | bytes)
        if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            paths = [arguments[0]]
        elif reads and os.path.realpath(os.fsdecode(arguments[0])).startswith(f"{outside}{os.sep}"):
            seen.append(("read outside", f"{event} {arguments[0]!r}"))
        elif event in WRITES:
            paths = list(arguments)
        elif event in RUNS:
            first = arguments[1][0] if event == "subprocess.Popen" else arguments[0]
            if Path(os.fsdecode(first)).name not in ASKED:
                seen.append(("executed code", f"{event} {first}"))
        for path in (os.fsdecode(path) for path in paths if isinstance(path, str | bytes)):
            real = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
            theirs = real.startswith(f"{outside}{os.sep}")
            if real != str(report) and (theirs or not real.startswith((f"{place}{os.sep}", "/dev/"))):
                seen.append(("wrote outside", f"{event} {path}"))

    return hook


# ---------------------------------------------------------------- what is read


class Command:
    """Makes the file `marker` when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.marker}'",)


def foreign(kind: str, place: Path, runs: Path, **options: str) -> Action:
    """Make a run of a model of another library, as every command does."""

    def read() -> None:
        model: ForeignModel = imported(SOURCES[kind])(str(place), ForeignOptions(**options))
        foreign_run(kind, model, runs, {}, {})

    return read


def marian(inside: Path, **settings: Any) -> Action:
    return foreign("marian", write_marian(inside / "model", **settings).parent, inside / "runs")


def marian_npz(inside: Path, **header: Any) -> Action:
    action = marian(inside)
    with_header(inside / "model/model.npz", "Wemb2", **header)
    return action


def example(inside: Path, name: str = BASE) -> RunFolder:
    shutil.copytree(EXAMPLES / BASE, inside / "runs" / BASE)
    if name != BASE:
        shutil.copytree(EXAMPLES / name, inside / "runs" / name)
    return RunFolder(inside / "runs" / name)


def opened(run: RunFolder) -> Action:
    return lambda: open_source(run.path, device="cpu")


def open_example(inside: Path) -> Action:
    return opened(example(inside))


def changed_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def changed_json_of(name: str, changes: dict[str, Any], inside: Path) -> None:
    changed_json(inside / name, **changes)


def changed_yaml(path: Path, **changes: Any) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8")) | changes
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def ours(inside: Path, change: Callable[[dict[str, Any]], object]) -> Action:
    """A checkpoint of the example, changed."""
    content = torch.load(EXAMPLES / BASE / "best.pt", weights_only=True)
    change(content)
    torch.save(content, inside / "best.pt")
    return lambda: load_model(inside / "best.pt")


def fairseq(inside: Path, *, half: bool = False, **options: Any) -> Action:
    """A tiny checkpoint of fairseq's, with these options."""
    D, F, V = 4, 6, 9
    weights = {f"{stack}.embed_tokens.weight": torch.ones(V, D) for stack in ("encoder", "decoder")}
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        layer = f"{stack}.layers.0"
        for name in attentions:
            for each in ("q_proj", "k_proj", "v_proj", "out_proj"):
                weights[f"{layer}.{name}.{each}.weight"] = torch.ones(D, D)
                weights[f"{layer}.{name}.{each}.bias"] = torch.ones(D)
        for name, shape in (("fc1", (F, D)), ("fc2", (D, F))):
            weights[f"{layer}.{name}.weight"] = torch.ones(shape)
            weights[f"{layer}.{name}.bias"] = torch.ones(shape[0])
        for norm in (*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"):
            weights |= {f"{layer}.{norm}.weight": torch.ones(D), f"{layer}.{norm}.bias": torch.ones(D)}
    if half:
        weights["encoder.embed_tokens.weight"] = torch.zeros(1, dtype=torch.half).expand(10**11, D)
    known: dict[str, Any] = {"source_lang": "en", "target_lang": "de"}
    known |= {f"{stack}_attention_heads": 2 for stack in ("encoder", "decoder")}
    torch.save({"args": argparse.Namespace(**(known | options)), "model": weights}, inside / "model.pt")
    for language in ("en", "de"):
        (inside / f"dict.{language}.txt").write_text("".join(f"w{i} 1\n" for i in range(V - 4)))
    return foreign("fairseq", inside / "model.pt", inside / "runs")


def hugging_face(inside: Path, **settings: Any) -> Action:
    """A folder of config.json, a few bytes of weights and a tokenizer's file."""
    from safetensors.torch import save_file

    folder = inside / "model"
    folder.mkdir()
    known = {"model_type": "bart", "d_model": 4, "vocab_size": 9, "encoder_layers": 1, "decoder_layers": 1}
    known |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    known |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 6) | {"max_position_embeddings": 16}
    (folder / "config.json").write_text(json.dumps(known | settings))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "vocab.json").write_text("{}")
    save_file({"model.shared.weight": torch.zeros(9, 4)}, folder / "model.safetensors")
    return foreign("hf", folder, inside / "runs")


def written_hf(inside: Path) -> Action:
    """The example's base as a folder of Hugging Face's form."""
    from headgates.bridges import hf

    folder = inside / "model"
    folder.mkdir()
    hf.write(open_source(EXAMPLES / BASE, device="cpu").translator, folder)
    return foreign("hf", folder, inside / "runs")


def analysed_page(inside: Path) -> Action:
    """The page of a gated run, which all files of it and its base go into."""
    run = example(inside, GATED)

    def read() -> None:
        from headgates.configs.analyses import Analyses
        from headgates.explain.analysed_model import AnalysedModel
        from headgates.explain.findings import Findings
        from headgates.report.fill import page_data

        page_data(AnalysedModel.open([str(run.path)], Analyses(sentences=20), print), {}, Findings())

    return read


def cards(inside: Path, **changes: Any) -> Action:
    """The same beside a cards.json."""
    action = analysed_page(inside)
    role = {"family": "positional", "score": 1.0, "baseline": 0.5}
    head = {"site": "encoder.0.enc-self", "head": 0, "roles": [role], "asked": [], "offsets": []}
    head |= dict.fromkeys(("confidence", "lrp_share", "lrp_signed", "entropy"))
    content = {"version": 1, "settings": {"weights": "", "read": {}, "facts": {}}, "heads": [head]}
    content |= {name: [] for name in ("examples", "survival", "tests", "correlations")} | changes
    (inside / f"runs/{BASE}/analysis/base/cards.json").write_text(json.dumps(content))
    return action


def encoder(inside: Path, **settings: Any) -> Action:
    """The folder of an encoder, of which fit.py makes a classifier."""
    hugging_face(inside, model_type="bert", hidden_size=4, **settings)

    def read() -> None:
        from headgates.bridges.classifier import encoder_folder, longest_input, new_classifier
        from headgates.data.special_tokens import SpecialTokens

        folder = encoder_folder(str(inside / "model"))
        longest_input(folder)
        new_classifier(folder, 2, SpecialTokens())

    return read


def pruned(inside: Path, **settings: Any) -> Action:
    """A folder as save_pruned writes it."""
    known = {"architectures": ["BartForConditionalGeneration"], "headgates": {"heads": {}}}
    hugging_face(inside, **(known | settings))

    def read() -> None:
        from headgates.gates import load_pruned

        load_pruned(inside / "model")

    return read


def exported(inside: Path, format: str, change: Callable[[dict[str, Any]], object]) -> Action:
    """An exported folder whose export.json is changed, with other files than a model's."""
    from headgates.models.checkpoint import architecture

    folder = inside / "exported"
    folder.mkdir()
    about = {"format": format, "search": {}, "sha256": {}}
    about["architecture"] = architecture(load_model(EXAMPLES / BASE / "best.pt"))
    change(about)
    (folder / "export.json").write_text(json.dumps(about))
    shutil.copyfile(EXAMPLES / BASE / "vocab.model", folder / "vocab.model")
    for name in ("encoder.onnx", "decoder.onnx", "model.bin"):
        (folder / name).write_bytes(b"no model" * 10**5)

    def read() -> None:
        from headgates.bridges.exported import open_exported

        open_exported(folder)

    return read


def corpus(inside: Path, write: Callable[[Path], object]) -> Action:
    """A folder of Hugging Face's data sets. write: makes each split's file."""
    for split in ("train", "validation", "test"):
        write(inside / split)

    def read() -> None:
        from headgates.data.hub_pairs import read_hub

        read_hub(str(inside), src="en", tgt="de")

    return read


def locked_by(inside: Path, content: str) -> Action:
    (inside / ".run.lock").write_text(content)

    def read() -> None:
        from headgates.records import heartbeat

        heartbeat.SILENT = 1.0  # of this process alone: what may be half written is waited for
        heartbeat.Heartbeat(inside / "run", "hash", "here").take()

    return read


def page_data(inside: Path, change: Callable[[RunFolder], object]) -> Action:
    """What the page reads beside the cards: comparisons, and histories of gates."""
    base = example(inside)
    shutil.copyfile(EXAMPLES / GATED / "gates_history.npz", base.path / "gates_history.npz")
    (inside / "runs/compare-x").mkdir()
    (inside / "runs/compare-x/compare.svg").write_text("<svg/>")
    whole = {"version": 1, "title": "x", "summary": [], "groups": [], "base_hash": base.run_hash()}
    (inside / "runs/compare-x/compare.json").write_text(json.dumps(whole))
    change(base)

    def read() -> None:
        from headgates.report.comparisons import comparisons_of
        from headgates.report.report_data import gate_history

        comparisons_of(base), gate_history(base)

    return read


# ---------------------------------------------------------------- crafted bytes


def with_header(path: Path, name: str, shape: tuple[int, ...], *, packed: bytes | None = None) -> None:
    """Put an array into an .npz that says this shape. packed: its content, deflated."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    kind = zipfile.ZIP_STORED if packed is None else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "a", kind) as file:
        file.writestr(f"{name}.npy", header.getvalue() + (packed or bytes(16)))


def bomb(depth: int = 60) -> list[Any]:
    """A list that holds one number 2 ** depth times."""
    found: list[Any] = [1]
    for _ in range(depth):
        found = [found, found]
    return found


def sparse(path: Path) -> None:
    """A file that says to have a terabyte and has nothing."""
    with path.open("ab") as file:
        file.truncate(10**12)


def deflated(path: Path) -> None:
    """A checkpoint of a gigabyte in a megabyte."""
    torch.save({"architecture": {}, "model": {"w": torch.zeros(2**26)}}, path)
    with zipfile.ZipFile(path) as file:
        members = {each.filename: file.read(each) for each in file.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)


def with_columns(path: Path, how: str) -> None:
    """A .parquet or .arrow file of one row, of many that are not there, or with offsets beyond its text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.array(["a dog"] * (3_000_000 if how == "rows" else 3))
    table = pa.table({"en": text, "de": text})
    file = path.with_suffix(".arrow")
    if how in ("arrow", "offsets"):
        with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
    if how == "offsets":
        right, wrong = (np.array(each, np.int32).tobytes() for each in ([0, 5, 10, 15], [0, 5, 2**30, 2**30]))
        file.write_bytes(file.read_bytes().replace(right, wrong))
    if how in ("rows", "parquet"):
        pq.write_table(table, str(path) + ".parquet", compression="zstd")


# ---------------------------------------------------------------- the list


def linked(builder: Callable[[Path], Action], name: str) -> Attack:
    """What a builder makes, with a link to the user's key in place of a file."""

    def attack(inside: Path, outside: Path) -> Action:
        action, path = builder(inside), inside / name
        path.unlink(missing_ok=True)
        path.symlink_to(outside / "key")
        return action

    return attack


def written(builder: Callable[[Path], Action], name: str, text: str) -> Attack:
    """What a builder makes, with a text in a file; OUTSIDE in it is the user's folder."""

    def attack(inside: Path, outside: Path) -> Action:
        action = builder(inside)
        (inside / name).write_text(text.replace("OUTSIDE", str(outside)))
        return action

    return attack


def then(builder: Callable[[Path], Action], change: Callable[[Path], object]) -> Attack:
    """What a builder makes, in a folder that is changed."""

    def attack(inside: Path, outside: Path) -> Action:
        action = builder(inside)
        change(inside)
        return action

    return attack


def each(builder: Callable[..., Action], cases: dict[str, tuple[dict[str, Any], str]]) -> "Attacks":
    """An attack for each: its name, the builder's options, and what the reader must say."""
    made = {name: partial(builder, **options) for name, (options, _) in cases.items()}
    return {name: ((lambda i, o, of=made[name]: of(i)), words) for name, (_, words) in cases.items()}


def base_elsewhere(inside: Path, outside: Path) -> Action:
    shutil.copytree(EXAMPLES / BASE, outside / BASE)
    shutil.copytree(EXAMPLES / GATED, inside / "runs" / GATED)
    run = RunFolder(inside / "runs" / GATED)
    changed_yaml(run.path / "config.yaml", base=str(outside / BASE), base_hash=None)
    return lambda: base_of(run).write_json("analysis/x.json", {})


def compared_through_a_link(inside: Path, outside: Path) -> Action:
    run = example(inside)
    content = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    del content["gates"]  # of a base they say nothing, and the example may be older than a setting
    (run / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (inside / "runs" / f"compare-{BASE}").symlink_to(outside)

    def read() -> object:
        from headgates.commands import prune

        words = [run.path, "--by", "random", "--heads", "2,1", "--test-sentences", 3]
        sys.argv = ["prune.py", *map(str, words)]
        return prune.main()

    return read


def weights_elsewhere(inside: Path, outside: Path) -> Action:
    run = example(inside)
    shutil.copyfile(run.path / "best.pt", outside / "best.pt")
    changed_json(run.path / "systems.json", base={"weights": "../../../outside/best.pt", "xi": None})
    return opened(run)


def digest_elsewhere(inside: Path, outside: Path) -> Action:
    run = example(inside)
    system = {"weights": "best.pt", "xi": None, "sha256": {"../../../outside/key": "0"}}
    changed_json(run.path / "systems.json", base=system)
    return opened(run)


def written_through_a_link(inside: Path, outside: Path) -> Action:
    run = example(inside)
    shutil.rmtree(run.path / "scores")
    (run.path / "scores").symlink_to(outside)
    return lambda: run.write_json("scores/x.json", {})


def copied_tokenizer(inside: Path, outside: Path) -> Action:
    run = example(inside)
    (run.path / "vocab.extra").symlink_to(outside / "key")
    return lambda: RunFolder(inside / "new").copy_files(run, "vocab*")


def vocabulary_of_links(inside: Path, outside: Path, about: dict[str, Any]) -> Action:
    from headgates.data.vocab import load_vocabs

    (inside / "vocab.json").write_text(json.dumps(about))
    (inside / "x").symlink_to(outside / "key")
    return lambda: load_vocabs(inside)


def many_layers(content: dict[str, Any], number: int = 10**7) -> None:
    content["architecture"]["model"]["encoder_layers"] = number


def with_weight(name: str, tensor: torch.Tensor) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["model"].update({name: tensor})


def classifier(inside: Path) -> Action:
    config = {"model_type": "bert", "hidden_size": 4, "num_hidden_layers": 10**7, "num_attention_heads": 2}
    about = {"class": "BertForSequenceClassification", "config": config, "heads_left": {}}
    specials = {"padding": 0, "beginning": 1, "end": 2, "unknown": 3, "forced": []}
    content = {"classifier": about | {"specials": specials}, "model": {"w": torch.ones(1)}}
    torch.save(content, inside / "best.pt")

    def read() -> None:
        from headgates.bridges.classifier import load_classifier

        load_classifier(inside / "best.pt")

    return read


def sentences_that_overlap(inside: Path) -> Action:
    from headgates.data.fairseq_data import HEADER, MAGIC, read_binarised

    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            count, ids = 10**5, np.full(10**5, 4, np.uint16)
            lengths, begins = np.full(count, len(ids), "<i4"), np.zeros(count, "<i8")
            head = HEADER.pack(MAGIC, 1, 8, count) + lengths.tobytes() + begins.tobytes()
            (inside / f"{split}.en-de.{language}.idx").write_bytes(head)
            (inside / f"{split}.en-de.{language}.bin").write_bytes(ids.tobytes())
            (inside / f"dict.{language}.txt").write_text("w 1\n")
    return lambda: read_binarised(str(inside), src="en", tgt="de")


def commanding(inside: Path) -> None:
    """Weights that run a command."""
    for path in [*inside.rglob("*.pt"), *inside.rglob("*.safetensors")]:
        torch.save({"model": Command(inside.parent / "marker")}, path)


def pickled_weights(inside: Path) -> None:
    commanding(inside)
    (inside / "model/model.safetensors").rename(inside / "model/pytorch_model.bin")


PAIRS = zip("abcdefghij", "bcdefghijk", strict=True)
ALIASES = "a: &a [x]\n" + "".join(f"{b}: &{b} [*{a},*{a}]\n" for a, b in PAIRS)
OUT = "leads out of that folder"
LARGE = "such a file fills the memory"
INDEX = "model/model.safetensors.index.json"
NAMES_KEY = json.dumps({"metadata": {}, "weight_map": {"w": "../../outside/key"}})
SPECIALS = json.dumps(dict.fromkeys(("source_spm", "vocab_file", "vocab"), "OUTSIDE/key"))
SETTINGS = "model/decoder.yml"  # of Marian
COMPARISON = "runs/compare-x/compare.json"
HALF = torch.zeros(1, dtype=torch.half)

WHOLE: dict[str, Attack] = {  # nothing is wrong with these
    "marian": lambda i, o: marian(i),
    "fairseq": lambda i, o: fairseq(i),
    "hf": lambda i, o: written_hf(i),
    "checkpoint": lambda i, o: ours(i, dict.copy),
    "run": lambda i, o: opened(example(i, GATED)),
    "arrow": lambda i, o: corpus(i, lambda path: with_columns(path, "arrow")),
    "parquet": lambda i, o: corpus(i, lambda path: with_columns(path, "parquet")),
    "page": lambda i, o: page_data(i, lambda base: None),
    "cards": lambda i, o: cards(i),
}

ATTACKS: Attacks = {
    # names and links that lead out of a folder
    "hf tokenizer linked to a key": (linked(hugging_face, "model/merges.txt"), OUT),
    "hf weights linked outside": (linked(hugging_face, "model/model.safetensors"), OUT),
    "encoder tokenizer linked to a key": (linked(encoder, "model/merges.txt"), OUT),
    "marian vocabulary linked to a key": (linked(marian, "model/vocab.yml"), OUT),
    "fairseq dictionary linked to a key": (linked(fairseq, "dict.en.txt"), OUT),
    "fairseq index linked to a key": (linked(sentences_that_overlap, "test.en-de.en.idx"), "leads out"),
    "result linked to a key": (linked(open_example, f"runs/{BASE}/result.json"), OUT),
    "hf index that names a file outside": (
        written(hugging_face, INDEX, NAMES_KEY),
        "a file outside the folder",
    ),
    "pruned folder whose index names a file outside": (
        written(pruned, INDEX, NAMES_KEY),
        "a file outside the folder",
    ),
    "hf special tokens that name files outside": (
        written(written_hf, "model/special_tokens_map.json", SPECIALS),
        "is no special token",
    ),
    "marian vocabulary by an absolute name": (
        written(marian, SETTINGS, "models: [model.npz]\nvocabs: [OUTSIDE/key, OUTSIDE/key]\n"),
        OUT,
    ),
    "marian vocabulary by dots": (
        written(marian, SETTINGS, "models: [model.npz]\nvocabs: [../../outside/key]\n"),
        OUT,
    ),
    "base elsewhere": (base_elsewhere, "is not beside it"),
    "comparison that is a link": (compared_through_a_link, OUT),
    **{
        f"vocabulary of kind {about['kind']} that names a link": (
            lambda i, o, about=about: vocabulary_of_links(i, o, about),
            OUT,
        )
        for about in (
            {
                "kind": "marian",
                "files": ["x", "x"],
                "cutters": [None] * 2,
                "sizes": [9] * 2,
                "language": None,
            },
            {"kind": "fairseq", "source": {"dictionary": "x"}, "target": {"dictionary": "x"}},
            {"kind": "huggingface", "files": {"x": "source.spm"}, "class": "MarianTokenizer"},
        )
    },
    "weights elsewhere": (weights_elsewhere, OUT),
    "digest of a file elsewhere": (digest_elsewhere, OUT),
    "folder of scores that is a link": (written_through_a_link, OUT),
    "tokenizer of a base linked to a key": (copied_tokenizer, OUT),
    # sizes that are not there
    **each(
        fairseq,
        {
            "fairseq language that leads outside": ({"source_lang": "/../../outside/key"}, OUT),
            "fairseq model with one half that is a terabyte": ({"half": True}, "has fewer numbers"),
            "fairseq model of a trillion positions": ({"max_source_positions": 10**12}, "positions"),
            "fairseq model of a billion heads": ({"encoder_attention_heads": 10**9}, "model.heads"),
            "fairseq option that prints for ever": ({"adaptive_input": bomb()}, "adaptive_input"),
            "fairseq language that prints for ever": ({"source_lang": bomb()}, "dict."),
            "fairseq activation that is a list": ({"activation_fn": ["relu"]}, "activation_fn"),
            "fairseq dropout that is a dict": ({"dropout": {"a": 1}}, "dropout"),
        },
    ),
    **each(
        hugging_face,
        {
            "hf type that is no word": ({"model_type": ["bart"]}, "is of the type"),
            "hf model of ten million layers": ({"encoder_layers": 10**7}, "encoder_layers"),
            "hf model of a hundred billion heads": ({"encoder_attention_heads": 10**11}, "Bart"),
            "hf model of a trillion positions": ({"max_position_embeddings": 10**12}, "numbers"),
            "hf model wider than its bytes": ({"vocab_size": 10**12}, "numbers"),
        },
    ),
    **each(
        encoder,
        {
            "encoder of ten million layers": ({"num_hidden_layers": 10**7}, "num_hidden_layers"),
            "encoder with positions of another kind": ({"max_position_embeddings": [1]}, "positions"),
        },
    ),
    **each(
        pruned,
        {
            "pruned folder of ten million layers": ({"decoder_layers": 10**7}, "decoder_layers"),
            "pruned folder of a hundred billion heads": (
                {"headgates": {"heads": {"encoder.0.enc-self": [0]}, "of": 10**11}},
                "'headgates' in",
            ),
        },
    ),
    **each(marian, {"marian model of ten million layers": ({"enc_depth": 10**7}, "encoder-layers")}),
    **each(
        exported,
        {
            "exported digest of a file elsewhere": (
                {"format": "onnx", "change": lambda about: about.update(sha256={"../../outside/key": "0"})},
                OUT,
            ),
            "exported model of a billion pieces": (
                {
                    "format": "onnx",
                    "change": lambda about: about["architecture"].update(
                        source_vocab=10**9, target_vocab=10**9
                    ),
                },
                "numbers in",
            ),
            "exported model of ten million layers": ({"format": "ct2", "change": many_layers}, "layers"),
        },
    ),
    **each(
        ours,
        {
            "checkpoint of ten million layers": ({"change": many_layers}, "encoder_layers"),
            "checkpoint of a hundred billion heads": (
                {
                    "change": lambda content: content["architecture"].update(
                        heads={"encoder.0.enc-self": 10**11}
                    )
                },
                "heads at a width of",
            ),
            "checkpoint with one half that is a terabyte": (
                {"change": with_weight("output.weight", HALF.expand(10**11, 64))},
                "has fewer numbers",
            ),
            "checkpoint with a sparse tensor": (
                {"change": with_weight("x", torch.sparse_coo_tensor(size=(10**9, 10**3)))},
                "is no plain tensor",
            ),
            "checkpoint whose tensors are one": (
                {
                    "change": lambda content: content.update(
                        model=dict.fromkeys(map(str, range(10**4)), HALF.new_zeros(10**6))
                    )
                },
                "share",
            ),
        },
    ),
    **each(
        marian_npz,
        {
            "npz array of a terabyte": ({"shape": (10**12,)}, "says shape"),
            "npz array of no numbers in a row": ({"shape": (10**12, 0)}, "says shape"),
            "npz that unpacks to a gigabyte": ({"shape": (2**26,), "packed": bytes(2**28)}, LARGE),
        },
    ),
    "history of gates of a terabyte": (
        lambda i, o: page_data(i, lambda base: with_header(base.path / "gates_history.npz", "x", (10**12,))),
        "says shape",
    ),
    "checkpoint that unpacks to gigabytes": (
        then(lambda i: lambda: load_model(i / "x.pt"), lambda i: deflated(i / "x.pt")),
        LARGE,
    ),
    "classifier of ten million layers": (lambda i, o: classifier(i), "num_hidden_layers"),
    "fairseq sentences that overlap": (lambda i, o: sentences_that_overlap(i), "overlap"),
    "yaml aliases": (written(marian, SETTINGS, ALIASES), "aliases"),
    "vocabulary of aliases": (written(marian, "model/vocab.yml", ALIASES), "vocabulary of YAML"),
    "vocabulary nested a million deep": (
        written(marian, "model/vocab.yml", "[" * 10**6),
        "vocabulary of YAML",
    ),
    "weights of a terabyte of nothing": (
        then(hugging_face, lambda i: sparse(i / "model/model.safetensors")),
        LARGE,
    ),
    "settings of a terabyte of nothing": (
        then(open_example, lambda i: sparse(i / f"runs/{BASE}/result.json")),
        LARGE,
    ),
    "weights that are a pipe": (
        then(hugging_face, lambda i: os.mkfifo(i / "model/model-2.safetensors")),
        "pipe",
    ),
    "arrow text beyond its bytes": (
        lambda i, o: corpus(i, lambda path: with_columns(path, "offsets")),
        "cannot be read",
    ),
    "parquet of more rows than bytes": (
        lambda i, o: corpus(i, lambda path: with_columns(path, "rows")),
        "rows",
    ),
    # other shapes than a reader expects
    **each(
        locked_by,
        {
            f"lock file: {content}": ({"content": content}, "lock")
            for content in (
                '{"process": "x", "machine": 3, "run_hash": []}',
                '{"process": 1e30, "machine": "", "run_hash": "a"}',
                '{"process": -1, "machine": "here", "run_hash": "a"}',
                "[" * 10**5,
                "no lock",
            )
        },
    ),
    **each(
        cards,
        {
            f"cards whose {name} are {value!r}": ({name: value}, "cards.json: " + name)
            for name, value in {
                "heads": ["head"],
                "examples": [{"source": [], "own": False, "weights": {"encoder.0.enc-self": [["x"]]}}],
                "settings": {"weights": 3},
                "contrasts": [{}],
                "survival": {},
            }.items()
        },
    ),
    # code
    "checkpoint that runs a command": (then(partial(ours, change=dict.copy), commanding), "plain tensors"),
    "fairseq checkpoint that runs a command": (then(fairseq, commanding), "could run code"),
    "hf weights that run a command": (then(hugging_face, pickled_weights), "do not make a Bart"),
    # beside what is analysed: left out, and the rest goes on
    **{
        f"comparison: {changes}": (
            then(partial(page_data, change=lambda base: None), partial(changed_json_of, COMPARISON, changes)),
            "",
        )
        for changes in ({"summary": None}, {"groups": {"a": 1}}, {"title": []})
    },
}
