"""What people look at: tables on the terminal, figures, and the report page of a run."""
