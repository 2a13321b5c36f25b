"""The text that `simulator new` writes: a scenario that runs as it stands, and shows what else there is.

Rule: what is written without a comment sign loads; what is behind one is a key with its default or an example.
"""

from __future__ import annotations

from typing import Final

_TEXT: Final = """\
# {question}
name: {name}                    # runs are kept under this name
seed: 0                         # of everything that is drawn by chance

cluster:
  topology: star_100g           # `simulator list topology` shows all; or the path of a file of your own
  world_size: 8                 # ranks, one a GPU
  # gpu: a100_sxm_80gb          # `simulator list gpu`; left out: the topology's own
  # stragglers: {{3: 0.8}}        # rank 3 runs at 0.8 of its FLOP/s and memory bandwidth
  # link_factors: {{'gpu0->switch0': 0.5}}
  # jitter: {{compute: 0.02, latency: 0.05}}     # times are multiplied by exp(sigma z)

collective:
  operation: all_reduce         # all_reduce reduce_scatter all_gather broadcast reduce scatter gather all_to_all
  algorithm: ring               # `simulator list algorithm`; auto chooses one and says why
  size: 64 MiB                  # the whole array; units are B, kB, MB, GB or KiB, MiB, GiB
  dtype: float32                # float64 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int8 uint8
  reduction: sum                # sum average max min product
  accumulate: payload           # float32: partial sums travel and stay in float32
  payload: auto                 # whether real arrays move; auto: while world_size x size is at most 256 MiB
  # servers: {{count: 4, on: workers}}           # with algorithm: parameter_server
  # root: 0                                    # with broadcast, reduce, scatter and gather

engine: auto                    # auto events

compare:                        # set side by side
  collective.algorithm: [ring, tree]

sweep:                          # gone through; all axes are multiplied out
  cluster.world_size: [2, 4, 8, 16]
  collective.size: [64 KiB, 4 MiB, 64 MiB]

plots: [scaling, bandwidth_utilization, timeline, steps]
"""


def template(name: str, question: str) -> str:
    """Write a scenario to start from.

    Parameters
    ----------
    name : str
        What its runs are called: letters, digits, '_', '-' and '.'.
    question : str
        What it shall answer; becomes the first comment.

    Returns
    -------
    str
        YAML text.

    Raises
    ------
    ScenarioError
        If the name cannot be the name of a folder.

    Examples
    --------
    >>> print(template("demo", "Is a ring faster than a tree?").splitlines()[0])
    # Is a ring faster than a tree?
    """
    from simulator import yaml_dialect
    from simulator.scenario.load import check_name

    check_name(name)
    asked = " ".join("".join(c if c.isprintable() else " " for c in question).split()).lstrip("# ")
    # A name such as 2024 or 1e9 must stay text.
    written = yaml_dialect.dump(name, one_line=True)
    return _TEXT.format(name=written, question=asked or "What do you want to know?")
