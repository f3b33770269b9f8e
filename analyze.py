"""Say what the heads of a trained model do, and which of them survive pruning."""

import sys

from headgates.commands.analyze import main

if __name__ == "__main__":
    sys.exit(main())
