"""What a run imports, for the process that its own are forked from."""

import headgates.configs.cli  # noqa: F401
import headgates.lightning_modules.stage  # noqa: F401
import headgates.workbench.stages  # noqa: F401
