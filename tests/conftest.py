"""What holds for every test; the worlds they share are in tests/worlds."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

WORLDS = [
    "small_model",
    "hugging_face",
    "tiny_language",
    "translators",
    "dense_model",
    "runs",
    "planted",
    "tiny_encoder",
]
pytest_plugins = [f"tests.worlds.{name}" for name in WORLDS]


# What `make check` leaves to `make test`: tests that train runs, export, draw, start processes or a browser,
# or ask for what does.
SLOW_FILES = (
    "tests/analysis/test_parses.py", "tests/analysis/test_planted.py", "tests/analysis/test_special_tokens.py", "tests/benchmarks/",
    "tests/data/test_toy_corpus.py", "tests/gates/test_compiled.py", "tests/gates/test_examples.py", "tests/gates/test_families.py",
    "tests/gates/test_repair_models.py",
    "tests/lightning_modules/", "tests/models/test_removed.py", "tests/models/test_fairseq.py", "tests/models/test_huggingface.py",
    "tests/models/formats/", "tests/models/test_special_tokens.py", "tests/protocol/test_name", "tests/protocol/test_experiment.py",
    "tests/protocol/test_comparison.py",
    "tests/protocol/test_finished_runs.py", "tests/protocol/test_s",
    "tests/pruning/test_ablated_search.py", "tests/pruning/test_ranks.py",
    "tests/pruning/test_scores_contract.py", "tests/pruning/test_special_tokens.py",
    "tests/report/test_bleu_heads", "tests/report/test_compare_fi", "tests/report/test_page.py", "tests/report/test_hostile_page.py",
    "tests/report/test_pruning_figures.py", "tests/speed/",
    "tests/sweeps/test_command.py", "tests/sweeps/test_jobs.py", "tests/tasks/", "tests/test_",
)  # fmt: skip
FAST_FILES = ("tests/test_architecture.py", "tests/lightning_modules/test_schedules.py")
SLOW_FIXTURES = {"trained", "make_dense"}


def is_slow_file(name: str) -> bool:
    return name.startswith(SLOW_FILES) and not name.startswith(FAST_FILES)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without the slow tests, what they import is not imported either."""
    if config.getoption("markexpr") != "not slow" or not collection_path.is_file():
        return None
    return is_slow_file(collection_path.relative_to(config.rootpath).as_posix()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow_file(item.nodeid) or SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")


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


@pytest.fixture(autouse=True)
def same_number_of_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def called(monkeypatch, capsys) -> Callable[[ModuleType], Callable[..., tuple[int, str, str]]]:
    """called(script)(words...) -> (exit code, stdout, stderr) of a root script, in this process."""

    def of(script: ModuleType) -> Callable[..., tuple[int, str, str]]:
        def run(*words: object) -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, words)])
            try:
                code = script.main()
            except SystemExit as stop:
                code = int(stop.code or 0)
            captured = capsys.readouterr()
            return code, captured.out, captured.err

        return run

    return of
