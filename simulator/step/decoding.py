"""How long does an inference engine take to generate a batch of answers of unequal lengths?

Each step of generation (decoding) is a forward pass with one token for every live answer. Its kernels are those of the
model's forward pass; attention reads the keys and values of every token so far, and the host prepares the next step.
An answer that ends makes room for a waiting one (continuous batching). When none waits, fewer and fewer answers are
live, each step still reads all weights, and the longest answer decides when the batch ends.

Example: two answers of 10 and 30 tokens, one step of two live answers in 7 ms and of one in 6 ms: 10 x 7 + 20 x 6 =
190 ms, of which the last 120 ms generate a single answer.

A roofline of measured kernels, without a scheduler: prompts are processed at once, no answer is interrupted, and every
engine has the same answers in number.

References
----------
.. [1] Yu et al., "Orca: a distributed serving system for transformer-based generative models", OSDI 2022 (continuous
   batching).
.. [2] vllm-project/vllm, issue 10634: gaps of 5 to 6 ms between steps of 256 answers of a 7B model; issue 6854: 5 to 13
   ms; 0.2 to 0.3 ms expected with asynchronous scheduling.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from simulator.basics.dtypes import find
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.collectives.estimate import estimate
from simulator.model.expert_partition import ExpertPartition
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.model.model import layer_operations, modules
from simulator.model.operation import Batch
from simulator.model.partition import WHOLE
from simulator.model.shape import Transformer
from simulator.step.kernels.kernel_time import duration

# Time of the host between two steps, without asynchronous scheduling [s] [2]_.
HOST: Final = 5e-3
# Share of a GPU's memory that an engine fills with weights, keys and values (vLLM, `gpu_memory_utilization`).
_FILLED: Final = 0.9


@dataclass(frozen=True)
class Decoder:
    """An inference engine on several GPUs that share the model by tensor parallelism."""

    model: Transformer
    # GPUs of the engines; the first ranks are those of one engine.
    cluster: Cluster
    tp: int = 1  # GPUs of an engine
    dtype: str = "bfloat16"  # dtype of weights, keys and values
    host: float = HOST  # time of the host between two steps [s]

    @cached_property
    def weights(self) -> float:
        """Bytes of the weights on a GPU [B]."""
        elements = sum(tensor.elements for module in modules(self.model, WHOLE) for tensor in module.parameters)
        return elements * find(self.dtype).itemsize / self.tp

    @cached_property
    def kept(self) -> float:
        """Bytes of the keys and values of a token on a GPU, of all layers [B]."""
        model, itemsize = self.model, find(self.dtype).itemsize
        if model.latent is not None:
            # Every rank keeps the short vector whole.
            return float(model.num_layers * (model.latent.kv_rank + model.latent.rotary_dim) * itemsize)
        heads = -(-model.num_kv_heads // self.tp)
        return float(model.num_layers * 2 * heads * model.head_dim * itemsize)

    @cached_property
    def room(self) -> float:
        """Tokens whose keys and values have room beside the weights; at most 0 if the weights alone are too large."""
        return (_FILLED * self.cluster.gpus[0].hbm_bytes - self.weights) / self.kept

    def step(self, live: int) -> float:
        """Return the time of a step for a number of live answers [s], without reading keys and values."""
        counts, times = self._curve
        return float(np.interp(live, counts, times))

    def read(self, tokens: float) -> float:
        """Return the time to read the keys and values of a number of tokens [s]."""
        return tokens * self._seconds_per_token

    def prefill(self, answers: int, tokens: int) -> float:
        """Return the time of a forward pass over the prompts of a number of answers, of `tokens` tokens each [s]."""
        if not tokens:
            return 0.0
        at_once = max(1, 8192 // tokens)
        full, rest = divmod(answers, at_once)
        return full * self._forward(at_once, tokens) + (self._forward(rest, tokens) if rest else 0.0)

    @cached_property
    def _curve(self) -> tuple[list[int], list[float]]:
        counts = [2**power for power in range(13)]
        return counts, [self._forward(count, 1) + self._head(count) + self.host for count in counts]

    @cached_property
    def _seconds_per_token(self) -> float:
        # A large read, so that the launch does not count.
        gpu, tokens = self.cluster.gpus[0], 1e6
        return duration(Elementwise("keys and values", tokens * self.kept, 0.0), gpu, self.dtype) / tokens

    def _forward(self, sequences: int, tokens: int) -> float:
        """Return the time of the layers' forward pass [s]; attention over single tokens is left out."""
        cut, total = replace(WHOLE, tensor=self.tp), 0.0
        if self.model.num_experts and self.tp > 1:
            cut = replace(cut, experts=ExpertPartition(1, self.tp))
        for kind, layers in self.model.kinds.items():
            kernels = self._kernels(kind, Batch(sequences, tokens, find(self.dtype).itemsize, cut=cut))
            seconds = sum(duration(kernel, self.cluster.gpus[0], self.dtype, compiled=True) for kernel in kernels)
            total += len(layers) * (seconds + 2 * self._summed(sequences * tokens))
        return total

    def _kernels(self, kind: Transformer, batch: Batch) -> list[Kernel]:
        """Return the kernels of a layer's forward pass, with the experts that the tokens choose."""
        kernels: list[Kernel] = []
        for operation in layer_operations(kind, batch):
            for kernel in operation.forward:
                if isinstance(kernel, Attention) and batch.seq_len == 1:
                    # The launch; `read` has the bytes.
                    kernels.append(Elementwise("attention", 0.0, 0.0))
                elif isinstance(kernel, Matmul) and kernel.kind == "grouped":
                    # Few tokens choose few of the experts, whose weights alone are read.
                    experts = expected_experts(kind.num_experts, kind.active_experts, batch.tokens)
                    tokens = max(1, round(batch.tokens * kind.active_experts / experts))
                    kernels.append(replace(kernel, m=tokens, batch=max(1, round(experts))))
                else:
                    kernels.append(kernel)
        return kernels

    def _summed(self, tokens: int) -> float:
        """Return the time to sum the hidden states of a number of tokens over the GPUs of an engine [s]."""
        counts, times = self._sums
        return float(np.interp(tokens, counts, times))

    @cached_property
    def _sums(self) -> tuple[tuple[int, ...], list[float]]:
        counts = (1, 256, 8192)
        if self.tp == 1:
            return counts, [0.0] * len(counts)
        times = []
        for tokens in counts:
            request = CollectiveRequest("all_reduce", self.tp, tokens * self.model.hidden_size)
            planned = plan(self.cluster, Task(request, "auto", tuple(range(self.tp)), self.dtype))
            times.append(planned.predicted or estimate(self.cluster, planned.ops[0]) or 0.0)
        return counts, times

    def _head(self, live: int) -> float:
        """Return the time of the logits and of the choice of a token each [s]."""
        gpu, model = self.cluster.gpus[0], self.model
        logits = Matmul("logits", live, -(-model.vocab_size // self.tp), model.hidden_size)
        nbytes = 4.0 * live * model.vocab_size
        return duration(logits, gpu, self.dtype) + duration(Elementwise("sampling", nbytes, nbytes), gpu, self.dtype)


def expected_experts(experts: int, active: int, tokens: int) -> float:
    """Return how many experts are chosen by at least one of several tokens, each of which chooses any `active` ones.

    >>> expected_experts(128, 8, 1), round(expected_experts(128, 8, 64), 1)
    (8.0, 125.9)
    """
    return experts * (1.0 - (1.0 - active / experts) ** tokens)


@dataclass(frozen=True, slots=True)
class Generated:
    """The generation of a batch by one engine."""

    seconds: float  # from the first prompt to the end of the longest answer [s]
    tail: float  # time at the end in which at most a tenth of the answers are live [s]
    most_live: int  # most answers at once


def generated(
    lengths: Sequence[int],
    prompt: int,
    room: float,
    step: Callable[[int], float],
    read: Callable[[float], float],
    before: float = 0.0,
    *,
    partial: bool = False,
) -> Generated:
    """Return the generation of answers by one engine, which begins answers in order while keys and values have room.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each answer.
    prompt : int
        Tokens of each prompt, of which keys and values are kept, too.
    room : float
        Tokens whose keys and values the engine holds, for answers as long as the mean.
    step, read : callable
        Time of a step for a number of live answers, and time to read the keys and values of a number of tokens [s].
    before : float
        Time of the prompts [s].
    partial : bool
        Whether a batch ends when as many answers as it has are complete, and the others go on in the next batch. Of
        many batches in a row, each then takes the time of its tokens with a full engine.

    Examples
    --------
    >>> outcome = generated([10, 30], 0, 1e9, lambda live: 5e-3 + 1e-3 * live, lambda tokens: 0.0)
    >>> round(outcome.seconds, 9), round(outcome.tail, 9)
    (0.19, 0.12)
    >>> round(generated([10, 30], 0, 1e9, lambda live: 5e-3 + 1e-3 * live, lambda tokens: 0.0, partial=True).seconds, 9)
    0.14
    """
    tokens = sum(lengths)
    count = len(lengths)
    most = min(count, max(1, int(room / (prompt + tokens / count))))
    if partial:
        # An answer of n tokens has n / 2 of them in the mean over its n steps.
        tokens_kept = sum(length * (prompt + length / 2) for length in lengths) / tokens
        return Generated(before + tokens / most * (step(most) + read(most * tokens_kept)), 0.0, most)
    ends = _ends(lengths, most, prompt, step, read)
    return Generated(before + ends[-1], ends[-1] - ends[-1 - max(1, count // 10)] if count > 1 else 0.0, most)


def _ends(
    lengths: Sequence[int], most: int, prompt: int, step: Callable[[int], float], read: Callable[[float], float]
) -> list[float]:
    """Return the time at which each answer ends, in order, if at most `most` are generated at once [s]."""
    waiting = list(reversed(lengths))
    # Live answers: the step at which each ends, and that at which it began.
    live: list[tuple[int, int]] = []
    seconds, number, ends = 0.0, 0, list[float]()
    while waiting or live:
        while waiting and len(live) < most:
            heapq.heappush(live, (number + waiting.pop(), number))
        next_end, count = live[0][0], len(live)
        steps = next_end - number
        # Tokens of all live answers, in the mean over the steps.
        tokens = count * (prompt + number + steps / 2) - sum(since for _, since in live)
        seconds += steps * (step(count) + read(tokens))
        number = next_end
        while live and live[0][0] == number:
            heapq.heappop(live)
            ends.append(seconds)
    return ends
