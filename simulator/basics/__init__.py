"""Utilities for the whole package: names, numbers with units, dtypes, documents with places, atomic files."""
