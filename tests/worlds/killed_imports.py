"""What a run imports, for the process that its own are forked from."""

import matplotlib.pyplot  # noqa: F401

import configs.cli  # noqa: F401
import lightning_modules.stage  # noqa: F401
import protocol.experiment  # noqa: F401
import report.fill  # noqa: F401
