"""Which descriptions of machines are read? A module for each format, with its `FORMAT`."""
