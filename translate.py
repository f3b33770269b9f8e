"""Translate text with any run: lines in, as many lines out, in the same order, for a stream of any length."""

import sys

from headgates.commands.translate import main

if __name__ == "__main__":
    sys.exit(main())
