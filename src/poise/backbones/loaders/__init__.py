"""Loaders of models, one module per library."""
