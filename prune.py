"""Make smaller models of a trained one, and measure them: several values make a comparison with intervals."""

import sys

from headgates.commands.prune import main

if __name__ == "__main__":
    sys.exit(main())
