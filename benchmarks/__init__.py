"""Measurements behind the README's claims, a script each: `python -m benchmarks.gate_overhead`. Records go to
results/."""
