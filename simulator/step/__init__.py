"""One training step as a Program: how long kernels take, and who does what, when and with whose bytes."""
