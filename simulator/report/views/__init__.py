"""Views of a simulated point for a page: its spans, memory and links, as plain data."""
