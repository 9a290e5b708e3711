"""Published tables, run again: a gate before the run, a verdict for each number, and a record that others can check."""
