"""Post-hoc pruning: scores to an order of heads, and whether a difference in BLEU is real."""
