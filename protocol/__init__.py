"""The experiment of `fit.py`: which runs a configuration asks for, how they are made, and how their systems are compared."""
