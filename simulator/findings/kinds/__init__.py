"""The kinds of findings, one a file; a file's FINDING has its name."""
