"""The run folder: what every script writes and reads.   One run is one base, or one gate setting on a base.

config.yaml command.txt vocab*.model best.pt last.pt systems.json gates.json metrics.csv hypotheses/ scores/
result.json
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar, overload

import yaml

from headgates.configs.cli import from_dict, to_yaml
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import check_types, shortened
from headgates.configs.json_file import in_type, load_json
from headgates.configs.own_file import own_file, own_files
from headgates.configs.recipe import Recipe
from headgates.configs.settings import Settings
from headgates.configs.yaml_file import load_yaml
from headgates.data.atomic_file import atomic_file
from headgates.data.cache import locked, own_cache
from headgates.data.file_digest import check_digests, file_digest
from headgates.data.ranks import after_first, first, is_first
from headgates.models.progress import say
from headgates.records.row import ResultRow

VERSION = 1  # of all JSON files of a run
CURE = "repeat the command that writes it with --fresh"
SYSTEM_NAME = re.compile(r"\w[\w.+:-]*")  # of a system
HeadMapRecord = dict[str, list[Any]]  # which HeadMap.from_json reads
T = TypeVar("T")


class SystemRecord(TypedDict):
    """A system of a run. weights: its checkpoint, relative to the folder. xi: its gates, as a HeadMap's JSON.
    sha256: file -> digest."""

    weights: str
    xi: NotRequired[HeadMapRecord | None]
    sha256: NotRequired[dict[str, str] | None]


class DataRecord(TypedDict, total=False):
    """The text of a run."""

    corpus: str
    text_digest: str


class ResultRecord(TypedDict, total=False):
    """result.json. rows: what `ResultRow.from_json` reads. system: what the run was made for."""

    rows: list[dict[str, Any]] | None
    system: str
    reference: str | None
    finished: bool
    data: DataRecord | None


class RunSettings(dict[str, Any]):
    """The content of a config.yaml, `path`: a setting that it lacks is a ValueError that says what to do."""

    def __init__(self, content: Mapping[str, Any], path: Path, group: str = ""):
        super().__init__(
            {
                key: RunSettings(value, path, f"{key}.") if isinstance(value, dict) else value
                for key, value in content.items()
            }
        )
        self.path, self.group = path, group

    def __missing__(self, key: str) -> Any:
        raise ValueError(f"{self.path} has no {self.group}{key}, which is needed here; {CURE}")


yaml.SafeDumper.add_representer(RunSettings, yaml.SafeDumper.represent_dict)


class RunFolder:
    """One folder of `--runs`. Reading a file that is missing or broken raises ValueError with what to do."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        """The path of a file of the run. Raises ValueError where its name, or a link, leads out of the folder
        (`own_file`)."""
        return own_file(self.path, name)

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """The folder of an existing run. Raises ValueError if there is none, naming the nearest."""
        folder = cls(path)
        if not (folder / "config.yaml").is_file():
            siblings = [p.parent.name for p in Path(path).parent.glob("*/config.yaml")]
            if is_ctranslate2(Path(path)):
                raise ValueError(
                    f"{path} is a model of CTranslate2 that export did not write: it does not say how its "
                    "text is cut. Give the model that it was made of: hf:NAME, fairseq:FILE or marian:FOLDER"
                )
            hint = did_you_mean(Path(path).name, siblings, prefix=f"{Path(path).parent}{os.sep}")
            raise ValueError(f"no run at {path}, where a run folder would hold config.yaml{hint}")
        return folder

    def config(self) -> dict[str, Any]:
        """The settings of the run, as `fit` wrote them. Raises ValueError where the file holds none or
        values of other types, or cannot be read."""
        path = self / "config.yaml"
        content = load_yaml(path)
        if not content:
            raise ValueError(f"{path} holds no settings; expected the configuration that `fit` writes")
        try:
            check_types(Settings, content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; {CURE}") from error
        for name in sorted({"base", "base_hash", "run_hash"} & content.keys()):
            if not isinstance(content[name], str | None):
                raise ValueError(
                    f"{path}: {name} is a {type(content[name]).__name__}, expected the hash of a run; {CURE}"
                )
        return RunSettings(content, path)

    def run_hash(self) -> str | None:
        """The hash of what the run was made from; None where there is none, with a warning where config.yaml
        cannot be read: one broken run must not stop all commands."""
        try:
            return self.config().get("run_hash") if (self / "config.yaml").is_file() else None
        except ValueError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
            return None

    def is_original(self) -> bool:
        """Whether the folder has the name that the run was made under: a copy beside it has not."""
        return self.config().get("name") == self.path.resolve().name

    @overload
    def read_json(self, name: str) -> dict[str, object]: ...
    @overload
    def read_json(self, name: str, shape: type[T], *, cure: str = CURE) -> T: ...
    def read_json(self, name: str, shape: Any = dict, *, cure: str = CURE) -> Any:
        """The content of a JSON file, of this type (`configs.json_file`), without the version of its form.
        Raises ValueError where there is none, where it is broken, or of another type or version."""
        try:
            content = load_json(self / name, dict, cure=cure)
        except FileNotFoundError:
            raise ValueError(
                f"{self.path} has no {name}; is the run finished? (the same command with --resume "
                f"continues it)"
            ) from None
        if (found := content.pop("version", None)) != VERSION:
            raise ValueError(f"{self / name} has version {found}, expected {VERSION}; {cure}")
        return in_type(content, shape, self / name, cure=cure)

    def cached(
        self,
        name: str,
        shape: type[T],
        cache_key: Mapping[str, Any],
        make: Callable[[], T],
        *,
        fresh: bool = False,
        tell: bool = False,
    ) -> T:
        """The content of a JSON file of this type that was made with this cache key; made and written where
        there is none, or if `fresh`; a process that finds another making it waits for that. tell: say that it
        is there. Raises ValueError where it was made with another key.

        The file is removed before `make` runs and written last, so it vouches for what `make` writes beside
        it."""

        def kept() -> T | None:
            return None if fresh else first(lambda: self.stored(name, shape, cache_key))

        if (found := kept()) is not None:
            if tell:
                say(f"{name}: there already, made of the same; --fresh repeats it")
            return found
        with ExitStack() as until:
            first(lambda: until.enter_context(self.only_maker(name)))
            if (found := kept()) is not None:  # by the process that was waited for
                return found
            if is_first():
                (self / name).unlink(missing_ok=True)
            made: Any = make()  # a dataclass, or a TypedDict
            content = asdict(made) if is_dataclass(made) else made  # type: ignore[arg-type]
            self.write_json(name, {"cache_key": dict(cache_key), **content})
            return after_first(lambda: self.read_json(name, shape))  # which the first has just written

    def only_maker(self, name: str) -> AbstractContextManager[None]:
        """Waits until no other process of this machine makes this file."""
        path = (self / name).resolve()
        lock = hashlib.sha256(str(path).encode()).hexdigest()[:16]
        return locked(lock, lambda: say(f"another process is making {self / name}; waiting for it"))

    def stored(self, name: str, shape: type[T], cache_key: Mapping[str, Any]) -> T | None:
        """The content of a cached file, None where there is none; errors are those of `cached`."""
        if not (self / name).is_file():
            return None
        check_cache_key(self / name, self.read_json(name).get("cache_key"), cache_key)
        return self.read_json(name, shape)

    def foreign(self, name: str, why: str) -> ValueError:
        """The error for a file that is whole, but holds something else than our commands write."""
        return ValueError(f"{self / name} is not what this program writes: {why}; {CURE}")

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file of the run, which begins with the version of its form."""
        self.write_text(name, json.dumps({"version": VERSION, **content}, indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the run, whole or not at all."""
        path = self / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(text.encode())

    def result(self) -> ResultRecord:
        """result.json, empty while no stage has ended."""
        return self.read_json("result.json", ResultRecord) if (self / "result.json").is_file() else {}

    def rows(self) -> list[ResultRow]:
        """The systems of result.json, in its order; none while no stage has ended."""
        return [ResultRow.from_json(row) for row in self.result().get("rows") or []]

    def row_of(self, system: str) -> ResultRow:
        """The row of a system. Raises ValueError where result.json has not one of it."""
        found = [row for row in self.rows() if row.system == system]
        if len(found) != 1:
            raise self.foreign("result.json", f"expected one row of {system}, got {len(found)}")
        return found[0]

    def own_system(self) -> str:
        """What the run was made for: its base, or its gates made exactly 0 or 1."""
        return check_system_name(
            self.read_json("result.json", ResultRecord).get("system", "base"), self / "result.json"
        )

    def own_row(self) -> ResultRow | None:
        """The row of the run's own system; None where it was never evaluated."""
        return next((row for row in self.rows() if row.system == self.own_system()), None)

    def finished(self) -> bool:
        return self.result().get("finished", False)

    def check_finished(self) -> None:
        """Raises ValueError, saying how to go on, unless the run is finished."""
        if not self.finished():
            raise ValueError(
                f"{self.path} is not finished; the command in its command.txt with --resume continues it"
            )

    def was_begun(self) -> bool:
        """Whether a stage of the run has left a checkpoint to go on from."""
        return any(self.path.glob("*last.pt")) or any(self.path.glob("*last.previous.pt"))

    def systems(self) -> dict[str, SystemRecord]:
        """Each system of the run."""
        systems = self.read_json("systems.json", dict[str, SystemRecord])
        for name in systems:
            check_system_name(name, self / "systems.json")
        return systems

    def weights_of(self, name: str) -> Path:
        """The checkpoint of a system. Raises ValueError where it or the tokenizer is not the file that the
        system was recorded with."""
        system, runs = self.systems()[name], self.path.parent  # a run may have the weights of its base
        weights, digests = system["weights"], system.get("sha256")
        beside = Path(os.path.realpath(self.path / weights)).is_relative_to(os.path.realpath(runs))
        far = name == "base" and not beside and is_made(self.config())
        if far and digests:  # those of its own folder are left
            digests = {file: digest for file, digest in digests.items() if file != weights}
        check_digests(self.path, digests, cure="copy it again, or repeat the run with --fresh", home=runs)
        return base_of(self).weights_of(name) if far else own_file(self.path, weights, home=runs)

    def add_system(
        self, name: str, weights: Path, xi: dict[str, list[Any]] | None, *, tokenizer: str = "vocab*"
    ) -> None:
        """Record a system with the digests of its files. tokenizer: the pattern of the tokenizer's files."""
        systems = self.systems() if (self / "systems.json").is_file() else {}
        files = [path for path in (weights, *sorted(self.path.glob(tokenizer))) if path.is_file()]
        digests = {os.path.relpath(path, self.path): file_digest(path) for path in files}
        systems[name] = {"weights": os.path.relpath(weights, self.path), "xi": xi}
        if digests:
            systems[name]["sha256"] = digests
        self.write_json("systems.json", systems)

    def finish_base(self, settings: Mapping[str, Any], run_hash: str, result: Mapping[str, Any]) -> None:
        """Make this folder, with best.pt and the tokenizer in it, the run of a finished base that `fit` did
        not train. result: what result.json holds beside."""
        self.add_system("base", self / "best.pt", None)
        self.write_text("config.yaml", to_yaml(from_dict(Settings, dict(settings)), run_hash=run_hash))
        base = {"rows": [], "system": "base", "reference": "base", "finished": True}
        self.write_json("result.json", base | dict(result))

    def copy_files(self, other: "RunFolder", pattern: str) -> None:
        """Copy the files of another run that match, such as its tokenizer."""
        for file in own_files(other.path, pattern):
            shutil.copyfile(file, self / file.name)

    def write_command(self, facts: Mapping[str, Any], before: str = "") -> None:
        """command.txt: what made the run, a line each, after what it says already."""
        lines = "".join(f"{key}: {value}\n" for key, value in facts.items())
        self.write_text("command.txt", before + lines)

    def write_outputs(self, system: str, outputs: Iterable[str]) -> None:
        """Keep what a system makes of the test set, a line each."""
        self.write_text(f"hypotheses/{system}.txt", "".join(line + "\n" for line in outputs))

    def outputs(self, system: str) -> list[str]:
        """What a system made of the test set; the first rank may just have written it."""
        path = self / f"hypotheses/{system}.txt"
        return first(lambda: lines_in_file(path))


def is_ctranslate2(folder: Path) -> bool:
    """Whether a folder holds a model of CTranslate2; other libraries write a model.bin too."""
    beside = (folder / "config.json").is_file() or any(folder.glob("*vocabulary*"))
    return (folder / "model.bin").is_file() and beside


def lines_in_file(path: Path) -> list[str]:
    """The lines of a file, which may hold any character but a line feed."""
    return path.read_bytes().decode().split("\n")[:-1]  # read_text would make a line end of "\r"


def check_cache_key(path: Path, theirs: object, ours: Mapping[str, Any]) -> None:
    """Raises ValueError, naming what differs, unless a file was made with this cache key."""
    known, ours = theirs if isinstance(theirs, dict) else {}, plain(ours)
    if other := [key for key in ours if key not in known or known[key] != ours[key]]:
        raise ValueError(
            f"{path} was made with other {' and '.join(other)} than this command; --fresh makes it anew"
        )


def plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping as JSON brings it back."""
    back: dict[str, Any] = json.loads(json.dumps(content))
    return back


def check_system_name(system: str, path: Path) -> str:
    """The name of a system, as part of names of files. Raises ValueError, naming the file that has it, where
    it could lead elsewhere."""
    if not SYSTEM_NAME.fullmatch(system):
        raise ValueError(
            f"{path} has a system called {shortened(system)}; expected letters, digits, and any of "
            f"'._+:-'; {CURE}"
        )
    return system


def find_runs(root: str | Path) -> list[RunFolder]:
    """All runs below a folder, by name."""
    return [RunFolder(path.parent) for path in sorted(Path(root).glob("*/config.yaml"))]


def recipe_of(config: Mapping[str, Any]) -> Recipe | None:
    """How a run with this config.yaml was made of its base; None where it is a base. Raises ValueError where
    the file holds no recipe."""
    content = config.get("recipe")
    return None if content is None else Recipe.from_json(content)


def is_made(config: Mapping[str, Any]) -> bool:
    """Whether a run with this config.yaml was made of a base by a recipe."""
    return config.get("recipe") is not None


def far_base(run: Path) -> Path:
    """The file of the user's cache that says where the base of a run lies, if not beside it; unlike the run's
    own files, nobody else has written it."""
    return own_cache() / "bases" / hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]


def base_of(folder: RunFolder) -> RunFolder:
    """The base: the run itself, or the run that its recipe started from, which lies
    beside it, or where this user's own command found it (`far_base`): results are written to it, and a run of
    others may name any folder. Raises ValueError if that base is gone, or is another one by now."""
    config = folder.config()
    if not is_made(config):
        return folder
    base = config.get("base")
    if not base:
        raise ValueError(f"{folder.path} was made by a recipe and names no base; give a base")
    runs = Path(os.path.realpath(folder.path)).parent
    found, far = RunFolder(own_file(runs, Path(base).name)), far_base(folder.path)
    here = found.config().get("run_hash") if (found / "config.yaml").is_file() else None
    if here != config.get("base_hash", here) and far.is_file():  # bases of other folders have the same name
        found = RunFolder(far.read_text(encoding="utf-8"))
    if not (found / "config.yaml").is_file():
        raise ValueError(
            f"the base of {folder.path} is not beside it: there is no run at {found.path}; copy the folder "
            f"{shortened(base)} there, or train it again with the same settings"
        )
    if config.get("base_hash") not in (None, found.config().get("run_hash")):
        raise ValueError(
            f"{found.path} is not the base that {folder.path} was made from (run_hash differs); for "
            f"that base itself, give it"
        )
    return found
