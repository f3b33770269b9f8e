"""Sweep files: ours are what W&B takes, and what is wrong with a file is one line that names the key."""

from pathlib import Path

import pytest
import wandb
import yaml

from headgates.configs.metrics import known_metrics
from headgates.workbench.sweeps.sweep_file import (
    LETTERS_REFUSED,
    LONGEST_PROJECT,
    check_project,
    parse_sweep,
    read_sweep,
)

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "configs/sweeps").glob("*.yaml"))
COMMAND = ["${env}", "${interpreter}", "${program}", "--resume", "--unique", "--logger", "wandb", "${args}"]


def sweep_of(text: str, **parameters):
    """The sweep of YAML lines; `parameters` are added to them, each as it stands in YAML."""
    content = yaml.safe_load(text) if text else {"program": "fit.py", "method": "random", "run_cap": 3}
    content.setdefault(
        "parameters", {name.replace("__", "."): yaml.safe_load(spec) for name, spec in parameters.items()}
    )
    return parse_sweep(content, Path("here.yaml"))


# ---------------------------------------------------------------- the files that come with the project


def test_the_three_sweeps_are_there():
    assert [path.stem for path in FILES] == ["compare", "kinds", "lambda"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_ours_runs_fit_with_agents_that_resume_and_log(path):
    sweep = read_sweep(path)
    assert (sweep.content["program"], list(sweep.command)) == ("fit.py", COMMAND)
    assert sweep.content["metric"] == {"name": "bleu", "goal": "maximize"}
    assert sweep.content["metric"]["name"] in known_metrics()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_ours_says_how_to_sweep_multi30k_and_it_works(path):
    """The three lines that its comment says to add."""
    text = path.read_text()
    added = "  config:\n    value: configs/multi30k.yaml\n"
    assert "".join(f"# {line}\n" for line in added.splitlines()) in text
    before, after = text.split("\nparameters:\n")
    sweep = parse_sweep(yaml.safe_load(f"{before}\nparameters:\n{added}{after}"), path)
    assert sweep.parameters[0].name == "config"


def test_heads_match_in_compare_because_one_trial_has_all_systems():
    systems = read_sweep(ROOT / "configs/sweeps/compare.yaml").content["parameters"]["systems"]
    assert set(systems["value"].split(",")) > {
        "l0",
        "greedy-finetuned",
        "random-finetuned",
        "weight-norm-finetuned",
    }
    assert "values" not in systems


def test_only_what_differs_from_trial_to_trial_varies():
    assert read_sweep(ROOT / "configs/sweeps/lambda.yaml").varied_parameters == ["lambda", "seed"]
    assert read_sweep(ROOT / "configs/sweeps/kinds.yaml").varied_parameters == ["lambda", "kinds"]


# ---------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("spec", "distribution", "keys"),
    [
        ("{value: 3}", "constant", {"value": 3}),
        ("{values: [3, 5]}", "categorical", {"values": [3, 5]}),
        (
            "{values: [3, 5], probabilities: [0.25, 0.75]}",
            "categorical_w_probabilities",
            {"values": [3, 5], "probabilities": [0.25, 0.75]},
        ),
        ("{min: 3, max: 5}", "int_uniform", {"min": 3, "max": 5}),
        ("{min: 3, max: 5.0}", "uniform", {"min": 3, "max": 5.0}),
        ("{min: 3, max: 5, distribution: uniform}", "uniform", {"min": 3, "max": 5}),
        ("{distribution: q_uniform, min: 3, max: 5}", "q_uniform", {"min": 3, "max": 5, "q": 1.0}),
        ("{distribution: normal, sigma: 2}", "normal", {"mu": 0.0, "sigma": 2}),
    ],
)
def test_a_parameter_has_the_distribution_and_the_defaults_that_wandb_gives_it(spec, distribution, keys):
    (parameter,) = sweep_of("", seed=spec).parameters
    assert (parameter.distribution, parameter.keys) == (distribution, keys)


@pytest.mark.parametrize(
    ("name", "spec", "parts"),
    [
        ("lamda", "{value: 1}", ["parameters.lamda: fit.py has no flag --lamda (did you mean 'lambda'?)"]),
        (
            "train",
            "{parameters: {epochs: {values: [1, 2]}}}",
            ["parameters.train: nested", "train.epochs: ..."],
        ),
        ("runs", "{value: here}", ["parameters.runs: not a property of a trial", "sweep.py"]),
        ("name", "{value: here}", ["parameters.name: not a property of a trial"]),
        ("lambda", "0.1", ["parameters.lambda: expected `value: ...`", "got 0.1"]),
        ("lambda", "{}", ["parameters.lambda: expected value, values, min and max, or a distribution"]),
        ("lambda", "{valeus: [1]}", ["parameters.lambda", "got valeus"]),
        ("lambda", "{value: null}", ["parameters.lambda", "null cannot be given on a command line"]),
        ("lambda", "{values: [0.1, null]}", ["parameters.lambda", "got None"]),
        ("lambda", "{values: [{a: 1}]}", ["parameters.lambda", "got {'a': 1}"]),
        ("lambda", "{values: []}", ["parameters.lambda.values: expected a list with at least one value"]),
        ("lambda", "{values: 0.1}", ["parameters.lambda.values", "got 0.1"]),
        (
            "lambda",
            "{values: [1, 2], probabilities: [1]}",
            ["parameters.lambda.probabilities: expected 2 numbers from 0 on"],
        ),
        (
            "lambda",
            "{values: [1, 2], probabilities: [0.5, 0.4]}",
            ["parameters.lambda.probabilities", "add up to 1"],
        ),
        (
            "lambda",
            "{values: [1, 2], probabilities: [1.5, -0.5]}",
            ["parameters.lambda.probabilities", "from 0 on"],
        ),
        ("lambda", "{values: [1], q: 1}", ["distribution categorical takes values, got q"]),
        (
            "lambda",
            "{min: 0.1}",
            ["parameters.lambda: distribution uniform needs min and max; max is missing"],
        ),
        ("lambda", "{min: 0.2, max: 0.1}", ["parameters.lambda: min must be below max, got 0.2 and 0.1"]),
        (
            "lambda",
            "{min: 2e-3, max: 0.1}",
            ["parameters.lambda.min: expected a number, got '2e-3'", "as in 2.0e-3"],
        ),
        ("lambda", "{min: .nan, max: 0.1}", ["parameters.lambda.min: expected a number, got nan"]),
        ("lambda", "{min: true, max: 2}", ["parameters.lambda.min: expected a number, got True"]),
        (
            "seed",
            "{distribution: int_uniform, min: 1, max: 2.5}",
            ["parameters.seed.max: expected a whole number, got 2.5"],
        ),
        (
            "lambda",
            "{distribution: log_unifrom, min: 1, max: 2}",
            ["no 'log_unifrom' in W&B", "did you mean"],
        ),
        (
            "lambda",
            "{distribution: log_uniform_values, min: 0, max: 2}",
            ["lambda.min: expected a number above 0, got 0"],
        ),
        (
            "lambda",
            "{distribution: log_uniform, min: 0, max: 1000}",
            ["log_uniform is not supported", "take log_uniform_values"],
        ),
        (
            "lambda",
            "{distribution: q_uniform, min: 0, max: 2, q: 0}",
            ["parameters.lambda.q: expected a number above 0, got 0"],
        ),
        (
            "lambda",
            "{distribution: normal, sigma: -1}",
            ["parameters.lambda.sigma: expected a number above 0, got -1"],
        ),
        (
            "lambda",
            "{distribution: beta, a: 0}",
            ["distribution beta is not supported locally; take uniform, or list the values"],
        ),
        (
            "lambda",
            "{distribution: q_log_normal}",
            ["distribution q_log_normal is not supported locally; take normal"],
        ),
    ],
)
def test_a_wrong_parameter_is_named_with_what_was_expected(name, spec, parts):
    with pytest.raises(ValueError) as error:
        sweep_of("", **{name: spec})
    assert [part for part in parts if part not in str(error.value)] == [], str(error.value)
    assert "\n" not in str(error.value)


LAUGHS = [
    "a0: &a0 [lol, lol, lol]",
    *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)),
]  # billions in 1 kB


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "\n".join([*LAUGHS, "parameters: *a29"]),
            r"its aliases \(\*name\) stand for more than 1,048,576 values",
        ),
        ("parameters: &a {seed: *a}", r"its aliases \(\*name\) stand for more than"),
        ("parameters: " + "[" * 4000 + "]" * 4000, "nested too deep"),
    ],
    ids=["many", "itself", "deep"],
)
def test_a_file_that_grows_without_end_is_one_line(tmp_path, text, error):
    (tmp_path / "laughs.yaml").write_text("program: fit.py\nmethod: grid\n" + text)
    with pytest.raises(ValueError, match=rf"laughs\.yaml: .*{error}") as refused:
        read_sweep(tmp_path / "laughs.yaml")
    assert "\n" not in str(refused.value)


def test_an_alias_is_what_it_stands_for(tmp_path):
    text = "program: fit.py\nmethod: grid\nparameters: {seed: &some {values: [1, 2]}, finetune.epochs: *some}"
    (tmp_path / "a.yaml").write_text(text)
    assert [parameter.keys["values"] for parameter in read_sweep(tmp_path / "a.yaml").parameters] == [
        [1, 2],
        [1, 2],
    ]


# ---------------------------------------------------------------- the rest of the file


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("methd: grid", ["unknown key methd (did you mean 'method'?)"]),
        (
            "early_terminate: {type: hyperband, min_iter: 3}",
            ["early_terminate is not supported locally", "wandb agent"],
        ),
        ("controller: {type: local}", ["controller is not supported locally"]),
        ("scheduler: {engine: optuna}", ["scheduler is not supported locally"]),
        ("metrics: [{name: bleu}, {name: heads_open}]", ["metrics is not supported locally"]),
        ("job: a", ["job is not supported locally"]),
        ("method: bayes", ["method bayes: supported locally are grid and random; wandb agent runs it"]),
        ("method: custom", ["method custom: supported locally are grid and random"]),
        ("method: randon", ["method: expected one of grid, random, got 'randon' (did you mean 'random'?)"]),
        ("program: train.py", ["program: expected fit.py", "got 'train.py'"]),
        ("program: null", ["program is missing"]),
        ("run_cap: 0", ["run_cap: expected a whole number above 0, got 0"]),
        ("run_cap: many", ["run_cap: expected a whole number above 0, got 'many'"]),
        ("metric: bleu", ["metric: expected `name: bleu` and `goal: maximize`, got 'bleu'"]),
        ("metric: {name: belu}", ["metric.name: no run logs 'belu' (did you mean 'bleu'?)"]),
        ("metric: {name: xyz}", ["metric.name: no run logs 'xyz'; configs/metrics.py lists them"]),
        (
            "metric: {name: bleu, goal: maximise}",
            ["metric.goal: expected one of minimize, maximize", "did you mean 'maximize'?"],
        ),
        ("metric: {name: bleu, target: 30}", ["metric.target is not supported locally"]),
        ("metric: {name: bleu, impute: worst}", ["metric.impute is not supported locally"]),
        (
            "metric: {name: bleu, gaol: maximize}",
            ["metric: expected one of name, goal", "did you mean 'goal'?"],
        ),
        ("project: a/b", ["project: W&B takes no", "got 'a/b'; replace /"]),
        ("parameters: []", ["parameters: expected"]),
        ("parameters: {}", ["parameters: expected"]),
        ("command: python fit.py", ["command: expected a list of words"]),
        ("command: ['${interpreter}', fit.py, '${args}']", ["command: expected ${program} once"]),
        (
            "command: [bash, '${program}']",
            ["command: expected ${env}, if wanted, and one of ${interpreter}, python", "got bash"],
        ),
        (
            "command: [python, '${program}', '${arg}']",
            ["command: ${arg} gives fit.py no flags; take ${args} (did you mean 'args'?)"],
        ),
    ],
)
def test_a_wrong_key_is_named_with_what_to_do(tmp_path, change, parts):
    content = {
        "program": "fit.py",
        "method": "grid",
        "parameters": {"lambda": {"value": 0.1}},
    } | yaml.safe_load(change)
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError) as error:
        read_sweep(path)
    assert [part for part in [f"{path}: ", *parts] if part not in str(error.value)] == [], str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "spec", ["{min: 0.1, max: 0.2}", "{distribution: normal}", "{values: [1, 2], probabilities: [0.5, 0.5]}"]
)
def test_a_grid_refuses_by_name_what_has_no_end_or_no_order(spec):
    with pytest.raises(
        ValueError, match=r"here.yaml: parameters.lambda: method grid takes constant, .*q_uniform, got \w+"
    ):
        sweep_of("{program: fit.py, method: grid}", **{"lambda": spec}).draws(seed=1, count=0)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["program is missing; a sweep file needs program, method and parameters"]),
        ("- a\n", ["expected `key: value` lines, got list"]),
        ("method: [grid\nprogram: fit.py\n", ["not YAML", "line 2"]),
        ("method: grid\nprogram: fit.py\n", ["parameters is missing"]),
    ],
)
def test_a_file_that_is_no_sweep_is_named(tmp_path, text, parts):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_sweep(path)
    assert [part for part in [str(path), *parts] if part not in str(error.value)] == [], str(error.value)


def test_a_file_that_is_not_there_names_the_nearest(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(
        ValueError, match=r"no sweep file at configs/sweeps/lamda.yaml \(did you mean 'lambda'"
    ):
        read_sweep("configs/sweeps/lamda.yaml")
    with pytest.raises(ValueError, match=r"no sweep file at kind \(did you mean 'kinds'"):
        read_sweep("kind")


def test_a_file_that_is_not_text_or_not_a_file_is_named(tmp_path):
    (tmp_path / "own.yaml").write_bytes(b"method: \xff\n")
    for path, reason in ((tmp_path / "own.yaml", "expected UTF-8 text"), (tmp_path, "Is a directory")):
        with pytest.raises(ValueError, match=f"{path}: {reason}"):
            read_sweep(path)


def test_wandb_refuses_the_projects_that_we_refuse():
    longest = "a" * LONGEST_PROJECT
    for name in ["head gates", "a-b_c.d", longest]:
        check_project(name)
        wandb.Settings(project=name)
    for name in [*(f"a{letter}b" for letter in LETTERS_REFUSED), longest + "a"]:
        with pytest.raises(ValueError, match="project: W&B takes"):
            check_project(name)
        with pytest.raises(Exception, match="Invalid project name"):
            wandb.Settings(project=name)
