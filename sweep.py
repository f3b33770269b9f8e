"""Run a sweep file of Weights & Biases on this machine, without an account; draw BLEU against heads; make a
W&B dashboard."""

import sys

from headgates.commands.sweep import main

if __name__ == "__main__":
    sys.exit(main())
