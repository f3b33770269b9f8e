"""The translation model, its search, its checkpoints and run folders, and `Translator`, the one face of them
all."""
