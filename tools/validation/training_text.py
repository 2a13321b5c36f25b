"""Which words does docs/validation.md have between the tables computed by training_page.py?

Nothing is computed here. Quoted figures are rounded, and survive small changes.
"""

from __future__ import annotations

from typing import Final

BEFORE: Final = """# Training steps: measured against simulated

How near does a played training step come to a real one? This page plays every row of
`simulator/catalog/measured/training.csv` (models that no rank shares) and `training_cut.csv` (tensor, pipeline, context
and expert parallelism; more of these in [validation_cut.md](validation_cut.md)). There are 1,398 rows, of which 677
were timed and 721 are composed by their source of profiled pieces. Of the timed ones 38 are disturbed, so that most
tables and the picture are of 639. Each row names its source. The page is written by `python -m
tools.validation.training_page`; `simulator validate` prints tables of it in about four minutes on two cores,
`--source NAME` those of one source, `--csv FILE` of your own runs (below).

Every row is planned and played: kernels, memory, collectives beside them. Of many micro-batches a few are played, and
the rest take as long as the last of those. Errors are of a step's time, simulated / measured - 1: above zero the
simulator is too slow.

Beside each group stand three other numbers, all of them medians of the errors' sizes:

- **source unseen**: without every constant that was fitted to rows of the same source. What is left are constants of
  other frameworks and chips, and facts that a framework's code tells.
- **MFU as said**: the rule of thumb that planners use, 40 % of the peak on an H100 or B200, 45 % on an A100.
- **MFU of such runs**: the median MFU of all other measured rows of the same chip and precision, which has seen the
  answers.
"""

APART: Final = """\
`nanotron, disturbed` are pairs of runs that differ in nothing but where optimizer states lie
(ddp, ZeRO-1), one of which took more than one and a half times as long as the other; its source calls the cluster
noisy. They are left out of all tables below. `vtrain_composed` are 721 rows that their source calls measured, but
that are straight lines in the number of micro-batches: composed of profiled pieces. They too are left out below.

These errors are no blind test: constants were fitted to rows of this page, framework by framework, and the form of the
model was chosen with the rows in view. The column `source unseen` is the nearest to one that this page has.
"""

FRAMEWORKS: Final = """## Frameworks

What a framework adds to bare kernels, beside what its chip does under sustained load (`sustained`, below). Numbers that
are not its own are another framework's, and its file says so (`simulator/catalog/frameworks`).

"""

NETWORK: Final = """
Where no collective of the machine was measured (a topology file without `collectives`), the exposed communication of a
step may take as much longer as measured collectives do that are simulated on links alone. Of each measured sweep the
size counts that takes about as long as the step's own collectives, and the size of error n that 80 (95) % of them stay
below is taken ([measured.md](measured.md#where-nothing-was-measured)). A share s of the step is exposed, so that the
step may take 1 + s (e^n - 1) times as long; with the interval h of steps like it, both as logarithms, the whole is
sqrt(h^2 + ln(1 + s (e^n - 1))^2). Nothing is added where kernels hide all communication, or where one GPU works alone.
Communication that is hidden may come out on a slower network, which this does not count.

"""

INTERVALS: Final = """## How far to trust a prediction

Every predicted time, rate and memory carries an interval: four in five (19 in 20) measured runs like it lay so near
to their prediction. Runs weigh by how like they are (framework, chip, precision, whether a model is cut, one node or
several), every source as much as any other. Where no run of the framework or of the chip was measured, their errors
as if their source had never been seen stand in, and the interval is wider. To see whether the intervals keep their
word each source is left out in turn, and its runs, played without its constants, are held against intervals from the
other sources alone:

"""

OWN: Final = """## Your own runs

`simulator validate --csv FILE` plays runs that you have measured, and prints how far off each is. The first line names
columns, every other line is a run; empty cells take the default.

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

The third table counts what stands behind a row in all: of each source, GPU and dtype one on at most 64 GPUs. A
framework's number, or a constant of the machine's collectives, counts if the row's time moves by a thousandth or more
when it changes by a tenth. "Published" are the best matmul that a search found, a stream benchmark's share of HBM
bandwidth and flash attention's share of the peak. Data sheets (peaks, clocks, SMs, exponentials in a clock) are not
counted.

"""

ABLATION: Final = """## Does each number of a framework earn its place?

Up to twenty timed rows of each framework, played with one of its numbers or facts as bare kernels have it, everything
else as it is. `compiled` counts only where a compiler ran, and `issue` of megatron_2021 in rows on few GPUs alone.

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

By source in [validation_cut.md](validation_cut.md). torchtitan printed it of the GPU with most. No number is fitted
to it, but one assumption was made with it in view: the loss holds its float32 gradients at once, and half of that
where a compiler joins its steps. Which matrices `selective_op` keeps is modelled coarsely, by whole operations, so
that errors of several GiB may cancel.

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
- Constants behind a row are counted on one row of each source; others of the same source may have one or two more, such
  as nanotron's host in pipelines over several nodes.
- `communication_sms`, a published figure, changes no error by a tenth of a point either way. What a ring takes of HBM
  is worked out from its links (`simulator/step/kernels/contention.py`) and is no constant.
- `fused_loss` of llm_foundry is a fact of its code (`modeling_mpt.py`). Without it the median error of its rows would
  be 0.3 points smaller, so that these rows do not support it.
- torchtitan's H100 rows on 128 GPUs are 5 % too fast, those on 8 GPUs 1 %: measured steps take 3 % longer on 128 GPUs,
  simulated steps do not. What makes the difference is not modelled.
- torchtitan's A100 rows are too fast by an eighth. Their network, and whether they were compiled, is not stated; on
  AWS's instead of NVIDIA's they would be 3 to 5 % too fast.
- Collectives over more boxes than were measured (two) take the steps of NCCL's trees and rings at the rates of two
  boxes ([measured.md](measured.md)).
- `sustained` of a chip that was not measured is the middle one of those that were; on other chips it is a guess.
- `issue_in_pipeline` is a form found in nanotron's rows: with a pipeline over several boxes issuing an exchange within
  a stage takes a quarter of a millisecond for each rank of it. Nobody knows why.
- A sixth of vTrain's rows, with tp 2 and 4 on 512 GPUs, took 15 to 60 % longer than others of the same sweep that
  differ in the micro-batch alone. Nothing that is played explains it. """
