"""Which words does docs/validation_cut.md have between the tables computed by cut_page.py?

Nothing is computed here. Quoted figures are rounded, and survive small changes.
"""

from __future__ import annotations

from typing import Final

BEFORE: Final = """# Models cut over ranks: measured against simulated

This page compares measured steps with simulated steps for models with tensor, pipeline, context or expert parallelism.
Every row of `simulator/catalog/measured/training_cut.csv` is simulated according to its source. The file states, source
by source and row by row (`assumed`), which settings a source leaves open. The page is written by
`python -m tools.validation.training_page docs cut`. `simulator validate --source NAME` prints the same figures for a
single source, and `--every K` for each K-th row.

Each source is simulated with its framework's constants (`simulator/catalog/frameworks`), fitted to a part of these
rows. [validation.md](validation.md) shows the errors without these constants. Three settings were also chosen with
knowledge of the rows, although the sources state these settings elsewhere: nanotron's stages, gradients that travel
after the passes (vTrain, Megatron-LM of 2021), attention without flash kernels.

Errors are relative errors of the step time and of peak memory, simulated / measured - 1: below zero the simulator is
too fast, or counts too little memory. Every row ran in reality; "do not fit" counts rows that the simulator would
refuse.
"""

PARTS: Final = """\
`vtrain_composed` contains 721 rows on 2 to 8 GPUs that the source calls measured. The rows are straight lines in the
number of micro-batches, because the source composed the rows of profiled pieces. The rows appear only above and in a
table further below. The remaining rows were timed.

## By GPU, size, number of GPUs and cut

The groups mix sources: most rows on H100 are nanotron's.
"""

NARROW: Final = """## nanotron's rows

Six in ten timed rows are nanotron's. This table contains every nanotron row, including disturbed rows.
"""

WHY: Final = """## Known reasons for errors

- nanotron, small micro-batches: a layer takes 4.4 to 4.8 ms for each micro-batch, forward and backward together,
  whether the layer is divided by 4 or by 8, and whether its width is 2048 or 4096. The host issues kernels one by one,
  and the GPU waits (`issue`). The composed rows of Megatron-LM show the same effect, with half the time per kernel.
- nanotron, tensor parallelism inside a pipeline over several nodes: a layer of a micro-batch takes at least 10, 16 and
  25 ms with tp 2, 4 and 8, for any width and any number of sequences. Without a pipeline, or inside one node, a layer
  takes 4.5 ms with each tp. The cause is again the host, with a quarter of a millisecond for each rank of an exchange
  (`issue_in_pipeline`). The reason for this behaviour is not known.
- nanotron, matrices divided over several nodes: each step of a ring from one node to the next takes 0.35 to 0.5 ms,
  both in nanotron's rows and in the gather rates published by the owners of the same cluster (`cross_step` of
  topologies/hf_h100.yaml).
- nanotron, pipelines of 4 or more stages: 15 rows with small micro-batches take 1.0 to 1.3 s for each micro-batch, for
  any model, cut and number of GPUs, and are 8 to 131 times slower than simulated. Rows that differ in a single setting
  do not show this effect. A part of the system must have stalled in these runs; no simulated effect explains the rows.
- nanotron, memory: a part of the runs holds two thirds of the memory of runs with the same settings per GPU, as if the
  inputs of matrices had been kept in one kind of run and gathered again in the other. The simulation gathers the inputs
  again, and is 12 % too low in the median.
- DeepSpeed's ZeRO-3 of 2021 (three rows of megatron_sc21) hid no communication, and gathered each tensor separately,
  three times a step. The remaining time of its collectives, a sixth of a step, is not explained.
- dgxc, in eight bits: simulated steps of 70B (tp 4) are 4 to 7 % too fast, those of 405B (tp 8) 17 to 19 % too slow (in
  16 bits 5 %), and 8B (tp 1) is 1 to 2 % too fast. Kernels beside an exchange of tensor-parallel ranks lose three
  passes of HBM for each byte that arrives, as beside NCCL; Transformer Engine's own buffers may need fewer.
- torchtitan_cut: 131,072 tokens on four context-parallel ranks took a quarter longer than simulated; 65,536 tokens on
  two took 5 % less.
- simumax: the load of a B200, 1.65, is fitted to these rows. Matmuls in a loop ask for 1.47
  (catalog/measured/loaded.csv).
- llmq: a trainer of single GPUs, without model parallelism; its file of constants has no number of its own. Copies of
  states and residuals to the host are not simulated, nor is its memory.
- internevo: ZeRO-1 over every rank loses speed with each rank, because whole tensors belong to ranks and each rank's
  part is reduced and broadcast by itself (`per_owner`, 1.4 ms, fitted to the rows on up to 64 GPUs).
- vtrain: rows with tp 2 and 4 on 512 GPUs took 15 to 60 % longer than rows that differ only in the micro-batch, and two
  rows with tp 8 took twice as long. With 16 stages, the last stage shows no additional time for the loss, although the
  loss is simulated.
"""

COMPOSED: Final = """## Rows that were composed

The source composed these rows of pieces, each profiled on a single GPU. The counting of launches and gaps is not
stated.
"""

WORST: Final = """## The worst rows

The rows are sorted by the factor between simulated and measured time.
"""
