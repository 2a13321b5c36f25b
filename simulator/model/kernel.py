"""Kernels: what a GPU is given to do. Records of work, not of time.

Rule: counts only. How long one takes is asked of a GPU (step/kernels/kernel_time.py), never of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Matmul:
    """out[m, n] = a[m, k] b[k, n], `batch` times.

    Attributes
    ----------
    name : str
    m, n, k, batch : int
    of_weights : bool
        Whether it makes weights' gradients, which nobody waits for before the update.
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    of_weights: bool = False

    @property
    def flops(self) -> float:
        """A multiplication and an addition for each of m n k [FLOP]."""
        return 2.0 * self.batch * self.m * self.n * self.k

    def nbytes(self, itemsize: float) -> float:
        """Both inputs read and the output written once [B]."""
        return self.batch * itemsize * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax(Q K^T) V as one kernel that keeps the score matrix on chip (flash attention).

    Attributes
    ----------
    name : str
    batch, heads, kv_heads, seq_len, head_dim : int
    causal : bool
        Half of the scores are never computed.
    backward : bool
        Five matmuls of the forward's size instead of two, QK^T computed again among them.
    keys : int or None
        Tokens whose keys and values are attended to, of `seq_len` whose queries there are; None: as many.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    head_dim: int
    causal: bool
    backward: bool
    keys: int | None = None

    @property
    def attended(self) -> int:
        """Tokens whose keys there are."""
        return self.seq_len if self.keys is None else self.keys

    @property
    def of_weights(self) -> bool:
        """It has none."""
        return False

    @property
    def flops(self) -> float:
        """What is really computed [FLOP]: 4 b h s^2 hd forward, 10 b h s^2 hd backward, half of it if causal."""
        matmuls = 5 if self.backward else 2
        full = 2.0 * matmuls * self.batch * self.heads * self.seq_len * self.attended * self.head_dim
        return full / 2 if self.causal else full

    def nbytes(self, itemsize: float) -> float:
        """Q, K, V and the output once, gradients besides in the backward pass [B]."""
        q = self.batch * self.seq_len * self.heads * self.head_dim
        kv = self.batch * self.attended * self.kv_heads * self.head_dim
        once = itemsize * (2 * q + 2 * kv) + 4.0 * self.batch * self.heads * self.seq_len
        return once if not self.backward else 2 * once + itemsize * q


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Anything that HBM traffic rules: norms, activations, softmax, dropout, casts, optimizers.

    Attributes
    ----------
    name : str
    read, written : float
        [B]
    fusible : bool
        Whether a compiler would merge it into its neighbours, so that its traffic is gone.
    of_weights : bool
        As of matmuls.
    """

    name: str
    read: float
    written: float
    fusible: bool = False
    of_weights: bool = False

    @property
    def flops(self) -> float:
        """Not counted: they are a thousandth of a matmul's."""
        return 0.0

    def nbytes(self, itemsize: float) -> float:
        """Read and written [B]; the itemsize is in them already."""
        return self.read + self.written


Kernel = Matmul | Attention | Elementwise
