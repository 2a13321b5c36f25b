"""A timeline in pictures: one file a plot."""
