"""Bridges: models, tokenizers and text of other libraries in, and models out again."""
