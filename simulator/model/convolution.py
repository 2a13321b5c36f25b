"""Kernels of a convolution: the matmul of overlapping patches by filters, or a kernel limited by HBM.

Libraries compute a convolution as a matmul whose rows are the patches of the image under the filters, without writing
the patches to HBM (implicit GEMM): a pixel that lies in several patches is read once.

References
----------
.. [1] Chetlur et al., "cuDNN: efficient primitives for deep learning", 2014, arXiv:1410.0759, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.model.layer_list import Amount, Count, ElementwiseCounts, KernelCounts, MatmulCounts

# Fewer channels than this in a group cannot fill a tile of a matmul: a depthwise convolution is limited by HBM.
_FEWEST_CHANNELS: Final = 8


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, without its duration.

    Attributes
    ----------
    channels, outputs : int
        Channels of the input and of the output that a group has.
    """

    name: str
    places: Count  # places of the filters, over all samples: pixels of the output
    channels: int
    outputs: int
    window: int  # pixels under a filter
    groups: int  # independent groups of channels
    pixels: Count  # elements of the input, over all samples and groups

    @property
    def by_channel(self) -> bool:
        """True for a depthwise convolution, which HBM limits."""
        return self.groups > 1 and self.channels < _FEWEST_CHANNELS

    def forward(self) -> KernelCounts:
        """Return the kernel of the forward pass."""
        if self.by_channel:
            return ElementwiseCounts(self.name, self._input + self._filters, self._output)
        return self._matmul(self.name, self.places, Count(self.outputs), Count(self._inner))

    def input_gradient(self) -> KernelCounts:
        """Return the kernel that computes the input's gradient: each pixel sums over the outputs that it has entered,
        in as many multiplications as the forward pass, but for rounding.
        """
        name = f"{self.name} input gradient"
        if self.by_channel:
            return ElementwiseCounts(name, self._output + self._filters, self._input)
        inputs = Count(*(part // (self.groups * self.channels) for part in (self.pixels.fixed, self.pixels.per_sample)))
        # Outputs that a pixel enters on average: with stride 2, a quarter of the filters' places.
        entered = self.outputs * self.window * self.places.of(1) / inputs.of(1)
        summed = Count(max(1, round(entered)))
        return self._matmul(name, inputs, Count(self.channels), summed, of=self._output.elements)

    def weight_gradient(self) -> KernelCounts:
        """Return the kernel that computes the filters' gradient."""
        name = f"{self.name} weight gradient"
        if self.by_channel:
            return ElementwiseCounts(name, self._input + self._output, self._filters, of_weights=True)
        return self._matmul(name, Count(self.outputs), Count(self._inner), self.places, of_weights=True)

    @property
    def _inner(self) -> int:
        """Numbers in a filter of a group."""
        return self.channels * self.window

    @property
    def _input(self) -> Amount:
        """Size of the input."""
        return Amount(self.pixels)

    @property
    def _filters(self) -> Amount:
        """Size of the filters."""
        return Amount(Count(self.groups * self.outputs * self._inner))

    @property
    def _output(self) -> Amount:
        """Size of the output."""
        return Amount(self.places.times(self.groups * self.outputs))

    def _matmul(
        self, name: str, m: Count, n: Count, k: Count, *, of_weights: bool = False, of: Count | None = None
    ) -> MatmulCounts:
        """Return the matmul m x k by k x n of each group; elements of the image (or of the array `of`) that lie in
        several patches are read once.
        """
        image = self.pixels if of is None else of
        patches = (self.places if of is None else m).times(self.groups * (self._inner if of is None else k.fixed))
        repeated = Count(max(0, patches.fixed - image.fixed), max(0, patches.per_sample - image.per_sample))
        return MatmulCounts(name, m, n, k, Count(self.groups), of_weights, repeated, convolution=True)
