"""Which words does docs/validation_cut.md have between the tables computed by cut_page.py?

Nothing is computed here. Quoted figures are rounded, and survive small changes.
"""

from __future__ import annotations

from typing import Final

BEFORE: Final = """# Models cut over ranks: measured against simulated

How near does a played step come to a real one where tensors, layers, sequences or experts are cut over ranks? Every
row of `simulator/catalog/measured/training_cut.csv` is played as its source describes it; what a source leaves open
is said there, source by source and row by row (`assumed`). The page is written by `python -m
tools.validation.training_page docs cut`; `simulator validate --source NAME` prints the same figures for
one source, `--every K` for each K-th row.

Each source is played with its framework's own constants (`simulator/catalog/frameworks`), which were fitted to some of
these rows: [validation.md](validation.md) has what is left without them. What was chosen with the rows in view are
also settings that their sources state elsewhere: nanotron's stages, gradients that travel after the passes (vTrain,
Megatron-LM of 2021), attention without flash kernels.

Errors are of a step's time and of peak memory, simulated / measured - 1: below zero the simulator is too fast, or
holds too little. All rows ran; "do not fit" counts those that would be refused.
"""

PARTS: Final = """\
`vtrain_composed` are 721 rows on 2 to 8 GPUs that their source calls measured, but that are straight lines in the
number of micro-batches: they are composed of profiled pieces, and appear only above and further below. The rest was
timed.

## By GPU, size, number of GPUs and cut

The parts mix sources: most rows on H100 are nanotron's.
"""

NARROW: Final = """## nanotron's rows

Six in ten of all timed rows are nanotron's; these are all of them, disturbed ones too.
"""

WHY: Final = """## What is known of the reasons

- nanotron, small micro-batches: a layer takes 4.4 to 4.8 ms for each micro-batch, there and back, whether it is cut
  in 4 or 8, and whether it is 2048 or 4096 wide: the host issues kernels one by one, and the GPU waits (`issue`). The
  same is seen in the composed rows of Megatron-LM, at half the time a kernel.
- nanotron, tensor parallelism inside a pipeline over several boxes: a layer of a micro-batch takes at least 10, 16 and
  25 ms with tp 2, 4 and 8, whatever its width and its number of sequences, and 4.5 ms with each of them without a
  pipeline or in one box. So it is the host again, by a quarter of a millisecond for each rank of an exchange
  (`issue_in_pipeline`). Why is not known.
- nanotron, matrices cut over several boxes: each step of a ring from one box to the next takes 0.35 to 0.5 ms, in its
  rows as in the rates of gathers that the same cluster's owners published (`cross_step` of topologies/hf_h100.yaml).
- nanotron, pipelines of 4 or more stages: 15 rows with small micro-batches take 1.0 to 1.3 s for each of them, whatever
  the model, the cut and the number of GPUs, and are 8 to 131 times slower than played; others that differ in one
  setting alone are not. Something of these runs stood still; nothing that is played explains it.
- nanotron, memory: some runs hold two thirds of what others with the same settings per GPU hold, as if inputs of
  matrices had been kept in one and gathered again in the other; played is the second, 6 % short in the middle.
- DeepSpeed's ZeRO-3 of 2021 (three rows of megatron_sc21) hid nothing, and each tensor was gathered by itself, three
  times a step; the rest of its collectives' time, a sixth of a step, is not explained.
- dgxc: exchanges of tensor parallelism are hidden behind their own matmuls there, which is not played.
- simumax: on a B200 norms and activations are hardly faster than on an H100, and matmuls slower than in a
  micro-benchmark by a half; both numbers are fitted to these rows.
- vtrain: rows with tp 2 and 4 on 512 GPUs took 15 to 60 % longer than others that differ in the micro-batch alone; two
  rows with tp 8 twice as long. With 16 stages its last stage, whose loss is played, shows no time of its own.
"""

COMPOSED: Final = """## Rows that were composed

Of pieces that were profiled on one GPU each; how launches and gaps were counted is not stated.
"""

WORST: Final = """## The worst rows

By the factor between simulated and measured.
"""
