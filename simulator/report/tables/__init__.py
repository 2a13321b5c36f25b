"""Numbers as tables: for a terminal, in nccl-tests' form, as CSV."""
