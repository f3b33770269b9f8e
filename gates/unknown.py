"""Attentions that no site rule knows: they are found by how they are named or built, and named with the line
to add."""

from torch import nn

from .rules import known_rule

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
_OUT = (
    "out_proj",
    "o_proj",
    "c_proj",
    "out_lin",
    "wo",
    "o",
    "proj",
    "dense",
    "fc_out",
    "to_out",
)  # W_O as others call it


def unknown_attentions(model: nn.Module) -> list[nn.Module]:
    """One attention of every class that has no rule, among those neither inside nor around an attention that
    has one."""
    modules = dict(model.named_modules())
    rules = ((path, known_rule(module)) for path, module in modules.items())
    known = [path for path, rule in rules if rule is not None and not rule.inner]
    found: dict[type, nn.Module] = {}
    for path, module in modules.items():
        around = not path or any(other.startswith(f"{path}.") for other in known)
        inside = any(f"{path}.".startswith(f"{other}.") for other in known)
        named = "attention" in type(module).__name__.lower()
        if not around and not inside and (named or (heads_name(module) and output_name(module))):
            found.setdefault(type(module), module)
    return list(found.values())


def heads_name(module: nn.Module) -> str:
    return next((name for name in _HEADS if isinstance(getattr(module, name, None), int)), "")


def output_name(module: nn.Module) -> str:
    children = dict(module.named_children())
    return next((name for name in _OUT if hasattr(children.get(name), "weight")), "")


def line_to_add(module: nn.Module) -> str:
    """The line of SITE_RULES for this class, as far as its attributes tell; dots where they do not."""
    out = output_name(module)
    words = [f'heads="{heads_name(module) or "..."}"', 'mode="hook"', f'out="{out or "..."}"']
    if hasattr(getattr(module, out, None), "nf"):  # Conv1D
        words.append("transposed=True")
    return f'SITE_RULES["{type(module).__name__}"] = SiteRule({", ".join(words)})'
