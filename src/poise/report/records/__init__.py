"""What reports read: the rows of a folder of runs, sorted into groups, with their metrics."""
