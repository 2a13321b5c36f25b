"""Speed, as ratio to a baseline in the same run. `make bench` prints the figures and fails if an aim is missed."""
