"""A matrix that is cut among ranks, forward and backward: by columns or by rows, and what they exchange around it.

Rule: exchanges in the order and under the names of `model.cut`. A backward pass can be taken apart: the part that makes
the input's gradient leaves behind what the part that makes the weights' needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simulator.basics.arrays import Array
from simulator.numerics import layers
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.exchange import Pass
from simulator.numerics.share import Share

# The whole backward pass, or the half that makes gradients of inputs, or that of weights.
Part = Literal["whole", "input", "weights"]
# By a matrix' name what the half for inputs left for the half for weights.
Left = dict[str, Array]
Gradients = dict[str, Array]
Parameters = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class CutLinear:
    """One of a model's matrices on one rank.

    Attributes
    ----------
    arithmetic : Arithmetic
    share : Share
    exchange : str
        What exchanges call it.
    weight, bias : str
        Names of parameters; no bias is "".
    batch : int
        Sequences.
    """

    arithmetic: Arithmetic
    share: Share
    exchange: str
    weight: str
    bias: str
    batch: int

    def columns(self, p: Parameters, x: Array) -> Pass[tuple[Array, Array]]:
        """Output of a matrix cut by columns, shape (tokens, own outputs), and its input, which is kept."""
        together = yield from self._flat(self.share.gathered(f"gather {self.exchange} input", self._sequences(x)))
        y, _ = layers.linear(self.arithmetic, together, p[self.weight], p[self.bias] if self.bias else None)
        return y, self.arithmetic.store(x)

    def gather_again(self, kept: Array) -> Pass[str]:
        """Begin to gather the input of a matrix cut by columns, for its weights' gradient."""
        x = self._sequences(self.arithmetic.load(kept))
        return (yield from self.share.gather(f"gather {self.exchange} input again", x))

    def columns_backward(
        self, p: Parameters, dy: Array, kept: Array, g: Gradients, left: Left, part: Part, begun: str = ""
    ) -> Pass[Array]:
        """The input's gradient; the weights' is put into `g`. Its input may be on its way already (`gather_again`)."""
        a, share, x, dx = self.arithmetic, self.share, kept, dy
        dy = left.pop(self.weight) if part == "weights" else dy
        if part != "input":
            begun = begun or (yield from self.gather_again(kept))
            x = yield from self._flat(share.gather_end(begun, self._sequences(a.load(kept))))
        else:
            left[self.weight] = dy
        if part != "weights":
            dx = a.product(dy, a.load(p[self.weight]))
            if share.tensor > 1:
                how, what = (share.scattered, "scatter") if share.sequence else (share.summed, "sum")
                dx = yield from self._flat(how(f"{what} {self.exchange} input gradient", self._sequences(dx)))
        if part != "input":
            g[self.weight] = a.product(dy.T, x)
            if self.bias:
                g[self.bias] = a.rounded(dy.sum(axis=0))
        return dx

    def rows(self, p: Parameters, x: Array, c: dict[str, Any], name: str) -> Pass[Array]:
        """Output of a matrix cut by rows, shape (tokens between matrices, outputs); `c` gets its input by a name.

        It has it before the outputs' exchange, behind which nothing is left to be made again.
        """
        a, share = self.arithmetic, self.share
        bias = p[self.bias] if self.bias else None
        y, c[name] = layers.linear(a, x, p[self.weight], bias if share.tensor == 1 else None)
        if share.tensor > 1:
            how, what = (share.scattered, "scatter") if share.sequence else (share.summed, "sum")
            y = yield from self._flat(how(f"{what} {self.exchange} output", self._sequences(y)))
            y = y if bias is None else a.rounded(y + a.load(bias))
        return y

    def rows_backward(self, p: Parameters, dy: Array, kept: Array, g: Gradients, left: Left, part: Part) -> Pass[Array]:
        """The input's gradient; the weights' is put into `g`. A bias has the gradient of this rank's tokens alone."""
        a, dx = self.arithmetic, dy
        if part == "weights":
            dy, own = left.pop(self.weight), left.pop(self.bias)
        else:
            own = dy
            name = f"gather {self.exchange} output gradient"
            dy = yield from self._flat(self.share.gathered(name, self._sequences(dy)))
            dx = a.product(dy, a.load(p[self.weight]))
        if part == "input":
            left |= {self.weight: dy, self.bias: own}
        else:
            g[self.weight], g[self.bias] = a.product(dy.T, a.load(kept)), a.rounded(own.sum(axis=0))
        return dx

    def _sequences(self, x: Array) -> Array:
        return x.reshape(self.batch, -1, x.shape[-1])

    @staticmethod
    def _flat(run: Pass[Array]) -> Pass[Array]:
        x = yield from run
        return x.reshape(-1, x.shape[-1])


__all__ = ["CutLinear", "Gradients", "Left", "Part"]
