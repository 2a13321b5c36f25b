"""The text written by `simulator new`: a runnable scenario that shows further keys.

Lines without a comment sign load; a comment sign precedes keys with their default or an example.
"""

from __future__ import annotations

from typing import Final, Literal

# Doubled braces survive `str.format`.
_HEAD: Final = """\
# {question}
name: {name}                    # name of the runs' folders
seed: 0                         # random seed

cluster:
  topology: star_100g           # a name from `simulator list topologies`, or the path of your own file
  world_size: 8                 # number of ranks, each on its own GPU
  # gpu: a100_sxm_80gb          # a name from `simulator list gpus`; the topology's GPU if omitted
  # stragglers: {{3: 0.8}}        # rank 3 runs at 0.8 of its FLOP/s and memory bandwidth
  # link_factors: {{'gpu0->switch0': 0.5}}
  # jitter: {{compute: 0.02, latency: 0.05}}     # times are multiplied by exp(sigma z)

"""
_COLLECTIVE: Final = """\
collective:                     # or `training`: one step of a model
  operation: all_reduce         # all_reduce reduce_scatter all_gather broadcast reduce scatter gather all_to_all
  algorithm: ring               # a name from `simulator list algorithms`; auto chooses, and gives the reason
  size: 64 MiB                  # the whole array; units are B, kB, MB, GB or KiB, MiB, GiB
  dtype: float32                # float64 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int8 uint8
  reduction: sum                # sum average max min product
  accumulate: payload           # payload or float32: dtype of partial sums
  payload: auto                 # whether real arrays move; auto: while world_size x size is at most 256 MiB
  # servers: {count: 4, on: workers}           # with algorithm: parameter_server
  # root: 0                                    # with broadcast, reduce, scatter and gather

engine: auto                    # auto events compiled

compare:                        # values to compare
  collective.algorithm: [ring, tree]

sweep:                          # values to sweep; every combination of all values is simulated
  cluster.world_size: [2, 4, 8, 16]
  collective.size: [64 KiB, 4 MiB, 64 MiB]

plots: [bandwidth_utilization, scaling, steps, timeline]
"""
_TRAINING: Final = """\
training:
  model: gpt2                   # a name from `simulator list models`, or the path of a Hugging Face config.json
  seq_len: 1024                 # tokens per sequence
  micro_batch_size: 4           # sequences per micro-batch on each rank
  gradient_accumulation_steps: 1
  mtp_layers: 0                 # layers behind the model's that each predict a further token
  # global_batch: 4M            # alternative to gradient_accumulation_steps: tokens of all ranks together, or 512seq
  sharding: zero3               # ddp zero1 zero2 zero3 parameter_server; or with all keys:
  # sharding: {strategy: zero3, reshard_after_forward: true, prefetch: 1, layers_per_unit: 1, keep_below: 0}
  # also bucket_size: 25 MiB (all but zero3), shard_size: 8 (zero1 zero2 zero3), and of parameter_server servers: 2,
  # servers_on: workers, asynchronous: true, staleness: 4
  precision: bf16               # fp64 fp32 tf32 fp16 bf16 fp8 nvfp4; or with all keys:
  # precision: {params: bfloat16, grads: bfloat16, reduce: float32, master: float32, matmul: bfloat16}
  activation_checkpointing: none  # none full sqrt attention selective_op feed_forward activation;
  # or {every: 2}, [0, 3], {full: [0], attention: [1]}
  attention: flash              # flash standard eager
  loss: auto                    # kernels of the loss: auto ideal separate narrow vocab_parallel sharded native fused;
  # or in_place, chunked
  attention_generation: auto    # generation of the flash attention kernels: auto 1 2 3 4
  optimizer: adam               # sgd momentum adam adam_8bit paged_adam paged_adam_8bit lion muon adafactor;
  # or {name: adam, implementation: foreach}
  collectives: auto             # auto played closed_form
  algorithm: auto               # algorithm of all collectives: auto ring direct hierarchical ...
  compile: false                # whether a compiler merges kernels
  dropout: false                # or a probability, such as 0.1
  framework: torchtitan         # whose kernels, host, memory: torchtitan maxtext maxtext_rocm transformers foak
  # torchtune torchtitan_2024 llm_foundry llmq nemo nemo_2025 megatron_core megatron_local megatron_2021
  # megatron_deepspeed deepspeed_2021 internevo nanotron bare
  allocator: caching            # caching or expandable_segments
  offload: none                 # none optimizer activations; or {what: optimizer, host_rate: 50 GB/s}
  checkpoint_traffic: none      # sharded: a checkpoint leaves during the step, to cluster.storage: 20 GB/s
  # lora: {rank: 16, targets: all}   # adapters on a frozen model; also attention, feed_forward, [q, v]
  loss_scaling: auto            # auto none dynamic deepspeed static; or with all keys:
  # loss_scaling: {rule: dynamic, start: 65536, interval: 2000, shared: true}
  # clip_norm: 1.0              # no clipping if omitted
  numerics: false               # true: really train a small GPT-2, for this number of steps:
  steps: 20
  learning: {rate: 0.001, decay: 0.0, momentum: 0.9}   # tokens: corpus.txt or batches: tokens.npy
  # learning: {betas: [0.9, 0.999], eps: 1e-8, warmup: 2, schedule: cosine, initial: parameters.npz}
  # the rate's schedule: constant linear cosine
  faults: []                    # - {step: 5, what: bit_flip, transfer: 0, element: 0, bit: 30}; what may also be
  # dropped doubled stale overflow stopped
  # parallelism: {tp: 2, pp: 2}   # if omitted, all ranks are data parallel; also dp, sequence_parallel: false,
  # tp_overlap: none (ring_exchange bulk),
  # schedule: 1f1b (gpipe interleaved looped_bfs zb_h1 zb_h2 zb_v v_half v_min dualpipe ...), virtual_stages: 2,
  # microbatch_group: 4, stages: {first_less: 1, last_less: 1} or [3, 5], order: [tp, cp, ep, dp, pp], cp: 2,
  # context: ring (all_gather ulysses, or {ulysses: 2, ring: 2}), balanced: false, ep: 4 (of the ranks of a stage),
  # etp: 1 (tp if omitted), experts: {dispatch: all_to_all (all_gather deduplicated), capacity: 1.25,
  # imbalance: 1.1 or {zipf: 0.3}, dtype: float8_e4m3fn, routing: uniform (round_robin)}

engine: auto                    # auto events compiled

compare:                        # values to compare
  training.sharding.strategy: [ddp, zero3]

sweep:                          # values to sweep; every combination of all values is simulated
  cluster.world_size: [2, 4, 8]
  training.micro_batch_size: [1, 4]

plots: [bandwidth_utilization, breakdown, dimensions_on_links, loss, memory, memory_by_stage, memory_peaks,
        memory_vs_time, pipeline, scaling, timeline]
"""


def template(name: str, question: str, kind: Literal["collective", "training"] = "collective") -> str:
    """Return the YAML text of a new scenario to start from.

    Parameters
    ----------
    name : str
        Name of its runs: letters, digits, '_', '-' and '.'.
    question : str
        Question to answer; becomes the first comment.
    kind : {"collective", "training"}
        What is simulated.

    Returns
    -------
    str
        YAML text.

    Raises
    ------
    ScenarioError
        The name cannot be a folder's name.

    Examples
    --------
    >>> print(template("demo", "Is a ring faster than a tree?").splitlines()[0])
    # Is a ring faster than a tree?
    """
    from simulator.basics import yaml_dialect
    from simulator.scenario.load import check_name

    check_name(name)
    # A single line without leading comment signs: the question must stay inside its comment.
    line = " ".join("".join(c if c.isprintable() else " " for c in question).split()).lstrip("# ")
    # A name such as 2024 or 1e9 must stay text.
    written = yaml_dialect.dump(name, one_line=True)
    head = _HEAD.format(name=written, question=line or "What do you want to know?")
    return head + (_TRAINING if kind == "training" else _COLLECTIVE)
