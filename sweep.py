"""Run a sweep file on this machine, without an account, or make a Weights & Biases dashboard."""

import sys

from headgates.commands.sweep import main

if __name__ == "__main__":
    sys.exit(main())
