"""headgates: which parts of a Transformer does a model need, how few are enough, and what do the parts that
stay do?

Every room is imported under this one name, `from headgates.gates import attach`, in a checkout and after `pip
install` alike: the rooms lie beside this folder, and this folder holds a link to each of them.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

__version__ = "0.3.0"

if not Path(__file__).with_name("gates").is_dir():
    raise ImportError(
        "this copy of headgates has lost the links to its rooms: headgates/gates is no folder. Clone it with "
        "git -c core.symlinks=true clone ..., and install that"
    )

# ---------------------------------------------------------------- the face: import headgates as hg

if TYPE_CHECKING:
    from headgates import hf as hf
    from headgates import lightning as lightning
    from headgates.analysis.scores.exact_effects import exact_effects as exact_effects
    from headgates.analysis.scores.importance import importance as importance
    from headgates.analysis.scores.importance import raw_importance as raw_importance
    from headgates.gates import HeadMap as HeadMap
    from headgates.gates import Subnet as Subnet
    from headgates.gates import attach as attach
    from headgates.gates import detach as detach
    from headgates.gates import load_pruned as load_pruned
    from headgates.gates import reconstruct as reconstruct
    from headgates.gates import remove as remove
    from headgates.gates import save_pruned as save_pruned
    from headgates.planning.prune import prune as prune
else:
    # name -> its module, which is imported, and torch with it, when the name is first asked for. The same
    # names are above for type checkers.
    FACE = {
        **dict.fromkeys(("attach", "detach", "remove", "reconstruct"), "headgates.gates"),
        **dict.fromkeys(("save_pruned", "load_pruned", "HeadMap", "Subnet"), "headgates.gates"),
        **dict.fromkeys(("importance", "raw_importance"), "headgates.analysis.scores.importance"),
        "exact_effects": "headgates.analysis.scores.exact_effects",
        "prune": "headgates.planning.prune",
    }

    TRAINERS = ("hf", "lightning")  # modules with a callback each, which need another library

    def __getattr__(name):
        if name in TRAINERS:
            return import_module(f"headgates.{name}")
        if name not in FACE:
            known = ", ".join([*FACE, *TRAINERS])
            raise AttributeError(f"module 'headgates' has no attribute {name!r}; it has {known}")
        return getattr(import_module(FACE[name]), name)

    def __dir__():
        return [*globals(), *FACE, *TRAINERS]
