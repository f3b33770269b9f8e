"""Write a run for other runtimes, without its closed heads, and check that it still says the same."""

import sys

from headgates.commands.export import main

if __name__ == "__main__":
    sys.exit(main())
