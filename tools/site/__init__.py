"""What is on the documentation site? Pages, notebooks, keys, names and a gallery, put together and built by Sphinx."""
