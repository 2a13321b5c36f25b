"""Pipeline schedules, one file each: in which order does a rank run micro-batches forward and backward?"""
