"""The kinds of findings, a module each; a module's FINDING has the module's name."""
