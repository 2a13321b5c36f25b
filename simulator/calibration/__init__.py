"""Which constants fit the measurements, and how far off are they: machines' collectives, kernels, training runs."""
