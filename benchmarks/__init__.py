"""Speed, as ratios to a baseline measured in the same run. `make bench` prints them and fails where an aim is missed."""
