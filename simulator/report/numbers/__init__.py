"""A timeline in numbers: summaries of a collective and of a step, link use, allocations behind a memory peak."""
