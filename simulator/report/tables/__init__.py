"""Numbers as tables: for a terminal, in nccl-tests' format, as CSV."""
