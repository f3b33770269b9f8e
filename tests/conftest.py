"""What holds for every test; the worlds they share are in tests/worlds."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[1]
WORLDS = [
    "small_model",
    "searched_model",
    "hugging_face",
    "tiny_language",
    "translators",
    "unpruned_model",
    "runs",
    "tiny_encoder",
    "finished_runs",
    "made_runs",
]
pytest_plugins = [f"tests.worlds.{name}" for name in WORLDS]


# `make check` runs the rooms below training, without the files that train, parse or compile.
FAST = ("analysis", "configs", "data", "gates", "models", "test_architecture.py")
SLOW_FILES = {
    "test_parses.py",
    "test_toy_corpus.py",
    "test_examples.py",
    "test_families.py",
    "test_removed.py",
    "test_ablated_search.py",
}
SLOW_FIXTURES = {"trained", "make_dense"}
# Files that take a worker longest go to it first, so that all workers end together.
LONGEST = [
    "tests/test_many_processes.py",
    "tests/pruning/test_make.py",
    "tests/test_same_answers.py",
    "tests/test_analyze.py",
    "tests/test_fake_gpu.py",
]


def is_slow_file(name: str) -> bool:
    return name.split("/")[1] not in FAST or name.rsplit("/")[-1] in SLOW_FILES


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without the slow tests, what they import is not imported either."""
    if config.getoption("markexpr") != "not slow" or not collection_path.is_file():
        return None
    return is_slow_file(collection_path.relative_to(config.rootpath).as_posix()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow_file(item.nodeid.split("::")[0]) or SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    files = {item: item.nodeid.split("::")[0] for item in items}
    items.sort(key=lambda item: LONGEST.index(files[item]) if files[item] in LONGEST else len(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def locks_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test waits for a run that its user is making: locks lie in a cache folder of the session's. What
    others keep there stays found."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in {
            "MPLCONFIGDIR": "matplotlib",
            "PLAYWRIGHT_BROWSERS_PATH": "ms-playwright",
            "HF_HOME": "huggingface",
        }.items():
            if name not in os.environ and (cache / folder).is_dir():
                patch.setenv(name, str(cache / folder))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def same_number_of_threads_in_processes() -> Iterator[None]:
    """Sums are the same on every machine only with the same number of threads: one here, and one in every
    process that a test starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(autouse=True, scope="session")
def nothing_waits_for_the_disk() -> Iterator[None]:
    """What a killed process has written stays without it; the machine is not switched off here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def same_number_of_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def called(monkeypatch, capsys) -> Callable[[ModuleType], Callable[..., tuple[int, str, str]]]:
    """called(script)(words...) -> (exit code, stdout, stderr) of a root script, in this process. Its figures
    are made and not rendered; `trained` and the tests of figures render them."""
    for name in ("savefig", "draw_without_rendering"):
        monkeypatch.setattr(f"headgates.report.drawing.Figure.{name}", lambda *_, **__: None)

    def of(script: ModuleType) -> Callable[..., tuple[int, str, str]]:
        def run(*words: object) -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "argv", [str(ROOT / f"{script.__name__}.py"), *map(str, words)])
            try:
                code = script.main()
            except SystemExit as stop:
                code = int(stop.code or 0)
            captured = capsys.readouterr()
            return code, captured.out, captured.err

        return run

    return of
