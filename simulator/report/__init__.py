"""From a Timeline to what people read: figures, traces and tables."""
