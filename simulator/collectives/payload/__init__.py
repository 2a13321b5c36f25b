"""Real arrays carried by a collective: drawn, sent and added by its transfers, and compared with the exact result."""
