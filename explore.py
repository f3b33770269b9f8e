"""Type a sentence, shut heads, and see what a trained model does then: a page of this machine alone."""

import sys

from headgates.commands.explore import main

if __name__ == "__main__":
    sys.exit(main())
