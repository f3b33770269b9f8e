"""The wheel holds every room as `headgates`; gates and analysis need torch alone."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import headgates

ROOT = Path(__file__).resolve().parents[1]

USE = """
import importlib.util
import json
import torch
from torch import nn
from headgates.gates import SITE_RULES, HeadMap, SiteRule, attach, detach, find_sites, save_pruned
import headgates.analysis.scores.importance, headgates.analysis.significance

SITE_RULES["OwnAttention"] = SiteRule(heads="heads", slot="gate", zero_heads=True)

class OwnAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.gate, self.out_proj = heads, None, nn.Linear(width, width)

    def forward(self, x):  # (B, T, D)
        z = x.unflatten(-1, (self.heads, -1))  # (B, T, H, K)
        if self.gate is not None:
            z = z * self.gate()[:, None]
        return self.out_proj(z.flatten(2))

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attention = OwnAttention(15, 5)

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x):
        for layer in self.encoder.layers:
            x = x + layer.self_attention(x)
        return x

torch.manual_seed(0)
model, x = Model(), torch.randn(2, 7, 15)
before, plain = {k: v.clone() for k, v in model.state_dict().items()}, model(x)
assert len(find_sites(model)) == 2
bank = attach(model, gate="l0")
penalty = bank.penalty()
assert 0 < float(penalty.detach()) <= 10, penalty
optimiser = torch.optim.Adam(bank.param_groups(lr=0.0, gate_lr=0.5))
for _ in range(50):
    optimiser.zero_grad()
    bank.penalty().backward()
    optimiser.step()
assert float(bank.penalty().detach()) < float(penalty.detach())
closed = bank.closed()
assert isinstance(closed, HeadMap) and all(bool(row.all()) for row in dict(closed).values())
model.eval()
expected = x
for layer in model.encoder.layers:  # every head closed: the residual and the bias of W_O stay
    expected = expected + layer.self_attention.out_proj.bias
torch.testing.assert_close(model(x), expected)
bank.save("gates.json")
json.load(open("gates.json"))
detach(model)
assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
assert len(before) == len(model.state_dict())
assert torch.equal(model(x), plain)
for hidden in ("gates", "pytest", "numpy", "pytorch_lightning", "sentencepiece"):
    assert importlib.util.find_spec(hidden) is None, hidden
try:
    save_pruned(model, "pruned")
except ImportError as error:
    assert "pip install 'headgates[hf]'" in str(error), error
else:
    raise AssertionError("transformers was found")
print("used with torch alone")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that the checkout gets no build/ and no egg-info."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for room in [
        path for path in ROOT.iterdir() if (path / "__init__.py").is_file() and path.name != "tests"
    ]:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(room, source / room.name, symlinks=True, ignore=ignore)
    pip(["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(source)])
    (built,) = out.glob("*.whl")
    return built


def pip(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_holds_every_file_of_the_rooms_under_one_name(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"headgates"}
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "headgates"}
    files = [
        path
        for room in rooms
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".js", ".css", ".html", ".yaml", ".tsv")
    ]
    wanted = {f"headgates/{path.relative_to(ROOT).as_posix()}" for path in files}
    wanted |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "headgates").rglob("*.py")}
    assert (wanted | {"headgates/py.typed"}) - names == set()
    assert wheel.name.split("-")[1] == headgates.__version__


def test_the_wheel_requires_torch_alone_and_has_the_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [
            archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/METADATA")
        ]
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    required = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert required == ["Requires-Dist: torch>=2.10"]
    assert len(licences) == 1


def torch_alone(folder: Path) -> Path:
    """A site-packages with torch and what torch requires, as links to what is installed."""
    done, todo = set(), ["torch"]
    while todo:
        name = todo.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of another platform
            continue
        done.add(name)
        for top in {
            path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")
        }:
            link, file = folder / top, Path(str(distribution.locate_file(top)))
            if file.exists() and not link.exists():
                link.symlink_to(file.resolve())
        needed = [text for text in distribution.requires or () if "extra ==" not in text]
        todo += [
            match[0] for text in needed if (match := re.match(r"[\w.-]+", text)) and match[0] not in done
        ]
    return folder


def test_the_wheel_works_outside_the_checkout_with_torch_alone(wheel, tmp_path):
    target, elsewhere, packages = tmp_path / "target", tmp_path / "elsewhere", tmp_path / "packages"
    elsewhere.mkdir()
    packages.mkdir()
    pip(["install", "--no-deps", "--no-index", "--quiet", "--target", str(target), str(wheel)])
    script = elsewhere / "use.py"
    script.write_text(USE, encoding="utf-8")
    path = os.pathsep.join([str(target), str(torch_alone(packages))])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    # -S: no site-packages but these
    done = subprocess.run(
        [sys.executable, "-S", str(script)],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["used with torch alone"]
    words = [sys.executable, "-S", "-m", "headgates", "fit", "--help"]
    shown = subprocess.run(words, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, "usage: headgates fit [--flag VALUE ...]")
    assert "pip install '.[all]'" in shown.stdout, "as README says"


def test_what_make_runs_may_write_byte_code_where_a_container_forbids_it():
    probe = 'probe: ; @$(PY) -c "import sys; print(sys.dont_write_bytecode)"'
    forbidden = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    asked = ["make", "-s", "--eval", probe, "probe", f"PY={sys.executable}"]
    answer = subprocess.run(asked, cwd=ROOT, env=forbidden, capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"
