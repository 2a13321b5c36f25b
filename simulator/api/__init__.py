"""What Python users get: runs, sweeps and plans that show themselves, draw pictures and write their page."""
