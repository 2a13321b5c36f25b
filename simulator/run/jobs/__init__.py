"""Several jobs on one cluster: their trainings share links, and each loses time to the others."""
