"""Which configuration formats are read? One module for each, with a `FORMAT`: its settings and their meaning."""
