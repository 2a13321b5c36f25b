"""Speed, as ratios to a baseline of the same run. `make bench` prints them and fails where an aim is missed."""
