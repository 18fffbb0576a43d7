"""Faster twins of what memory/ and model/ compute. Plain PyTorch is the reference, and what runs elsewhere."""
