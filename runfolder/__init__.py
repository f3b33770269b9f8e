"""The run folder: what every script writes and reads, who may write it, and `open_source`, the one way to a trained model."""
