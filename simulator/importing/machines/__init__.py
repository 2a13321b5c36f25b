"""How does another program's description of a machine become a topology? Formats, parts of a node, one writer."""
