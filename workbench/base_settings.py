"""The base of `--base RUN`, and what a run on it takes from it: its model, vocabulary and languages, and its
text where none is named."""

from dataclasses import fields, replace
from typing import Any

from headgates.configs.fields import to_dict
from headgates.configs.methods import method_of
from headgates.configs.schema import FitConfig, ModelConfig
from headgates.configs.source import is_foreign
from headgates.data.ranks import first
from headgates.models.progress import say
from headgates.workbench.folder import RunFolder, closes_heads
from headgates.workbench.source import find_run

TEXT = ("data", "src", "tgt")
VOCABULARY = (
    "vocab_size",
    "joint",
)  # the other settings of text.* are of batches, and may be another stage's own


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
    ours, theirs, default = to_dict(config), base.config(), to_dict(FitConfig())
    model, text = theirs.get("model", {}), theirs.get("text", {})
    for group, names in {"model": tuple(model), "text": VOCABULARY}.items():
        for name in names:
            check_setting(
                f"{group}.{name}",
                ours[group].get(name),
                theirs.get(group, {}).get(name),
                default[group].get(name),
                base,
            )
    changed: dict[str, Any] = {}
    if all(ours[name] == default[name] for name in TEXT):
        changed = {name: theirs[name] for name in TEXT if name in theirs}
        changed["data_dir"] = config.data_dir or theirs.get("data_dir")
    else:
        for name in ("src", "tgt"):
            check_setting(name, ours[name], theirs.get(name), default[name], base)
    for name, value in ours["train"].items():
        if value != default["train"][name] and value != theirs.get("train", {}).get(name, value):
            say(
                f"ignored: --train.{name.replace('_', '-')} {value}; {base.path} is trained already, with "
                f"{theirs['train'][name]}"
            )
    for name in ("task", "encoder"):
        check_setting(name, ours[name], theirs.get(name, default[name]), default[name], base)
        changed[name] = theirs.get(name, default[name])
    known = {each.name for each in fields(ModelConfig)}
    taken = {name: text[name] for name in VOCABULARY if name in text}
    new_model = ModelConfig(**{name: value for name, value in model.items() if name in known})
    if (
        ours["text"]["max_length"] == default["text"]["max_length"]
    ):  # a base of fewer positions has shorter pairs
        taken["max_length"] = min(default["text"]["max_length"], new_model.max_positions - 1)
    return replace(config, model=new_model, text=replace(config.text, **taken), **changed)


def check_setting(name: str, ours: Any, theirs: Any, default: Any, base: RunFolder) -> None:
    """Raises ValueError where ours is neither the default nor the base's."""
    if theirs is not None and ours not in (default, theirs):
        flag = f"--{name.replace('_', '-')}"
        raise ValueError(
            f"{flag} {ours} contradicts --base {base.path}, which has {theirs}; leave {flag} out, or train "
            f"another base"
        )
