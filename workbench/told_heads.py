"""Numbers of heads that stay open, against the heads that there are, before anything is trained."""

from headgates.configs.heads_per_kind import check_budget, parse_budget
from headgates.configs.schema import FitConfig
from headgates.tasks.base import Task


def check_told_heads(config: FitConfig, task: Task) -> None:
    """Raises ValueError where more heads are to stay open than the gated kinds have, unless only the model
    itself will tell."""
    totals = task.heads_by_kind(config)
    if config.heads is None or totals is None:
        return
    gated = {kind: totals[kind] for kind in config.kinds}
    if config.heads_per_kind:
        check_budget(parse_budget(config.heads_per_kind), gated)
    if config.heads > sum(gated.values()):
        raise ValueError(
            f"--heads: cannot keep {config.heads} of {sum(gated.values())} heads of {', '.join(gated)}; give a smaller number"
        )
