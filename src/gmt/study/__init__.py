"""Grids of training runs over seeds, and their tables with confidence intervals."""
