"""The base of `--base RUN`, and what a run on it takes from it: its model, vocabulary and languages, and its
text where none is named."""

from dataclasses import replace
from typing import Any

from headgates.configs.fields import to_dict
from headgates.configs.methods import method_of
from headgates.configs.schema import FitConfig, ModelConfig
from headgates.configs.source import is_foreign
from headgates.data.ranks import first
from headgates.models.progress import say
from headgates.records.folder import RunFolder, closes_heads
from headgates.records.source import find_run

TEXT = ("data", "src", "tgt")
VOCABULARY = ("text.vocab_size", "text.joint")  # others of text.* are of batches, and a stage's own
OF_THE_TASK = ("task", "encoder")


def open_base(config: FitConfig) -> RunFolder:
    """The base of --base. Raises ValueError unless it is a finished run without gates."""
    path = str(config.base)
    if is_foreign(path) and all(getattr(config, name) == getattr(FitConfig(), name) for name in TEXT):
        raise ValueError(f"--base {path} has no text of its own: give --data, --src and --tgt")
    folder = first(lambda: find_run(path, config))  # which writes what a foreign model becomes
    folder.check_finished()
    if closes_heads(folder.config()):
        what = "gates" if method_of(folder.config()) else "heads closed by scores"
        raise ValueError(
            f"{path} is a run with {what}; --base needs a base run, such as {folder.config().get('base')}"
        )
    if config.dynamics and sorted(folder.config().get("dynamics") or []) != sorted(config.dynamics):
        raise ValueError(
            f"--dynamics prunes a base while it trains, and {path} was trained without; leave one of them out"
        )
    return folder


def with_base_settings(config: FitConfig, base: RunFolder) -> FitConfig:
    """The configuration of a run on `base`, told what is ignored. Raises ValueError where a setting
    contradicts the base.

    A setting that has its default is taken as not given."""
    recorded = base.config()
    ours, theirs, default = map(flat, (to_dict(config), recorded, to_dict(FitConfig())))
    changed = {name: recorded[name] for name in OF_THE_TASK}
    shared = [name for name in theirs if name.startswith("model.")]
    if all(ours[name] == default[name] for name in TEXT):
        changed |= {name: recorded[name] for name in TEXT}
        changed["data_dir"] = config.data_dir or recorded["data_dir"]
    else:
        shared += ["src", "tgt"]
    for name in (*shared, *VOCABULARY, *OF_THE_TASK):
        if theirs.get(name) is not None and ours.get(name) not in (default.get(name), theirs[name]):
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{flag} {ours.get(name)} contradicts --base {base.path}, which has {theirs[name]}; leave "
                f"{flag} out, or train another base"
            )
    for name, value in ours.items():
        if name.startswith("train.") and value not in (default[name], theirs.get(name, value)):
            say(
                f"ignored: --{name.replace('_', '-')} {value}; {base.path} is trained already, with "
                f"{theirs[name]}"
            )
    model = ModelConfig(**recorded["model"])
    taken = {name.partition(".")[2]: theirs[name] for name in VOCABULARY if name in theirs}
    if config.text.max_length == default["text.max_length"]:  # a base of fewer positions has shorter pairs
        taken["max_length"] = min(config.text.max_length, model.max_positions - 1)
    return replace(config, model=model, text=replace(config.text, **taken), **changed)


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found
