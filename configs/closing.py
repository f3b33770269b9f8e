"""What a closed head outputs (`--closed-output`), and which weights are refitted around it (`--refit`), by
the names of the command line. Nothing here imports torch; the functions are in pruning/closing.py."""

ZERO = "zero"  # a closed head outputs nothing, and nothing else changes
RESAMPLE = "resample"  # sampled anew at every pass, so that no model can be kept
CLOSED_OUTPUTS = {
    ZERO: "nothing",
    "mean": "its mean, which goes into the bias of W_O",
    RESAMPLE: "its output at a random other position",
}
NO_REFIT = "none"
REFITS = {
    "out": "W_O and its bias, by ridge regression",
    "out+ffn+v": "also the last feed-forward layers and W_V",
    "distill": "the same, then a short training towards the unpruned model",
}
