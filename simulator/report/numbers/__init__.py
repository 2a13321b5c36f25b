"""A timeline in numbers: summaries, how links were used, who held memory."""
