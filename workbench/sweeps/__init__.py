"""Sweeps: many runs of `fit.py` from one file in W&B's format, here or by W&B's agents, and what they say
together."""
