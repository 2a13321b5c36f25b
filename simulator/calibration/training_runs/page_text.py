"""Which words stand on the page docs/validation.md, between the tables that page.py computes?

Rule: nothing here is computed; figures that are quoted here are rounded, so that they outlive small changes.
"""

from __future__ import annotations

from typing import Final

BEFORE: Final = """# Training steps: measured against simulated

How near does a played training step come to a real one? This page plays every row of
`simulator/catalog/measured/training.csv`: MPT models of 125 M to 70 B parameters under llm-foundry (PyTorch FSDP, 8 to
64 H100 or A100), Llama models under torchtitan (FSDP2, 8 to 128 GPUs), and one of 1.3 B under nanotron (plain data
parallelism and ZeRO-1, 8 to 64 GPUs). Each row names its source. The page is written by `python -m
simulator.calibration.training_runs.page`; `simulator validate` prints the same tables.

Every row is planned and played: kernels, memory, gathering and scattering beside them. Collectives are taken by their
closed forms. Of more than three micro-batches three are played, and the time from the second to the third stands for
each of the others. Errors are of tokens/s, simulated / measured - 1: above zero means that the simulator is too fast.
"""

AIMS: Final = """\
Constants are fitted to llm-foundry's rows in bfloat16 alone, both GPUs together. These errors are no blind test. The
numbers were fitted to those rows, and the form of the model (what is a constant at all, and the facts below) was chosen
with all rows of this page in view. For torchtitan's rows the number `compiled`, the rule of power and the buffers of
the loss were chosen so; its A100 rows played no part in the choice of a number, though they showed `split_maps`. Rows
with eight-bit matmuls chose no number, but one form: that the best eight-bit matmul which a search found bounds them
under sustained load. nanotron's rows chose two: gradients are added up by one plain kernel, and copies around
collectives are paid by those micro-batches alone that communicate.
"""

WORST: Final = """## The worst rows

"""

CONSTANTS: Final = """## Constants

A training step is slower than the sum of its kernels in a micro-benchmark. These numbers say by how much, and none of
them knows a model or a row:

- `sustained`: matmuls in a run of hours, under the board's limit of power, take this many times as long as in a
  micro-benchmark of some milliseconds. A board with fewer watts for each FLOP/s of its peak loses in proportion. That
  is a rule of thumb: one board here, the H100 of 500 W, asks for it, and a cube root would leave its rows more than a
  tenth too fast, so these rows cannot also test it.
- `attention_masked`: share of the masked half of the scores that attention computes nonetheless. In llm-foundry's rows
  of long sequences attention takes almost twice the time that published FlashAttention-2 efficiencies give for the
  causal half, on both GPUs alike; for the full square those efficiencies are nearly right. Which kernels ran is not
  stated.
- `elementwise`: eager kernels against their ideal HBM traffic (casts, temporaries, slow reductions).
- `parameter_bytes`: HBM traffic a parameter and micro-batch of what surrounds the collectives: gathering into flat
  buffers, splitting, casting to float32, scaling.
- `compiled`: what a compiler's merged kernels cost, over the ideal traffic of their parts.

Facts beside them, recalled rather than measured, and kept because the rows fit better with them: llm-foundry's loss
runs over the logits in one pass (`fused_loss`), recomputation stops at the last tensor that is needed, which leaves out
a third of an MPT layer's matmuls (`stops_early`), and torchtitan's layers hold each projection as a matrix of its own,
of which `selective_op` runs every second one again (`split_maps`).

The second table counts what stands behind a row in all. "Published" are the best matmul that a search found, a stream
benchmark's share of HBM bandwidth and flash attention's share of the peak. Data sheets (peaks, clocks, SMs,
exponentials in a clock) are not counted, nor is an exponent of one half, which is the form of the law and was not
fitted.

"""

REMOVED: Final = """## Is each of them needed?

Each constant is set to what it is in a bare kernel, each fact to false, and the others are fitted again. These figures
and those of the next table come from the linear system of the fit, with communication as it was played.

"""

KERNELS: Final = """\
The same for the constants of single kernels. Each is set to what it is in a kernel without it; those fitted to the
matmul table beside it are fitted again (a short search, so that tenths of a per cent are its noise), then those of the
training rows. Median and 90 % of the errors' sizes, per cent; the first three columns are the whole matmul table of the
H100, all 375 rows a dtype. What communication takes from kernels is found by playing the rows again.

"""

KEPT_BACK: Final = """## Models that the fit did not see

All rows of a model size are kept back, the constants are fitted to the others, and the rows kept back are predicted.

"""

MEMORY: Final = """## Memory

Only torchtitan printed peak memory, of the GPU with most. No number is fitted to it, but one assumption was made with
it in view: the loss holds its float32 gradients at once, and half of that where a compiler joins its steps. Which
matrices `selective_op` keeps is modelled coarsely, by whole operations, so that errors of several GB may cancel.

"""

UNSEEN: Final = """## A framework that the fit did not see

nanotron's runs without model parallelism, played with torchtitan's constants, the default: none is nanotron's own. Up
to 32 GPUs this is what to expect of a framework that nobody has fitted. Beyond, gradients are summed and parameters
gathered after its passes and not beside them, which is not played: the fewer micro-batches, the more that costs. One
run of 64 GPUs is measured at half the speed of its neighbours, on a cluster that its source calls noisy. Its loss over
131,072 words holds buffers that torchtitan's has not, so memory comes out short.

"""

SHORT: Final = """## Where it falls short

- Neither these rows nor the matmul table determine `hbm_efficiency`: without it `elementwise` and `parameter_bytes`
  grow by an eighth, and the errors stay. It is kept because stream benchmarks of the chips themselves would otherwise
  be 9 to 33 % too fast.
- `copies`, `matmul_tf32_*` and the best eight-bit matmul have no effect on a row in bfloat16; they belong to rows in
  other dtypes.
- `elementwise`, `parameter_bytes` and `sustained` partly replace each other: taking one away moves the others. The rows
  determine their sum well, each of them alone less so.
- The 30 B model at sequence 8192 is measured a quarter slower than the rows around it, on both GPUs; memory is nearly
  full there. The 760 M model on A100 is measured slower at 512 and 1024 tokens than at 2048. Nothing that is played
  explains either, and the fit gives these rows little weight.
- A row with eight-bit matmuls has seventeen constants behind it, two more than was aimed at.
- `communication_sms`, a published figure, changes no error by a tenth of a point either way. What a ring takes of HBM
  is worked out from its links (`simulator/step/kernels/contention.py`) and is no constant.
- torchtitan's A100 rows are too fast by an eighth. Their network, and whether they were compiled, is not stated.
- Matmuls of eight bits are too slow for short sequences: each cast is played as a pass of its own.
- `sustained` of a chip that was not measured is the larger of the two that were; on other chips it is a guess.
"""
