"""Attention, block and language model around the memory cell."""
