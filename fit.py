"""Train a base translation model, put learned gates on its attention heads, and compare with pruning
pruning."""

import sys

from headgates.commands.fit import main

if __name__ == "__main__":
    sys.exit(main())
