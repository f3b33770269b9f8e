"""Finished runs as rows: the front against a definition written out, rows of made-up run folders, and what
cannot be compared."""

import hashlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headgates.records.folder import RunFolder, find_runs
from headgates.records.run_rows import finished_runs, front, run_rows

KINDS = {"enc-self": 7, "dec-self": 5, "cross": 11}  # 23 heads
POINTS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7).map(lambda n: n / 4)), max_size=23)


def measured(
    system: str, closed: int, bleu: float, *, reference: str = "base-continued", digest: str = "d1", **more
) -> dict:
    """A row of result.json."""
    return {
        "system": system,
        "heads_open": 23 - closed,
        "heads_total": 23,
        "heads_by_kind": {**KINDS, "cross": KINDS["cross"] - closed},
        "bleu": bleu,
        "chrf": bleu + 20,
        "chrf_signature": "nc:6|y",
        "bleu_ci95": [bleu - 1, bleu + 2],
        "bleu_difference": bleu - 31,
        "bleu_difference_ci95": [bleu - 32, bleu - 30],
        "bleu_p_value": 0.5,
        "bleu_p_sacrebleu": 0.25,
        "reference": reference,
        "parameters": 1013,
        "seconds": 17.0,
        "evaluation": {"search": {"beam": 5, "batch_tokens": 7}, "sentences": 3, "test_digest": digest},
        **more,
    }


def write(
    root,
    name: str,
    result_rows: list[dict],
    *,
    lam: float = 0.01,
    seed: int = 1,
    base: str | None = None,
    **more,
) -> RunFolder:
    folder = RunFolder(root / name)
    gate = "l0" if "-l0-" in name else "none"
    config = {
        "gate": gate,
        "lambda": lam,
        "seed": seed,
        "kinds": [*KINDS],
        "base": base and f"elsewhere/{base}",
    }
    hashes = {"run_hash": hashed(name), "base_hash": base and hashed(base)}
    systems = {row["system"]: {"weights": "best.pt", "xi": None} for row in result_rows}
    if base is not None:
        systems |= {"base": {"weights": f"../{base}/best.pt", "xi": None}}
        if gate == "l0":
            systems |= {
                "base-continued": {"weights": f"../{base.replace('none', 'continued')}/best.pt", "xi": None}
            }
    folder.write_text("config.yaml", yaml.safe_dump(config | hashes | more.pop("config", {})))
    folder.write_json("systems.json", systems)
    folder.write_json("result.json", {"rows": result_rows, "system": "l0", "finished": True, **more})
    return folder


def hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


@pytest.fixture
def sweep(tmp_path):
    """A base, the continued one, and three lambdas: the second beats the third, whose row of importance
    beats all."""
    root = tmp_path / "runs"
    bases = [measured("base", 0, 30.0), measured("base-continued", 0, 31.0)]
    write(root, "toy-none-s1", [measured("base", 0, 30.0, reference="base", bleu_difference=0.0)])
    write(
        root,
        "toy-continued-s1",
        [measured("base-continued", 0, 31.0, bleu_difference=0.0)],
        base="toy-none-s1",
    )
    for lam, closed, bleu, importance in (
        (0.003, 0, 30.5, 30.0),
        (0.01, 5, 30.25, 20.0),
        (0.03, 3, 29.0, 33.0),
    ):
        plain = (
            measured("importance", closed, importance)
            if closed
            else measured("importance", 0, 30.0, same_as="base")
        )
        write(
            root,
            f"toy-l0-{lam}-s1",
            [*bases, measured("l0", closed, bleu), plain],
            lam=lam,
            base="toy-none-s1",
        )
    return root


def values(table, column, **where):
    return [row[column] for row in table if all(row[name] == value for name, value in where.items())]


def rows(folders, **options):
    return run_rows(finished_runs(folders, **options))


# ---------------------------------------------------------------- the front


def beats(a, b) -> bool:
    return a[0] <= b[0] and a[1] >= b[1] and a != b


@given(POINTS)
def test_the_front_is_what_no_other_point_beats(points):
    assert front(points) == [
        i for i, point in enumerate(points) if not any(beats(other, point) for other in points)
    ]


# ---------------------------------------------------------------- rows


def test_every_system_of_every_run_is_a_row_and_a_base_is_one_however_many_runs_it_has(sweep):
    table = rows(find_runs(sweep))
    assert len(table) == 2 + 3 * 2
    assert values(table, "run", system="base") == ["toy-none-s1"]
    assert values(table, "run", system="base-continued") == ["toy-continued-s1"]
    assert values(table, "lambda") == [None, None, 0.003, 0.003, 0.01, 0.01, 0.03, 0.03]
    assert {row["base"] for row in table} == {"toy-none-s1"}
    assert values(table, "kinds", system="l0") == ["enc-self+dec-self+cross"] * 3


def test_a_row_has_the_numbers_of_the_run(sweep):
    (row,) = [
        row for row in rows(find_runs(sweep)) if row["run"] == "toy-l0-0.01-s1" and row["system"] == "l0"
    ]
    names = ("heads_open", "heads_total", "enc-self", "dec-self", "cross", "parameters", "seed", "lambda")
    assert [row[name] for name in names] == [18, 23, 7, 5, 6, 1013, 1, 0.01]
    names = ("bleu", "chrf", "bleu_low", "bleu_high", "difference", "difference_low", "difference_high")
    assert [row[name] for name in names] == [30.25, 50.25, 29.25, 32.25, -0.75, -1.75, 0.25]
    assert (row["p_value"], row["reference"], row["same_as"]) == (0.5, "base-continued", None)


def test_the_difference_of_a_base_is_against_the_better_base_where_a_run_knows_it(sweep):
    assert values(rows(find_runs(sweep)), "difference", system="base") == [-1.0]
    assert values(rows([RunFolder(sweep / "toy-none-s1")]), "difference", system="base") == [0.0]


def test_the_front_of_learned_gates_leaves_out_what_other_systems_can(sweep):
    table = rows(find_runs(sweep))
    assert values(table, "on_front", system="l0") == [1, 1, 0]
    assert values(table, "on_front", system="base") == [0]  # 30.5 with as many heads
    assert values(table, "on_front", system="base-continued") == [0]
    assert values(table, "on_front", system="importance") == [0, 0, 0]
    assert values(table, "on_front_all", system="importance") == [0, 0, 1]
    assert values(table, "on_front_all", system="l0") == [0, 1, 0]
    assert values(table, "on_front_all", system="base-continued") == [0]  # 33.0 with fewer


def test_each_base_has_a_front_of_its_own(sweep):
    worse = [measured("base", 0, 10.0), measured("l0", 2, 9.0)]
    write(sweep, "toy-none-s2", worse[:1], seed=2)
    write(sweep, "toy-l0-0.01-s2", worse, seed=2, base="toy-none-s2")
    table = rows(find_runs(sweep))
    assert values(table, "on_front", base="toy-none-s2") == [1, 1]
    assert values(table, "on_front", base="toy-none-s1", system="l0") == [1, 1, 0]


def test_bases_of_one_name_in_two_folders_are_told_apart(sweep, tmp_path):
    other = write(
        tmp_path / "others",
        "toy-l0-0.01-s1",
        [measured("l0", 1, 5.0)],
        base="toy-none-s1",
        config={"base_hash": "0123456789ab"},
    )
    table = rows([*find_runs(sweep), other])
    assert sorted({row["base"] for row in table}) == [
        "toy-none-s1-012345",
        f"toy-none-s1-{hashed('toy-none-s1')[:6]}",
    ]


def test_the_seed_of_a_base_is_its_own(sweep):
    write(
        sweep,
        "toy-l0-0.1-s7",
        [measured("base", 0, 30.0), measured("l0", 1, 28.0)],
        seed=7,
        base="toy-none-s1",
    )
    table = rows([RunFolder(sweep / "toy-l0-0.1-s7")])
    assert (values(table, "seed", system="base"), values(table, "seed", system="l0")) == ([1], [7])


# ---------------------------------------------------------------- what is left out, and what is refused


def unfinished(folder: RunFolder) -> None:
    folder.write_json("result.json", folder.read_json("result.json") | {"finished": False})


BROKEN = {
    "not finished; the command in its command.txt with --resume": unfinished,
    "result.json is broken": lambda folder: folder.write_text("result.json", '{"rows": ['),
    "the row of l0 has no intervals": lambda folder: folder.write_json(
        "result.json", {"finished": True, "rows": [without_interval()]}
    ),
    "is not finished": lambda folder: (folder / "result.json").unlink(),
}


def without_interval() -> dict:
    row = measured("l0", 2, 30.0)
    del row["bleu_ci95"]
    return row


@pytest.mark.parametrize("said", BROKEN)
def test_a_run_that_cannot_be_used_is_left_out_with_one_line(sweep, said):
    folder = RunFolder(sweep / "toy-l0-0.01-s1")
    BROKEN[said](folder)
    lines: list[str] = []
    table = rows(find_runs(sweep), report=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("left out: ")
    assert said in lines[0]
    assert "toy-l0-0.01-s1" in lines[0]
    assert "\n" not in lines[0]
    assert "toy-l0-0.01-s1" not in values(table, "run")


def test_no_finished_run_is_an_error_that_says_what_to_do(sweep):
    folder = RunFolder(sweep / "toy-l0-0.01-s1")
    unfinished(folder)
    with pytest.raises(ValueError, match=r"none of the 1 runs given is finished.*--resume"):
        rows([folder], report=lambda line: None)


def test_runs_on_different_test_sets_are_refused_by_name(sweep):
    write(sweep, "toy-l0-0.5-s1", [measured("l0", 2, 9.0, digest="d2")], lam=0.5, base="toy-none-s1")
    with pytest.raises(ValueError, match=r"different test sets.*d1: .*d2: toy-l0-0\.5-s1") as error:
        rows(find_runs(sweep))
    assert "\n" not in str(error.value)


def test_another_beam_is_said_and_another_batch_is_not(sweep):
    lines: list[str] = []
    for beam, batch, expected in ((5, 11, 0), (1, 7, 1)):
        search = {"search": {"beam": beam, "batch_tokens": batch}, "sentences": 3, "test_digest": "d1"}
        write(
            sweep, "toy-l0-0.5-s1", [measured("l0", 2, 9.0, evaluation=search)], lam=0.5, base="toy-none-s1"
        )
        rows(find_runs(sweep), report=lines.append)
        assert len(lines) == expected
