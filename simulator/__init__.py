"""A cluster simulator: what would this training job do on that cluster?"""

__version__ = "0.1.0"
