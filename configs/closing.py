"""What it means to close a head: one table for prune.py and everything that closes heads. Nothing here
imports torch.

To add one: a function f(model, closed, batches, forward, positions=...) that changes the model, a line for it
in WAYS of pruning/closing.py, and a line here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Closing:
    """words: as help and reports put it. calibrated: reads a calibration text. permanent: ends in weights of
    its own, so that a model can be saved and the closed heads removed."""

    words: str
    calibrated: bool = True
    permanent: bool = True


CLOSINGS: dict[str, Closing] = {
    "zero": Closing("a closed head adds nothing", calibrated=False),
    "mean": Closing("what it adds on average goes into the bias of W_O"),
    "resample": Closing(
        "it says what it said at another place of the text, drawn at random", permanent=False
    ),
    "rescale": Closing("each head that stays gets one factor, by least squares (Kwon et al. 2022)"),
    "repair": Closing("W_O and its bias are refitted to what the whole site gave, by ridge regression"),
    "stream": Closing(
        "W_O and the feed-forward refitted so that the residual stream stays the whole model's"
    ),
    "values": Closing("as stream, with W_V of the heads that stay refitted in turns with W_O"),
}
TARGETS = ("reference", "own")
LASTING = [
    name for name, closing in CLOSINGS.items() if closing.permanent
]  # those that training can start from
