"""Constants held against measurements: machines' collectives, kernels, frameworks' training runs."""
