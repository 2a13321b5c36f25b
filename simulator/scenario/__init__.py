"""The YAML boundary: a scenario's text becomes frozen, validated records here and nowhere else."""
