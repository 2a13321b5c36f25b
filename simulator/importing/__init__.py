"""How does the configuration of an existing training become a scenario? Formats, their tables, and one writer."""
