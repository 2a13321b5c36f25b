"""Pipeline schedules: in which order a rank of a pipeline passes micro-batches forward and backward. One file each."""
