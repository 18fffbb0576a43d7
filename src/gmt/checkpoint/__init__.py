"""Checkpoints: format, search, retention, repair and loading, for training and for every command that reads a model."""
