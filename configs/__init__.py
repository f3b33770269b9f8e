"""Configuration: frozen dataclasses (`schema.py`), the command line made from them (`cli.py`), one YAML for
each full run.

Every script imports this first, so that outside the environment it ends with one line that says where the
environment is."""

import sys
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("yaml", "torch", "pytorch_lightning", "sentencepiece", "sacrebleu")

if missing := [package for package in NEEDED if find_spec(package) is None]:
    script, packages = Path(sys.argv[0]).name or "headgates", ", ".join(missing)
    cure = "in the checkout pip install '.[all]', or `make install`, then `source .venv/bin/activate`"
    sys.exit(f"{script}: error: this Python ({sys.executable}) lacks {packages}; {cure}")
