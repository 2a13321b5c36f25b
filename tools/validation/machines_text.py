"""Which words does docs/measured.md have between the tables computed by machines_page.py?

Nothing is computed here. Quoted figures must agree with the tables.
"""

from __future__ import annotations

from typing import Final

BEFORE: Final = """# Measured against simulated

How near does a played all-reduce come to a real one? This page holds six measured sweeps of nccl-tests (float32, out
of place) against the shipped topologies. The sweeps and their sources are in
`simulator/catalog/measured/collectives.csv`. It is written by `python -m tools.validation.machines_page`; the
constants in the topology files by `python -m tools.validation.shipped_machines`.

A machine has at most five constants. The simulator plays the algorithm that the machine runs on its links, and

- every rank first pays `startup` once;
- each flow is held to `rate_cap` inside a node or `cross_rate_cap` between nodes, times 1 / (1 + (`half_size` /
  S)^`exponent`) for an array of S bytes, S at least a packet of 4096;
- where several rings run at once (`multi_ring`), those that leave a GPU for another one of its node share `rate_cap`;
- over several nodes all-reduces are cut into `chunks` pieces (none smaller than 4 MiB), so that links inside and
  between nodes work at once.

Only one cap is fitted, because one sweep determines one rate. It is the cap of those links that the largest array fills
most. A ring cannot explain 483 GB/s of bus bandwidth over links of 450 GB/s (8 H100), nor 78 GB/s over cards of 50 GB/s
a node (two p4de nodes): the first adds inside its switch (`nvls`), the second adds up inside its nodes first
(`blueconnect`).

What no algorithm needs is not taken for one either: a fit that needs more than 92 % of the rating of the links inside a
node is left, because no library has been seen to reach that (16 H100 could otherwise be rings at 100 % of NVLink).

Two straight lines, one for each protocol, with as many constants, were tried beside the smooth curve: fitted to every
other size they are off at the sizes between by 3 to 10 % in the median (the curve: 1.4 to 5 %), and by up to 42 % at
worst (the curve: 43 %, and 18 % on all machines but 8 A100); three lines by 2 to 11 % and 25 %. The curve stays.
"""

WHY: Final = """
Where it is far off, the measured time does something that no smooth curve does, most likely because the library changes
its protocol or its algorithm from size to size: 8 A100 need 101 us for 1, for 2 and for 4 MiB; 16 H100 fall behind
between 16 and 64 MiB and catch up beyond. The fit follows most of the rows and gives such outliers little weight. Below
1 MiB hardly anything counts but the start-up; those rows have a quarter of the weight.
"""

RING: Final = """## Gathers and reduce-scatters

A sharded training step depends on these two, and one node of 8 H100 is the only place where they were measured: a table
that the compiler XLA ships. Its times contain the launch, so the start-ups here do too. The machine is taken to run a
ring, as NCCL does. The rows over 8 GPUs were fitted with two constants (start-up and cap), with three (the cap fades
with the root of the size) and with four, those of the reduce-scatter also with one, its cap, and the gather's start-up
and half size; the topology files have the bold lines. Errors from 1 MiB up:

"""

RING_WHY: Final = """
A cap that fades with the size is needed (two constants are off by 4 to 7 % in the median, by 5 to 6 % at the largest
size), an exponent of its own is not, nor a second start-up and half size: four numbers for both operations. What 90 %
of the errors stay below is the scatter of the sweep itself: its reduce-scatter of 1 MiB takes 20 us, that of 512 KiB 41
us. Over 4 and 2 GPUs, held out, the same constants are too fast (table below); over 2 there is only one neighbour.

Of gathers over several nodes only the trend on one busy cluster is known (below). There `multi_ring` runs, one ring a
GPU, each crossing to the next node over another card, with the constants of one node, with what the network adds to the
start-up of the all-reduce, and with the all-reduce's cap between nodes where one was fitted: `source` says so.
dgx_a100 and aws_p4de take their all-reduce's constants, which is a ring over the same links; dgx_b200 takes twice the
bytes in the time of dgx_h100.
"""

XLA: Final = """## Operations that the fit did not see

The rest of XLA's table, over 2, 4 and 8 H100, none of it used for a constant. An operation without constants of its
own takes the all-reduce's, with NCCL's own factor between what it reaches in switches and in rings (0.85 on Hopper).
From 1 MiB up:

"""

BORROWED: Final = """## Where only the all-reduce was measured

The same table, played with a topology file that has no section but that of the all-reduce (the sweep of 8 H100). From
1 MiB up:

"""

BEST_CASE: Final = """## Where nothing was measured

A topology file without `collectives` is a best case: nothing is paid to start, and flows fill the links that they take.
Every sweep of this page was simulated so, on its machine without any constants, with the algorithm that `auto` then
takes, and held against the measured times (`simulator/catalog/measured/network_errors.csv`). Measured collectives take
longer, the more so the shorter they are. Of each sweep the size counts that takes about as long as the first column
says; all sweeps of a source count as much as those of any other:

"""

BEST_CASE_WHY: Final = """
A step's interval is widened by these factors where no collective of its machine was measured, in proportion to the
share of the step that is exposed communication ([validation.md](validation.md#how-far-to-trust-a-prediction)). The
factor of 95 % is that of the shared and busy cluster of the next section.

"""

OVER_NODES: Final = """## Over many nodes

256 MB over 1 to 64 nodes of the cluster that trained nanotron's rows (`hf_h100`), as its users published it: the mean
and a band of a shared and busy cluster. Two constants were fitted to it, the cap of its gathers in a node and
what each step from node to node takes (450 us); the all-reduce has the same step, and everything else from aws_p5.

"""

AFTER: Final = """
How to read these tables: XLA's own all-reduce on 8 GPUs is slower than the sweep that was fitted; that much of an error
lies in the choice of a source. An all-to-all has no constants of its own: `auto` picks the direct exchange, whose seven
flows share a GPU's port and its cap. Over nodes sums go in as many steps as NCCL's trees take (`blueconnect`, and
`nvls` between its switches), gathers in rings, and a group with one rank a node takes what is faster by the same
constants. Where an operation matters, measure it and run `simulator fit`: a topology file takes a section for each.

## How far to trust it

- Sizes between the measured ones, on the measured machine, from 1 MiB up: as the tables above say.
- Below 1 MiB: tens of percent here and there; the library's protocols for small messages are not simulated.
- The same nodes with fewer GPUs, or more nodes: the algorithm and the links are played, but the caps are those of the
  measured number of GPUs. For 2 and 4 H100 the tables above are all that is known, and for more than two nodes the last
  one.
- `source` in a topology file says where constants come from, and says `not measured here` where they are taken from
  another machine or operation: dgx_a100 and dgx_h100 over several nodes, aws_p4de in one node; gathers and
  reduce-scatters everywhere but in one node of H100.
- One sweep of each machine is known. Another cluster of the same make, library version or cabling can differ by more
  than the errors on this page.

## Your own machine

    simulator fit sweep.txt --topology dgx_h100 --out my_machine.yaml

`sweep.txt` is what an nccl-tests program printed (the list of ranks tells how many ranks and hosts there were), or a
CSV file with a size and a time, or with a size and `busbw` or `algbw`. Without `--topology` links are assumed that are
a quarter faster than the fastest row needs. With one, `fit` takes many files, logs of many runs, and CSV files with
many operations (`op`), numbers of ranks (`ranks`, `nodes`) and runs: each operation is fitted in one node and over
nodes, to the sweep of most ranks; sweeps of fewer ranks are played, and what no sweep tells is said. From Python:
`simulator.calibration.machines.fit_all(paths)`, `machine_text` and `to_yaml`.

## Sources
"""
