"""Make a smaller model and measure it."""
