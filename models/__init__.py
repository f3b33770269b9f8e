"""The translation model, its search, its checkpoints, and `Translator`, the one face of them all."""
