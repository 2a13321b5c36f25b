"""Measure one GPU with PyTorch alone, for `simulator fit gpu FILE`.

Run it on the machine with the GPU; it needs this file and PyTorch, nothing else, and takes about two minutes:

    python measure_gpu.py --out my_gpu.json

It times matmuls, copies in HBM, attention, elementwise kernels, and steps of a small GPT with and without activation
checkpointing, with their peak memory. Each time is the median of several runs after a warm-up. On a GPU shared with
other programs, times are too long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as functional
from torch.utils.checkpoint import checkpoint

# (m, n, k), from launch-bound to compute-bound shapes.
MATMULS = (
    (256, 256, 512), (512, 512, 512), (512, 2048, 1024), (1024, 1024, 1024), (1024, 4096, 1024), (2048, 2048, 2048),
    (2048, 512, 4096), (4096, 1024, 4096), (2048, 8192, 2048), (4096, 4096, 4096), (8192, 2048, 8192),
    (4096, 16384, 4096), (8192, 8192, 8192), (2048, 2048, 13312), (16384, 4096, 4096), (16384, 8192, 8192),
)  # fmt: skip
# (batch, heads, sequence length, head width).
ATTENTION = ((8, 16, 1024, 64), (4, 32, 2048, 128), (1, 32, 8192, 128), (2, 16, 4096, 64))
# (rows, columns); the largest array is far larger than a cache.
ELEMENTWISE = ((4096, 1024), (8192, 4096), (16384, 8192))
# (layers, hidden size, heads, sequence length, sequences, vocabulary).
GPTS = ((12, 768, 12, 1024, 8, 50304), (8, 2048, 16, 2048, 4, 32000), (4, 4096, 32, 2048, 2, 32000))
# Runs per time; the median ignores a single disturbed run.
REPEATS = 7


class Clock:
    """Times work on a device: by events on a GPU, by the wall clock elsewhere."""

    def __init__(self, device):
        self.device, self.cuda = device, device.type == "cuda"

    def seconds(self, work, inner=1):
        """Return the median time for `work`, repeated `inner` times in a row [s]."""
        # Warm-up: the first calls load kernels and allocate memory.
        for _ in range(2):
            work()
        times = []
        for _ in range(REPEATS):
            # Events measure on the GPU itself; the wall clock would measure the asynchronous launch.
            if self.cuda:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                begin.record()
                for _ in range(inner):
                    work()
                end.record()
                torch.cuda.synchronize()
                times.append(begin.elapsed_time(end) / 1e3 / inner)
            else:
                start = time.perf_counter()
                for _ in range(inner):
                    work()
                times.append((time.perf_counter() - start) / inner)
        return statistics.median(times)


def matmuls(clock, shapes, dtypes):
    """Return the times of out = a b, by dtype [s]."""
    rows = []
    for name, dtype, tf32 in dtypes:
        # float32 inputs with this flag are multiplied in tf32.
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for m, n, k in shapes:
            a = torch.randn(m, k, device=clock.device, dtype=dtype)
            b = torch.randn(k, n, device=clock.device, dtype=dtype)
            out = torch.empty(m, n, device=clock.device, dtype=dtype)
            # Short matmuls are repeated more often, so that the clock's resolution does not matter.
            inner = 20 if m * n * k < 2**33 else 5
            rows.append(
                {
                    "dtype": name,
                    "m": m,
                    "n": n,
                    "k": k,
                    "seconds": clock.seconds(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out), inner),
                }
            )
    return rows


def copies(clock, sizes):
    """Return the times of copies within HBM, by size [s]."""
    rows = []
    for nbytes in sizes:
        a = torch.empty(nbytes // 2, device=clock.device, dtype=torch.bfloat16)
        b = torch.empty_like(a)
        rows.append({"bytes": nbytes, "seconds": clock.seconds(lambda a=a, b=b: b.copy_(a), 5)})
    return rows


def attentions(clock, shapes):
    """Return the times of causal attention, forward, and forward with backward [s]."""
    rows = []
    for batch, heads, seq, width in shapes:
        q, k, v = (
            torch.randn(batch, heads, seq, width, device=clock.device, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        # Without saved tensors, as in inference: the forward kernel alone.
        with torch.no_grad():
            forward = clock.seconds(
                lambda q=q, k=k, v=v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), 5
            )

        def both(q=q, k=k, v=v):
            functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

        rows.append(
            {
                "batch": batch,
                "heads": heads,
                "seq_len": seq,
                "head_dim": width,
                "forward": forward,
                "forward_backward": clock.seconds(both, 3),
            }
        )
    return rows


def elementwise(clock, shapes):
    """Return the times of a norm, an activation and an addition, on rows x columns numbers in bfloat16 [s]."""
    rows = []
    for height, width in shapes:
        x = torch.randn(height, width, device=clock.device, dtype=torch.bfloat16)
        y, weight = torch.randn_like(x), torch.ones(width, device=clock.device, dtype=torch.bfloat16)
        kinds = {
            "norm": lambda x=x, w=weight, n=width: functional.layer_norm(x, (n,), w),
            "activation": lambda x=x: functional.gelu(x, approximate="tanh"),
            "add": lambda x=x, y=y: x + y,
        }
        rows += [
            {"kind": kind, "rows": height, "columns": width, "seconds": clock.seconds(work, 10)}
            for kind, work in kinds.items()
        ]
    return rows


class Layer(torch.nn.Module):
    """A GPT-2 layer without dropout."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = (
            part.view(batch, seq, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, seq, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    """GPT-2 in bfloat16, with separate embedding and head; `again` recomputes layers in the backward pass."""

    def __init__(self, layers, width, heads, seq, words, again):
        super().__init__()
        self.tok, self.pos = torch.nn.Embedding(words, width), torch.nn.Embedding(seq, width)
        self.layers = torch.nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head, self.again = torch.nn.LayerNorm(width), torch.nn.Linear(width, words, bias=False), again

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return self.head(self.norm(x))


def gpts(clock, shapes):
    """Return time [s] and peak memory [B] of a whole step: forward, float32 loss, backward, SGD without states."""
    rows = []
    for layers, width, heads, seq, sequences, words in shapes:
        for again in (False, True):
            model = Gpt(layers, width, heads, seq, words, again).to(clock.device, torch.bfloat16)
            # SGD without momentum keeps no states, so that memory shows activations.
            update = torch.optim.SGD(model.parameters(), lr=1e-4)
            tokens = torch.randint(words, (sequences, seq + 1), device=clock.device)

            def step(model=model, update=update, tokens=tokens):
                logits = model(tokens[:, :-1])
                functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
                update.step()
                update.zero_grad(set_to_none=True)

            # The first step allocates gradients, and must not count as peak.
            step()
            if clock.cuda:
                torch.cuda.reset_peak_memory_stats()
            seconds = clock.seconds(step)
            peak = torch.cuda.max_memory_allocated() if clock.cuda else 0
            rows.append(
                {
                    "layers": layers,
                    "hidden": width,
                    "heads": heads,
                    "seq_len": seq,
                    "sequences": sequences,
                    "words": words,
                    "checkpointing": "full" if again else "none",
                    "seconds": seconds,
                    "peak_bytes": peak,
                }
            )
            # Free the model's memory before the next model is built.
            del model, update, step
            if clock.cuda:
                torch.cuda.empty_cache()
    return rows


def device_facts(device):
    """Return PyTorch's facts about the device."""
    if device.type != "cuda":
        return {"name": "cpu", "sms": 1, "memory_bytes": 0, "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip or "",
    }


def main(arguments=None):
    """Measure, and write the figures to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="gpu.json", help="where the figures go")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ...; cpu tries the script out")
    parser.add_argument("--tiny", action="store_true", help="a few small shapes, to try the script out")
    asked = parser.parse_args(arguments)
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("measure_gpu.py: PyTorch sees no GPU here")
    clock, few = Clock(device), slice(0, 1 if asked.tiny else None)
    # fp8 matmuls need other operands; the fit keeps the base GPU's constants for them.
    dtypes = [("bfloat16", torch.bfloat16, False), ("tf32", torch.float32, True)]
    sizes = (2**20,) if asked.tiny else (2**20, 2**24, 2**27, 2**30)
    parts = {
        "matmul": lambda: matmuls(clock, MATMULS[few], dtypes),
        "copy": lambda: copies(clock, sizes),
        "attention": lambda: attentions(clock, [(1, 2, 128, 64)] if asked.tiny else ATTENTION),
        "elementwise": lambda: elementwise(clock, ELEMENTWISE[few]),
        "gpt": lambda: gpts(clock, [(1, 64, 2, 64, 2, 128)] if asked.tiny else GPTS),
    }
    found = {"format": "simulator-gpu-1", "device": device_facts(device)}
    for name, part in parts.items():
        # On stderr: two minutes without any output would look stuck.
        print(f"{name} ...", file=sys.stderr, flush=True)
        found[name] = part()
    with open(asked.out, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
    print(f"written: {asked.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
