"""A timeline in pictures: a module per plot."""
