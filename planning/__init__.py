"""Which heads, neurons and layers of any model stay for a number of them, a size or a speed: plans, what they
cost, and `prune`, which makes one and carries it out."""
