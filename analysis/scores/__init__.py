"""Scores: what a head is worth, a file each; `score(model, batches) -> HeadMap`, higher is kept longer."""
