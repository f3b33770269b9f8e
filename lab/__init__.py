"""Where runs are made: text, training stages, evaluation, the tracker, processes."""
