"""How fast it is: models and layers side by side, each checked before it is timed."""
