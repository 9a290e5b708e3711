"""One self-contained HTML page of a folder of runs."""
