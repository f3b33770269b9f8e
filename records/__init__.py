"""Runs on disk: folders, rows, locks, hashes, and the one way to open a trained model."""
