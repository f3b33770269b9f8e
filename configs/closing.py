"""What closing a head means: what it outputs (`--ablation`), or which weights are refitted around it
(`--reconstruct`). One table for prune.py and everything that closes heads. Nothing here imports torch.

To add one: a function f(model, closed, batches, forward, positions=...) that changes the model, a line for it
in HOW of pruning/closing.py, and a line here.
"""

from dataclasses import dataclass

ZERO = "zero"  # a closed head outputs nothing, and nothing else changes


@dataclass(frozen=True)
class Closing:
    """help: what it does, for `--help`. calibrated: reads a calibration text. permanent: ends in weights of
    its own, so that a model can be saved and the closed heads removed."""

    help: str
    calibrated: bool = True
    permanent: bool = True


ABLATIONS = {
    ZERO: Closing("a closed head adds nothing", calibrated=False),
    "mean": Closing("what it adds on average goes into the bias of W_O"),
    "optimal": Closing("the constants that cost least loss go into the bias of W_O (Li & Janson 2024)"),
    "resample": Closing("its output is replaced by its output at a random other position", permanent=False),
}
RECONSTRUCTIONS = {
    "rescale": Closing("one factor for each head that stays, by least squares (Kwon et al. 2022)"),
    "out": Closing("W_O and its bias, by ridge regression to the output of the whole site"),
    "out+ffn": Closing("W_O and the last feed-forward layers, to the unpruned model's residual stream"),
    "out+ffn+v": Closing("the same, with W_V of the heads that stay in turns with W_O"),
    "distill": Closing("the same, then a short training on that text towards the unpruned model"),
}
CLOSINGS = ABLATIONS | RECONSTRUCTIONS
LASTING = [name for name, closing in CLOSINGS.items() if closing.permanent]  # that training can start from
TARGETS = ("reference", "own")
