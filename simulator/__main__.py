"""`python -m simulator` is the command line."""

from simulator.cli import main

if __name__ == "__main__":
    main()
