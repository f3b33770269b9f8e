"""Compare every method on one base: the same heads, text and steps; one figure, one table, and what they say
in plain words."""

import sys

from headgates.commands.compare import main

if __name__ == "__main__":
    sys.exit(main())
