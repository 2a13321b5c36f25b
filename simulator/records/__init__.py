"""The records that all rooms share: schedule, transfers, program, timeline, chunks. Pure data."""
