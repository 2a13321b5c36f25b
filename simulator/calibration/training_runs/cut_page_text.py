"""Which words stand on the page docs/validation_cut.md, between the tables that cut_page.py computes?

Rule: nothing here is computed; figures that are quoted here are rounded, so that they outlive small changes.
"""

from __future__ import annotations

from typing import Final

BEFORE: Final = """# Models cut over ranks: measured against simulated

How near does a played step come to a real one where tensors, layers, sequences or experts are cut over ranks? Every
row of `simulator/catalog/measured/training_cut.csv` is played as its source describes it; what a source leaves open
is said there, source by source and row by row (`assumed`). The page is written by `python -m
simulator.calibration.training_runs.page docs cut`; `simulator validate --source NAME` prints the same figures for
one source, `--every K` for each K-th row.

No constant was fitted to these rows: all are played with torchtitan's, the default, which were found on other
machines without any of this parallelism. So the errors are those of a framework that nobody has fitted. What was
chosen with the rows in view are settings that their sources state elsewhere: nanotron's stages, gradients that
travel after the passes (vTrain, Megatron-LM of 2021), attention without flash kernels.

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

NARROW: Final = """## Where nanotron's rows go wrong

Three quarters of all timed rows are nanotron's, and two effects make most of their errors.
"""

WHY: Final = """## What is known of the reasons

- nanotron, small micro-batches: a layer takes 4.4 to 4.8 ms for each micro-batch, there and back, whether it is cut
  in 4 or 8, and whether it is 2048 or 4096 wide. So the host, which issues kernels one by one, is the limit and not
  the GPU. What a host takes to issue kernels is not modelled.
- nanotron, matrices cut over several boxes: a layer takes 8 ms with 16 ranks and 15 to 18 ms with 32, again
  whatever its width: about 50 us for each rank that a gather or scatter passes. The machine's constants, fitted on
  two boxes, say a few microseconds.
- nanotron, many stages: its loss over 131,072 words stands on the last stage alone, where eager kernels over
  float32 logits are played slower than they were; and nanotron can have head and loss on different stages, which is
  not played.
- nanotron, pipelines of 4 or more stages: 15 rows with small micro-batches take 1.0 to 1.3 s for each of them, whatever
  the model, the cut and the number of GPUs, and are 8 to 131 times slower than played; others that differ in one
  setting alone are not. Something of these runs stood still; nothing that is played explains it.
- nanotron, tensor parallelism inside a pipeline: a layer of the small model takes 8, 12 and 19 ms for a micro-batch of
  one sequence with tp 2, 4 and 8 in two stages, and 4.5 ms with each of them without a pipeline. Why is not known.
- nanotron, memory: short by a sixth where matrices are cut in two, by a third where they are cut in eight. Its loss
  over 131,072 words holds buffers that are not played; what else it keeps as the cut grows, perhaps gathered inputs
  of matmuls, is not known.
- DeepSpeed's ZeRO-3 of 2021 (three rows of megatron_sc21) hid nothing, and its collectives took a time for each
  tensor: the step stopped getting faster from 768 GPUs on. Played, gathers are hidden.
- dgxc: exchanges of tensor parallelism are hidden behind their own matmuls there, which is not played (the 70 B
  rows have a tenth of the time exposed); norms, activations and casts to eight bits are merged kernels, and here
  passes apart.
- simumax: too fast by about a fifth however the model is cut, also where next to nothing is exchanged: kernels of a
  B200 are extrapolated from the H100's, and sustained load was measured on neither. Memory, exact by formulas, is
  within a few per cent.
- vtrain and megatron_sc21: wider micro-batches than were measured elsewhere, softmax apart from the matmuls, and
  kernels merged by Megatron-LM; steps with little tensor parallelism come out too slow, those with most exchanges
  over boxes too fast. Two rows of vtrain with tp 8 that took longer than their neighbours, and those with tp 2 on 512
  GPUs, played a sixth to a third too fast, are not understood.
"""

COMPOSED: Final = """## Rows that were composed

Of pieces that were profiled on one GPU each; how launches and gaps were counted is not stated.
"""

WORST: Final = """## The worst rows

By the factor between simulated and measured.
"""
