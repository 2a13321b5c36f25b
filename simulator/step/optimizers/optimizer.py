"""Which facts does an optimizer's file declare? Its states, the kernels of its update, and a rule for matrices, if any.

Other code reads these fields and never compares an optimizer's name. A shared test holds every optimizer to its
declaration, counted from its paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from simulator.basics.arrays import Array
from simulator.basics.catalog import Catalog
from simulator.basics.dtypes import find
from simulator.step.framework import Implementation

# Where whole matrices come together for an update that needs them whole.
Distribution = Literal["replicated", "gathered", "owners", "all_to_all"]
DISTRIBUTIONS: Final[tuple[Distribution, ...]] = ("replicated", "gathered", "owners", "all_to_all")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UpdateConstants:
    """Constants of an update; `betas`, `momentum`, `eps` and `decay` are the values of these keys of `learning`."""

    step: int  # number of this update, from 1
    rate: float  # learning rate of this update, after warm-up and decay
    betas: tuple[float, float]  # decay factors of moving averages
    momentum: float
    eps: float
    decay: float


# Changes parameters and states in place: update(parameters, gradient, states, constants).
OwnUpdate = Callable[[Array, Array, tuple[Array, ...], UpdateConstants], None]


@dataclass(frozen=True, slots=True)
class SeparateKernels:
    """Kernels and HBM traffic of an update with a kernel for each arithmetic operation."""

    kernels: int  # kernels per tensor
    # `parameters`, `gradients`: Accesses (reads and writes) to each updated number, and to its gradient.
    parameters: int
    gradients: int
    numbers: int  # accesses to states, and to temporaries of a state's size, per parameter
    temporaries: int = 0  # most temporaries of a state's size held at once per parameter


@dataclass(frozen=True, slots=True)
class MatrixRule:
    """An update of a layer's weight matrices in three steps: average the gradient, make the average orthogonal by
    Newton-Schulz iterations, apply the result.

    Tensor-parallel ranks make their parts of a matrix orthogonal, each on its own.
    """

    states: int  # numbers per element of a matrix, besides the master copy
    # `average`, `apply`: Kernels of the first and of the last step.
    average: SeparateKernels
    apply: SeparateKernels
    iterations: int = 5  # Newton-Schulz iterations
    dtype: str = "bfloat16"  # dtype in which matrices are multiplied, and sent between ranks
    # replicated: every rank has every matrix. gathered: each rank averages its shards, gathers the averages of every
    # matrix, and keeps its shard of the result. owners: a rank owns whole matrices, updates them, and sends the result
    # to every rank. all_to_all: averages travel from shards to the owners of whole matrices, and results back.
    distribution: Distribution = "replicated"

    def matmuls(self, rows: int, columns: int) -> tuple[tuple[int, int, int], ...]:
        """Return the matmuls (m, n, k) that make a matrix of `rows` x `columns` orthogonal.

        An iteration computes A = X X', B = b A + c A A, and X = a X + B X, with X the matrix or its transpose,
        whichever has fewer rows: 4 m^2 n + 2 m^3 FLOPs for m rows and n columns.

        >>> from simulator.step.optimizers.muon import OPTIMIZER
        >>> OPTIMIZER.of_matrices.matmuls(4, 2)[:3]
        ((2, 2, 4), (2, 2, 2), (2, 4, 2))
        """
        m, n = sorted((rows, columns))
        return self.iterations * ((m, m, n), (m, m, m), (m, n, m))

    @property
    def itemsize(self) -> int:
        """Bytes of a number while matrices are multiplied and sent [B]."""
        return find(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer's memory and HBM traffic per parameter.

    Attributes
    ----------
    implementation : {"fused", "foreach", "for_loop"} or None
        fused: a kernel reads and writes everything once. foreach: a kernel per arithmetic operation, over every tensor.
        for_loop: a kernel per operation and tensor. None for the framework's default.
    update : tuple of (str, str)
        Arrays that each kernel of an update without fusion reads, and writes; an array is a letter. p is the parameter,
        g the gradient, d a temporary; every other letter is a state. `check_optimizer` compares `states` and `separate`
        with these kernels. Empty if unknown.
    """

    name: str
    states: int  # numbers per parameter, besides the master copy
    # Kernels of the implementations "foreach" and "for_loop"; None if there is a fused kernel alone
    separate: SeparateKernels | None
    source: str  # paper and implementation
    has_fused: bool = True  # whether a published implementation has a single kernel for the whole update
    implementation: Implementation | None = None
    state_dtype: str = "float32"  # dtype of the states
    block: int = 0  # states that share a float32 scale, and have eight bits each; 0 for states of `state_dtype`
    # Rule for the weight matrices of layers; the optimizer's other fields are then about all other parameters
    of_matrices: MatrixRule | None = None
    paged: bool = False  # whether states move to host memory page by page if the GPU is full (CUDA's managed memory)
    update: tuple[tuple[str, str], ...] = ()
    # Update of an own optimizer in numpy, for real training: numbers(parameters, gradient, states, constants) changes
    # flat arrays in place, element by element; `states` has `states` arrays, which begin with zeros, and `constants`
    # are UpdateConstants. None for the shipped optimizers, whose rules are in `simulator.numerics`.
    numbers: OwnUpdate | None = None

    @property
    def has_own_dtype(self) -> bool:
        """True if the states have a dtype of their own, whatever the dtype of what is updated."""
        return self.block > 0 or self.paged

    @property
    def owns_whole_tensors(self) -> bool:
        """True if each rank owns whole tensors rather than parts of all."""
        return self.of_matrices is not None and self.of_matrices.distribution == "owners"

    @property
    def state_itemsize(self) -> float:
        """Bytes of a number among the states, with its share of a scale [B]."""
        return 1 + 4 / self.block if self.block else float(find(self.state_dtype).itemsize)


def dealt(sizes: tuple[tuple[Shape, int], ...], ranks: int) -> tuple[dict[Shape, int], ...]:
    """Return the number of tensors of each shape that each rank owns, if whole tensors are dealt to ranks.

    Megatron-Core's layer-wise optimizer deals tensors in order of size, to ranks 0, 1, ..., N - 1, N - 1, ..., 1, 0,
    and so on.

    Parameters
    ----------
    sizes : tuple of (shape, count)
        Shapes of tensors, each with the number of tensors of this shape.

    Examples
    --------
    >>> dealt((((2, 2), 3), ((4, 4), 2)), 2)
    ({(2, 2): 1, (4, 4): 2}, {(2, 2): 2})
    """
    places = [*range(ranks), *reversed(range(ranks))]
    owned: list[dict[Shape, int]] = [{} for _ in range(ranks)]
    position = 0
    for shape, count in sorted(sizes, key=lambda entry: (prod(entry[0]), entry[0])):
        # Whole rounds give each rank two tensors.
        rounds, rest = divmod(count, len(places))
        counts = [2 * rounds] * ranks
        for step in range(rest):
            counts[places[(position + step) % len(places)]] += 1
        position = (position + count) % len(places)
        for rank, number in enumerate(counts):
            if number:
                owned[rank][shape] = number
    return tuple(owned)


def busiest_owner(sizes: tuple[tuple[Shape, int], ...], ranks: int) -> tuple[tuple[Shape, int], ...]:
    """Return the tensors (shape, count) of the rank that owns the most elements, if whole tensors are `dealt` to ranks.

    >>> busiest_owner((((2, 2), 3), ((4, 4), 2)), 2)
    (((2, 2), 1), ((4, 4), 2))
    """
    hands = dealt(sizes, ranks)
    return tuple(max(hands, key=lambda hand: sum(prod(shape) * count for shape, count in hand.items())).items())


OPTIMIZERS: Final = Catalog[Optimizer]("simulator.step.optimizers", "OPTIMIZER", Optimizer, "optimizer")
