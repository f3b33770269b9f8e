"""Train a base model, make a smaller one of it, and compare that with the usual rivals."""

import sys

from headgates.commands.fit import main

if __name__ == "__main__":
    sys.exit(main())
