"""A run's folder: lock, header, ledger and files."""
