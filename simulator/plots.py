"""Which figures can be drawn from runs, in a notebook or a script? For example: `from simulator import plots`."""

# A public module, because users should not import from `simulator.api`.
from simulator.api.figures import *  # noqa: F403
from simulator.api.figures import __all__ as __all__
