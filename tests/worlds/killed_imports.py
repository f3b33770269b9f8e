"""What a run imports, for the process that its own are forked from."""

import headgates.configs.cli
import headgates.lightning_modules.stage
import headgates.pruning.make  # noqa: F401
