"""Helpers without a dependency on the rest of the package."""
