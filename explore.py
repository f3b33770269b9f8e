"""Type a sentence, close heads, and see what a trained model says then: a page of this machine alone."""

import sys

from headgates.commands.explore import main

if __name__ == "__main__":
    sys.exit(main())
