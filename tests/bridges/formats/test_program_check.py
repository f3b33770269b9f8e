"""A foreign torch program runs no code when it is opened: each hostile entry is refused before torch sees
it."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from headgates.bridges.formats.program_check import check_arithmetic, check_program
from headgates.bridges.formats.torch_program import load


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 5)

    def forward(self, x):
        return self.inner(x) * x.shape[0]


@pytest.fixture(scope="module")
def program() -> bytes:
    batch = torch.export.Dim("batch", min=2, max=64)
    content = io.BytesIO()
    torch.export.save(
        torch.export.export(Scaled(), (torch.randn(4, 3),), dynamic_shapes=({0: batch},)), content
    )
    return content.getvalue()


def changed(program: bytes, **changes) -> bytes:
    """The archive with entries replaced (by the end of their name), changed by a function, or added."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(program)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            change = next((change for name, change in changes.items() if entry.filename.endswith(name)), None)
            content = old.read(entry)
            new.writestr(entry.filename, content if change is None else change(content))
    return out.getvalue()


def edited(edit):
    def change(content: bytes) -> bytes:
        value = json.loads(content)
        edit(value)
        return json.dumps(value).encode()

    return change


def call_load(graph):
    graph["graph_module"]["graph"]["nodes"][0]["target"] = "torch.load"


def pickle_weights(config):
    next(iter(config["config"].values()))["use_pickle"] = True


def test_a_program_of_our_own_kind_is_let_through_and_runs(program, tmp_path):
    check_program(program)
    (tmp_path / "program.pt2").write_bytes(program)
    assert load(tmp_path / "program.pt2")(torch.ones(7, 3)).shape == (7, 5)


@pytest.mark.parametrize("entry", ["sample_inputs/model.pt"])
def test_a_pickle_that_runs_code_is_refused_and_not_run(program, tmp_path, entry):
    trap, path = tmp_path / "trap", tmp_path / "program.pt2"
    path.write_bytes(changed(program, **{entry: lambda content: pickle.dumps((Hostile(trap),))}))
    with pytest.raises(
        ValueError, match=r"program\.pt2 is not a whole torch\.export program .*holds more than plain tensors"
    ):
        load(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("entry", "change", "message"),
    [
        ("weights_config.json", edited(pickle_weights), "is pickled or no tensor"),
        ("model.json", edited(call_load), "calls 'torch.load', which is no operator of aten"),
        (
            "model.json",
            edited(lambda graph: graph.update(guards_code=["__import__('os').getcwd()"])),
            "a guard is more than arithmetic",
        ),
        (
            "model.json",
            edited(lambda graph: graph.update(more={"expr_str": "open('x')"})),
            "a size is more than arithmetic",
        ),
        (
            "model.json",
            edited(lambda graph: graph["graph_module"]["graph"]["nodes"][0].update(name="a; b")),
            "which is no name",
        ),
    ],
)
def test_an_entry_that_would_run_code_is_named(program, entry, change, message):
    with pytest.raises(ValueError, match=message):
        check_program(changed(program, **{entry: change}))


def test_a_file_that_is_no_part_of_a_program_is_named(program):
    out = io.BytesIO(program)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("x/data/aotinductor/model/model.so", b"")
    with pytest.raises(ValueError, match=r"the entry 'x/data/aotinductor/model/model\.so' is none"):
        check_program(out.getvalue())


@pytest.mark.parametrize(
    "text", ["L['ids'].size()[0] * 2 == 1 or min(L['a'].size()[1], 3) == 3", "16 * (2 + 3)"]
)
def test_arithmetic_over_sizes_is_let_through(text):
    check_arithmetic(text, {"L", "min"}, "a guard")


HOSTILE = [
    "L.__class__",
    "(lambda: 1)()",
    "[x for x in L]",
    "f'{L}'",
    "L['a'].size.__self__",
    "exec('1')",
    "min(*L)",
    "(",
    3,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="a guard is"):
        check_arithmetic(text, {"L", "min"}, "a guard")
