"""The arrays that a collective carries: drawn, sent and added by its transfers, and judged against the exact result."""
