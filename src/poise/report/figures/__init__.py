"""Figures as data, and the files that they become."""
