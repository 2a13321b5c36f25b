"""Records shared by every package: schedule, transfers, program, timeline, chunks. Pure data."""
