"""Views of a simulated point for a page: spans, memory and links, as plain data."""
