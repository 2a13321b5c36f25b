"""PyTorch profiler (Kineto) traces: read, and laid beside a simulated step."""
