"""Close attention heads of a trained model without training: importance, order, curve; ablations; Michel et
al. 2019."""

import sys

from headgates.commands.prune import main

if __name__ == "__main__":
    sys.exit(main())
