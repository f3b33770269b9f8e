"""Learning-rate schedules as factors on the peak rate, functions of the optimiser step counted from 0."""

from math import sqrt


def inverse_sqrt(step: int, warmup: int) -> float:
    """Linear up to 1 over `warmup` steps, then sqrt(warmup / step) (Vaswani et al. 2017, section 5.3)."""
    warmup = max(warmup, 1)
    return min((step + 1) / warmup, sqrt(warmup / (step + 1)))


def constant(step: int) -> float:
    """1: gates keep their rate, or late ones could no longer close."""
    return 1.0
