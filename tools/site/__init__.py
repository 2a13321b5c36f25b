"""Builds the documentation site with Sphinx: pages, notebooks, keys, names and a gallery."""
