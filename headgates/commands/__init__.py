"""The commands: each parses its settings, checks the paths that they name, and only then imports what takes
seconds."""
