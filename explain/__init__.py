"""What the parts of a model do: analyses, ablations, causes, and single sentences."""
