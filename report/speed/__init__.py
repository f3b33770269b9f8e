"""How fast a pruned model is: measurements of systems in turns, and the report of `export.py --report
speed`."""
