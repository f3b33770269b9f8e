"""Configuration: frozen dataclasses (`schema.py`), the command line made from them (`cli.py`), one YAML for each full run."""
