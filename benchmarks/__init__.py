"""Measurements, a question each: `python -m benchmarks.peers` prints a table and adds a line to results/.
`python -m benchmarks.records` fills the tables of the pages from these files."""
