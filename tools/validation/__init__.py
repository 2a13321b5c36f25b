"""Writes docs/measured.md, docs/validation.md and docs/validation_cut.md: simulated beside measured times."""
