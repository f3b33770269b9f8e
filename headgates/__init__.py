"""headgates: which parts of a Transformer does a model need, how few are enough, and what do the parts that
stay do?

Every room is imported under this one name, `from headgates.gates import attach`, in a checkout and after `pip
install` alike: in a checkout the rooms lie beside this folder, so the checkout's root joins the package's
path.
"""

from pathlib import Path

__version__ = "0.2.0"

_root = Path(__file__).resolve().parents[1]
if (_root / "gates" / "hard_concrete.py").is_file():
    __path__.append(str(_root))
