"""CPR and CMD: how well the heads that a method keeps stand for the model, over all numbers of heads.
Mueller et al. 2025 (arXiv:2504.13151), the metrics of the MIB circuit benchmark.

    f(k) = (m(k) - m(0)) / (m(1) - m(0)),   m(k) a metric with the share k of the heads open, others closed
    CPR  = area under f,   CMD = area under |1 - f|,   both over k from .001 to 1

CPR is high where few heads keep the metric: it rewards heads that raise it above the model's own. CMD is low
where the heads that stay do as the whole model does, neither less nor more. Between two measured shares f is
taken to be a line.
"""

from collections.abc import Mapping
from itertools import pairwise

LEAST = 0.001  # share from which both areas are taken


def circuit_areas(metric: Mapping[float, float]) -> tuple[float, float]:
    """CPR and CMD from the metric at shares of open heads, each in [0, 1].

    Raises ValueError unless 0 and 1 are among the shares and the metric differs there."""
    shares = sorted(metric)
    if not shares or shares[0] != 0 or shares[-1] != 1:
        raise ValueError(
            f"expected the metric from no head open (share 0) to all (share 1), got shares {shares}; close "
            "heads down to none"
        )
    nothing, whole = metric[0], metric[1]
    if nothing == whole:
        raise ValueError(f"the metric is {whole} with all heads and with none, so shares of it say nothing")
    f = {share: (metric[share] - nothing) / (whole - nothing) for share in shares}
    cpr = cmd = 0.0
    for (left, a), (right, b) in pairwise(f.items()):
        if right <= LEAST:
            continue
        if left < LEAST:
            left, a = LEAST, a + (b - a) * (LEAST - left) / (right - left)
        width, from_one = right - left, (abs(1 - a), abs(1 - b))
        cpr += width * (a + b) / 2
        if (1 - a) * (1 - b) < 0:  # the line crosses 1 on its way: two triangles
            cmd += width * (from_one[0] ** 2 + from_one[1] ** 2) / (2 * sum(from_one))
        else:
            cmd += width * sum(from_one) / 2
    return cpr, cmd
