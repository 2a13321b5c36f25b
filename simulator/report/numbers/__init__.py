"""A timeline in numbers: summaries of a collective and of a step, use of links, allocations behind a peak."""
