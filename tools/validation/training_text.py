"""Which words does docs/validation.md have between the tables computed by training_page.py?

Nothing is computed here. Quoted figures are rounded, and survive small changes.
"""

from __future__ import annotations

from typing import Final

BEFORE: Final = """# Training steps: measured against simulated

This page compares measured training steps with simulated steps. The page simulates every row of
`simulator/catalog/measured/training.csv` (models without model parallelism), `training_cut.csv` (tensor, pipeline,
context and expert parallelism; [validation_cut.md](validation_cut.md) has further tables), `fine_tuning.csv` (full
fine-tuning and adapters) and `recipes.csv` (published recipes of Megatron-Bridge). There are 1,734 rows, of which 1,013
were timed; the source of the remaining 721 rows composed these rows of profiled pieces. Among the timed rows, 38 are
disturbed; most tables and the picture show the other 975. Each row names its source. The page is written by
`python -m tools.validation.training_page`. `simulator validate` prints a part of the tables in five to ten minutes on
two cores, with `--source NAME` the tables of a single source, and with `--csv FILE` the errors of your own runs
(below).

Every row is planned and simulated, with kernels, memory and simultaneous collectives. If a step has many micro-batches,
a few are simulated, and each remaining micro-batch takes as long as the last simulated micro-batch. Errors are relative
errors of the step time, simulated / measured - 1: above zero the simulator is too slow. The columns `median` and
`90 % below` are the median and the 90th percentile of the errors' sizes, and `middle` is the median error.

Three columns beside each group's errors show the median size of errors under other predictions:

- **source unseen**: without every constant that was fitted to rows of the same source. The prediction then uses
  constants from different frameworks and chips, and facts from the framework's code.
- **MFU as said**: the rule of thumb of planners, 40 % of the peak on an H100 or B200, 45 % on an A100.
- **MFU of such runs**: the median MFU of all other measured rows with the same chip and precision. This rule has seen
  the answers.
"""

APART: Final = """\
`nanotron, disturbed` contains pairs of runs that differ only in the optimizer states' place (ddp, ZeRO-1), and in each
pair a run took more than one and a half times as long as its partner. The source calls the cluster noisy. These rows
are omitted in all tables below. `vtrain_composed` contains 721 rows that the source calls measured. The rows are
straight lines in the number of micro-batches, because the source composed the rows of profiled pieces. These rows are
omitted below, too.

These errors are not a blind test: constants were fitted to rows of this page, and the form of the model was chosen with
knowledge of the rows. Nothing was fitted to the rows of `bridge`. But a host that waits for the counts of experts, and
takes time for each expert, was added because these rows ask for it. The column `source unseen` comes closest to a blind
test on this page.
"""

FINE_TUNING: Final = """## Fine-tuning

Full fine-tuning and LoRA on frozen matrices in bfloat16, NF4 (QLoRA) or GPTQ, with Transformers and PEFT (`fms`) and
with torchtune. No constant was fitted to these rows: kernels and bytes follow from what the modules launch and keep
(`program`), what autograd and FSDP keep, and the load of an A100 from the steps of other sources.

"""

FRAMEWORKS: Final = """## Frameworks

The table shows each framework's additions to bare kernels, besides its program, which lists the kernels of a layer
(`simulator program MODEL --framework NAME`), and the effect of sustained load on the chip (`sustained`, below). A
framework without a figure of its own uses another framework's figure, and its file states this
(`simulator/catalog/frameworks`).

"""

NETWORK: Final = """
If no collective of the machine was measured (a topology file without `collectives`), the step may take longer: measured
collectives differ from those that the library's model, or the links' rating alone, gives. From each measured sweep, the
size is selected whose duration is closest to the duration of the step's own collectives, and n is the 80 (95) %
quantile of the logarithmic errors at these sizes ([measured.md](measured.md#where-nothing-was-measured)). If the share
s of the step is exposed communication, the step may take 1 + s (e^n - 1) times as long. Together with the interval h of
similar steps, both as logarithms, the interval is sqrt(h^2 + ln(1 + s (e^n - 1))^2). Nothing is added if kernels hide
all communication, or for a single GPU. Hidden communication may become exposed on a slower network; the interval does
not include this effect.

"""

INTERVALS: Final = """## How far to trust a prediction

Every predicted time, rate and memory has an interval that contained four in five (19 in 20) similar measured runs. Runs
are weighted by similarity (framework, chip, precision, model parallelism or not, one node or several), and every source
has the same total weight. If no run of the framework or of the chip was measured, or none of the framework with the
step's kinds of model parallelism (tp, pp, cp, ep), the interval uses errors with the runs' own sources unseen, and is
wider: that of 87.5 % of the weights for a model cut over several nodes, where sources differ most, and that of 95 % on
a chip without a run whose matmuls are as wide, because a chip's clock under load, such as B200's, does not follow from
other chips'. Parts of the step whose kernels, network or host were not measured add errors of their own. To test the
intervals, each source is left out in turn: its runs are simulated without its constants, and compared with intervals
from the other sources alone.

"""

CALIBRATION: Final = """## After three runs of your own

`simulator calibrate RUNS.csv --out my_framework.yaml` fits three numbers of a framework to runs that you have measured:
the time of kernels, the time of transfers, and the host's time to issue a kernel
([how](howto/own_cluster.md)). The table shows how well three runs of each source predict its other runs.
The constants fitted to the source are removed first, and the three runs are taken at one sixth, one half and five
sixths of the source's runs on one chip, in order of size. Disturbed runs are left out.

"""

AFTER_CALIBRATION: Final = """
Three numbers repair a machine or a framework that is slower throughout (simumax, torchtune, megatron_sc21). They do not
repair settings that are simulated wrongly without the source's facts: in foundry, the masked half of attention, which
depends on the length. If the three runs contradict each other, the constants stay as shipped (nanotron, with 377 runs
of layouts from poor to good; vtrain; dgxc; llmq; fms). For such a mixture, calibrate with runs like those to be
predicted.
"""

OWN: Final = """## Your own runs

`simulator validate --csv FILE` simulates runs that you have measured, and prints the error of each run;
`simulator calibrate FILE --out my_framework.yaml` fits a framework to them. The first line of the file names the
columns, and every further line is a run. Empty cells mean the default. A scenario's names of the same settings
(`activation_checkpointing`, `compile`, `gradient_accumulation_steps`, `world_size`, `attention_generation`, or
`training.parallelism.tp`) and its spellings of numbers (`8k`) are accepted. A run with adapters, an own model or an own
topology is a line with the column `scenario`: the scenario file beside the CSV file has all settings.

"""

WORST: Final = """## The worst rows

"""

CONSTANTS: Final = """\
A training step is slower than the sum of its kernels in a micro-benchmark. Which kernels a framework launches between
matmuls follows from its code (`program`) without a fitted number. The following numbers describe the rest. None of the
numbers depends on a model or a row:

- `sustained`: factor between the time of matmuls during hours of load, under the board's power limit, and their time in
  a micro-benchmark of some milliseconds. It belongs to the chip: the median of what the steps of the sources on the
  chip ask for, 1.30 to 1.33 on H100 (NeMo, llm-foundry, nanotron; one row of MLPerf 1.13), and 1.20 to 1.28 on A100
  (Megatron-LM in two sources, llm-foundry, torchtitan, InternEvo). Single GPUs ask for less (1.17 on one H100, 1.47 on
  one B200, where several ask for 1.65): of several GPUs, the slowest decides. A board with fewer watts for each FLOP/s
  of its peak loses by the square root. This root is a rule of thumb. It was chosen for a single board, the H100 with
  500 W, so that board's rows cannot also test the rule. A board with more watts gains by the cube root, because voltage
  rises with frequency: Llama 3 8B is 3 to 5 % faster on a GB200 than on a B200, which has 17 % less power. From 8 to 4
  bits, matmuls save the same share of power as from 16 to 8.
- `attention_masked`: share of the masked half of the scores that attention computes nevertheless. In llm-foundry's rows
  with long sequences, attention takes almost twice the time expected from published FlashAttention-2 efficiencies for
  the causal half, on both GPUs. For the full square these efficiencies are nearly right. The source does not state
  which kernels ran.
- `issue`: time of the host to launch a kernel, from public measurements, for nanotron and Megatron-LM of 2021 from
  their smallest runs; `parts` take several launches.
- `parameter_bytes`: HBM traffic around the collectives for each parameter and micro-batch: gathering into flat buffers,
  splitting, casting to float32, scaling.
- `compiled`: cost of a compiler's merged kernels, relative to the ideal traffic of their parts.

Facts complete these numbers. The facts are recalled rather than measured. llm-foundry's loss reads the logits once in
each pass (`loss: fused`). Recomputation stops at the last tensor that is needed, which omits a third of an MPT layer's
matmuls (`stops_early`). torchtitan's layers hold each projection as a separate matrix, and `selective_op` recomputes
every second matrix (`split_maps`).
"""

MEMORY: Final = """## Memory

[validation_cut.md](validation_cut.md) shows memory by source. torchtitan printed the memory of the GPU with the highest
peak. No number is fitted to memory, but one assumption was made with knowledge of the measured memory: the loss holds
its float32 gradients at once, and half of the gradients if a compiler merges the steps of the loss. The choice of
matrices that `selective_op` keeps is modelled coarsely, by whole operations. Errors of several GiB may therefore
cancel.

Megatron-LM's functional tests state the allocated bytes and the peak of 44 runs of small GPT models on 8 A100, with
tensor, pipeline and context parallelism, ZeRO-1 and recomputation. With `framework: megatron_core`, or
`megatron_local` without Transformer Engine, and with the workspaces and the gradients of these tests' options,
allocated bytes and the peak are within 2 % or 100 MB in every run
([tests](https://github.com/NVIDIA/Megatron-LM/tree/main/tests/functional_tests)).

"""

SHORT: Final = """## Where it falls short

- The 30 B model at sequence 8192 was measured a quarter slower than similar rows, on both GPUs; its memory is nearly
  full. The 760 M model on A100 was measured slower at 512 and 1024 tokens than at 2048. No simulated effect explains
  these rows, and the fit gives them little weight.
- `communication_sms`, a published figure, changes no error by more than a tenth of a point. The HBM bandwidth taken by
  a ring is computed from its links (`simulator/step/kernels/contention.py`) and is not a constant.
- The fused `loss` of llm_foundry is a fact of its code (`modeling_mpt.py`). The rows hardly depend on it: a loss takes
  little time beside 24 to 48 layers.
- torchtitan's H100 rows on 128 GPUs take 3 % longer than those on 8 GPUs, and simulated ones do not. The cause is not
  modelled.
- Collectives over more nodes than were measured (two) take the steps of NCCL's trees and rings at the rates of two
  nodes ([measured.md](measured.md)).
- `sustained` of a chip without measurements is the median over the measured chips, and is a guess for such a chip.
- `issue_in_pipeline` is a form found in nanotron's rows: with a pipeline over several nodes, issuing an exchange within
  a stage takes a quarter of a millisecond for each rank of the exchange. The cause is not known.
- A sixth of vTrain's rows, with tp 2 and 4 on 512 GPUs, took 15 to 60 % longer than other rows of the same sweep that
  differ only in the micro-batch. No simulated effect explains the difference. """
