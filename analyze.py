"""Say what the heads of a trained model do: confidence, relevance, positions, syntax, rare words, alignment;
and which of them survive."""

import sys

from headgates.commands.analyze import main

if __name__ == "__main__":
    sys.exit(main())
