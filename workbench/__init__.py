"""The workbench: run folders, what is made in them, and how one source of a model is opened."""
