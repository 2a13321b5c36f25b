"""Which words does docs/measured.md have between the tables computed by machines_page.py?

Nothing is computed here. Quoted figures must agree with the tables.
"""

from __future__ import annotations

from typing import Final

BEFORE: Final = """# Measured against simulated

This page compares measured collectives with simulated collectives: six measured sweeps of nccl-tests (float32, out of
place) with the shipped topologies. `simulator/catalog/measured/collectives.csv` contains the sweeps with sources. The
page is written by `python -m tools.validation.machines_page`, and the constants in the topology files by
`python -m tools.validation.shipped_machines`.

A machine has at most six constants. The machine's algorithm is simulated on the machine's links, with these rules:

- Every rank first pays `startup` once.
- The rate of each flow is at most `rate_cap` inside a node or `cross_rate_cap` between nodes, times 1 / (1 +
  (`half_size` / S)^`exponent`) for an array of S bytes. S is at least a packet of 4096 bytes.
- In a node, a rank also handles its own part of the array, which takes `own_part` times as long as a part that it
  sends. The rate of a gather, reduce-scatter or exchange among n ranks is multiplied by (n - 1) / (n - 1 + `own_part`),
  that of an all-reduce by 3 (n - 1) / (3 (n - 1) + `own_part`).
- If several rings run at once (`multi_ring`), the rings that leave a GPU for another GPU of its node share `rate_cap`.
- Over several nodes, all-reduces are divided into `chunks` pieces (none smaller than 4 MiB), so that links inside and
  between nodes are busy at the same time.

Only one cap is fitted, because one sweep determines one rate: the cap on the links with the highest use by the largest
array. A ring cannot explain 483 GB/s bus bandwidth over links with 450 GB/s (8 H100), nor 78 GB/s over cards with
50 GB/s per node (two p4de nodes). The first machine adds inside its switch (`nvls`), and the second machine adds inside
its nodes first (`blueconnect`).

A fit is rejected if links inside a node must reach more than 92 % of the rating, because no library is known to reach
this rate. Otherwise 16 H100 could be fitted as rings at 100 % of NVLink.

Two straight lines, one for each protocol, with as many constants, were tested against the smooth curve. They were
fitted to every second size. At the sizes in between, their error is 3 to 10 % in the median (the curve: 1.4 to 5 %),
and at most 42 % (the curve: 43 %, and 18 % on all machines except 8 A100). Three lines have 2 to 11 %, and at most
25 %. The curve was kept.
"""

WHY: Final = """
Large errors occur where the measured time is not a smooth curve, most likely because the library changes its protocol
or its algorithm with the size. 8 A100 need 101 us for 1, for 2 and for 4 MiB; 16 H100 fall behind between 16 and 64 MiB
and catch up at larger sizes. The fit follows most of the rows and gives such outliers little weight. Below 1 MiB hardly
anything except the start-up has an effect; these rows have a quarter of the weight.
"""

GATHER: Final = """## Gathers, reduce-scatters and exchanges in a node

A sharded training step depends on these operations. ai-dynamo/aiconfigurator publishes sweeps of NCCL over 2, 4 and 8
GPUs of a node, without the launch. The sweeps of a GPU and an operation are fitted together: five constants for three
groups, with most weight on the largest group and on arrays from 32 MiB up. NCCL runs rings, and exchanges between every
pair of ranks; each hop's latency is the link's. Errors:

"""

GATHER_WHY: Final = """
The steps between sizes, where NCCL changes its protocol, are not simulated. Two GPUs get less of large gathers than
four or eight do (258, 318 and 335 GB/s on H100) because each GPU also handles its own part of the array: `own_part` is
0.1 to 0.7 of the time of a part that is sent. Without it, two GPUs were 18 to 34 % too fast.

For gathers over several nodes, only the trend on one busy cluster is known (below). Over several nodes `multi_ring`
runs one ring per GPU, and each ring crosses to the next node over another card. Inside nodes these rings have the
constants of rings fitted to the table of the compiler XLA, over 8 H100; its times contain the launch. The start-up is
theirs plus the network's addition to the all-reduce's start-up, and the cap between nodes is the all-reduce's if it was
fitted; `source` states the origin. dgx_a100 and aws_p4de take the all-reduce's constants: the all-reduce is a ring over
the same links. dgx_b200 takes twice the bytes in the time of dgx_h100. Over several nodes, an all-to-all takes the
constants of the gather.
"""

XLA: Final = """## Operations that the fit did not see

These rows are XLA's table, over 2, 4 and 8 H100. No row was used for a constant of a single node. Their times contain
the launch, some 15 us, so that short arrays are simulated faster than the table says. Errors from 1 MiB:

"""

BORROWED: Final = """## Where only the all-reduce was measured

The same table, simulated with a topology file whose only section is the all-reduce (the sweep over 8 H100). Errors from
1 MiB:

"""

UNMEASURED: Final = """## Where nothing was measured

Nodes without `collectives` in their topology file have the library's model ([topologies](topologies.md#keys)). On
networks of theory, and with `library: none`, links have their full rating, and nothing has a start-up. Every sweep of
this page was simulated in both ways, on its machine without constants and with the algorithm chosen by `auto`, and
compared with the measured times (`simulator/catalog/measured/network_errors.csv`). For the model, the figures of the
sweep's own generation of NVLink or PCIe were taken out first: an H100 has the averages of NVLink 3 and 5. Cards stayed
in. Measured collectives take longer than the ratings say, most of all short ones. From each sweep, the table uses the
size whose simulated time is closest to the column `simulated`. Every source has the same weight:

"""

UNMEASURED_WHY: Final = """
A step's 80 and 95 % intervals are widened by these factors if no collective was measured on the machine, in proportion
to the exposed communication in the step ([validation.md](validation.md#how-far-to-trust-a-prediction)). The 95 %
factors come from the shared and busy cluster in the next section.

"""

OVER_NODES: Final = """## Over many nodes

The table shows 256 MB over 1 to 64 nodes on the cluster behind nanotron's rows (`hf_h100`), as published by the users:
mean and band on a shared and busy cluster. Two constants were fitted to these figures: the cap on gathers in a node,
and each step's time from node to node (450 us). The all-reduce has the same step time. The remaining constants come
from aws_p5.

"""

OVER_RACKS: Final = """## Over racks

The table shows sums of nccl-tests over one, two and twenty GB200 NVL72 (`gb200_nvl72`, coreweave/nccl-tests). Two
constants were fitted to one rack, and four by hand to two and twenty racks together; none of these sizes is below 512
MiB. Inside a rack, a sum over several racks has the rate of one rack. Between racks, all GPUs of a rack together reach
the bandwidth of some nine of its 72 cards. Fewer GPUs of a rack share this bandwidth, up to that of their own cards.

In a rack, the half size of sums in its switches falls with the number of GPUs that take part: each GPU asks for the sum
of a larger part of the array. Sums over 4 GPUs, which were not fitted, take 6 % less to 22 % more than on Azure's nodes
of 4 GB200 from 1 MiB on (Azure/AI-benchmarking-guide@2a370be6, ring). With the half size of a whole rack, 32 MiB would
take three times as long as measured.

"""

AFTER: Final = """
Notes on these tables: XLA's own all-reduce on 8 GPUs is slower than the fitted sweep; this part of an error comes from
the choice of a source. Over nodes, sums take as many
steps as NCCL's trees (`blueconnect`, and `nvls` between its switches), and gathers run in rings. A group with one rank
per node takes the algorithm that is faster with the same constants. If an operation is important, measure it and run
`simulator fit`: a topology file accepts a section for each operation.

## How far to trust it

- Sizes between the measured sizes, on the measured machine, from 1 MiB: the errors of the tables above.
- Below 1 MiB: errors of tens of percent at single sizes. The library's protocols for small messages are not simulated.
- The same nodes with fewer GPUs, or more nodes: the algorithm and the links are simulated, but the caps are those of
  the measured number of GPUs. For more than two nodes, nothing beyond the last table is known.
- `source` in a topology file states the origin of the constants. It says `not measured here` if the constants are taken
  from another machine or operation: dgx_a100 and dgx_h100 over several nodes, aws_p4de in one node; gathers and
  reduce-scatters over several nodes.
- One sweep of each machine is known. Another cluster of the same type can differ by more than the errors on this page,
  for example by library version or cabling.

## Your own machine

    simulator fit sweep.txt --topology dgx_h100 --out my_machine.yaml

`sweep.txt` is the output of an nccl-tests program (its list of ranks contains the numbers of ranks and hosts), or a CSV
file with a size and a time, or with a size and `busbw` or `algbw`. Without `--topology`, the links are assumed to be a
quarter faster than the fastest row needs. With `--topology`, `fit` accepts many files, logs of many runs, and CSV files
with many operations (`op`), numbers of ranks (`ranks`, `nodes`) and runs. Each operation is fitted in one node and over
nodes, to the sweep with most ranks. Sweeps with fewer ranks of a node determine `own_part`, and are simulated for
comparison; the output names the constants that no sweep determines. From Python:
`simulator.calibration.machines.fit_all(paths)`, `machine_text` and `to_yaml`.

## Sources
"""
