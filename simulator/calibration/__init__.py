"""Which constants fit the measurements, with which residuals? For machines' collectives, kernels, and training runs."""
