"""When a stage of training counts as converged: what its record says, and what tables say of it."""

FALL, EPOCHS = 0.005, 4


def is_converged(losses: list[float]) -> bool | None:
    """Whether the full-validation loss fell by less than 0.5% over the last 4 epochs (best so far against
    best then). losses: of the epochs whose weights may be chosen, one after the other. None where they are
    fewer than five, too few to say."""
    if len(losses) <= EPOCHS:
        return None
    return min(losses) > min(losses[:-EPOCHS]) * (1 - FALL)
