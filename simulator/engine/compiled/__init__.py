"""The compiled engine: a Program and its Schedules as arrays over ranks; the same answer as events, or none."""
