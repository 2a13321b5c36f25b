"""What Python users get: runs, sweeps and plans that show themselves in a notebook, draw pictures and write their page."""
