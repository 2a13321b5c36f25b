"""Pictures of trainings that last for days. Each draws numbers that it is given, and computes no answer."""
