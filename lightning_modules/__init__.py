"""Training: a Lightning module around any task, gates in it, and what happens at each epoch."""
