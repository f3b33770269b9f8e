"""What a run imports, for the process that its own are forked from."""

import configs.cli  # noqa: F401
import lightning_modules.stage  # noqa: F401
import protocol.experiment  # noqa: F401
