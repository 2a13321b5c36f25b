"""Python interface: runs, sweeps and plans with notebook display, plots and HTML reports."""
