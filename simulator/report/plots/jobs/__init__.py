"""Pictures of several jobs on one cluster. Each draws numbers that it is given, and computes no answer."""
