"""A matrix that is cut among tensor-parallel ranks by columns or by rows, forward and backward, with its exchanges.

Exchanges have the order and names of `model.partition`. A backward pass can be split: the half for the input's gradient
leaves in `left` the arrays that the half for the weights' gradients needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simulator.basics.arrays import Array
from simulator.numerics import layers
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.exchange import Pass
from simulator.numerics.tensor_shard import TensorShard

# The whole backward pass, the half for input gradients, or the half for weight gradients.
Part = Literal["whole", "input", "weights"]
# Arrays that the input half leaves for the weight half, keyed by the name of the weight or bias.
Left = dict[str, Array]
Gradients = dict[str, Array]
Parameters = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class CutLinear:
    """A linear layer of the model with a matrix cut by columns over tensor-parallel ranks or by rows, seen from this
    rank.
    """

    arithmetic: Arithmetic
    share: TensorShard  # this rank's part of matrices and sequences
    exchange: str  # name of the matrix in the names of exchanges ("up" for "fc1")
    # `weight`, `bias`: Names of the parameters; "" if there is no bias.
    weight: str
    bias: str
    batch: int  # sequences of the micro-batch

    def columns(self, p: Parameters, x: Array) -> Pass[tuple[Array, Array]]:
        """Multiply `x` by a matrix cut by columns; return the output, shape (tokens, own outputs), and the
        saved input.
        """
        # Megatron-LM's pair of matrices on 2 ranks (x: tokens x inputs; with sequence parallelism each rank holds half
        # of the tokens between the pairs):
        #    columns: gather x over the sequence, then y_r = x W_r^T     -> each rank: all tokens, half of the outputs
        #    rows:    z_r = y_r V_r^T, then scatter (or sum) z_0 + z_1   -> each rank: half of the tokens, all outputs
        # Backward, gathers become scatters and scatters become gathers.
        together = yield from self._flat(self.share.gathered(f"gather {self.exchange} input", self._sequences(x)))
        y, _ = layers.linear(self.arithmetic, together, p[self.weight], p[self.bias] if self.bias else None)
        # Save only this rank's tokens; the backward pass gathers them again (Korthikanti et al. 2023, section 4.2.2).
        return y, self.arithmetic.store(x)

    def gather_again(self, saved: Array) -> Pass[str]:
        """Start an all-gather of a column-cut matrix's saved input for the weight gradient; return the
        gather's handle.
        """
        x = self._sequences(self.arithmetic.load(saved))
        return (yield from self.share.gather(f"gather {self.exchange} input again", x))

    def columns_backward(
        self, p: Parameters, dy: Array, saved: Array, g: Gradients, left: Left, part: Part, begun: str = ""
    ) -> Pass[Array]:
        """Return the input gradient of a matrix cut by columns, from its output gradient `dy`; put weight and bias
        gradients into `g`.

        `begun` names an input gather already in flight (`gather_again`).
        """
        a, share, x, dx = self.arithmetic, self.share, saved, dy
        dy = left.pop(self.weight) if part == "weights" else dy
        if part != "input":
            begun = begun or (yield from self.gather_again(saved))
            x = yield from self._flat(share.gather_end(begun, self._sequences(a.load(saved))))
        else:
            left[self.weight] = dy
        if part != "weights":
            # Each rank's product covers its own columns alone; the sum over ranks is the input's gradient.
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
        """Multiply `x` by a matrix cut by rows; return the output, shape (tokens between matrices, outputs).

        The input is saved in `c` under `name` before the output's exchange: a recompute stops there, since the backward
        pass needs nothing that comes later.
        """
        a, share = self.arithmetic, self.share
        bias = p[self.bias] if self.bias else None
        # Each rank's product is a partial sum. The bias is added once, after the exchange; otherwise the sum would
        # contain it once per rank.
        y, c[name] = layers.linear(a, x, p[self.weight], bias if share.tensor == 1 else None)
        if share.tensor > 1:
            how, what = (share.scattered, "scatter") if share.sequence else (share.summed, "sum")
            y = yield from self._flat(how(f"{what} {self.exchange} output", self._sequences(y)))
            y = y if bias is None else a.rounded(y + a.load(bias))
        return y

    def rows_backward(self, p: Parameters, dy: Array, x: Array, g: Gradients, left: Left, part: Part) -> Pass[Array]:
        """Return the input gradient of a matrix cut by rows, from its output gradient `dy`; put weight and bias
        gradients into `g`.

        The bias gradient covers this rank's tokens alone: the bias is added after the scatter. The step's end sums such
        partial gradients over the tensor-parallel ranks.
        """
        a, dx = self.arithmetic, dy
        if part == "weights":
            dy, bias_dy = left.pop(self.weight), left.pop(self.bias)
        else:
            bias_dy = dy
            name = f"gather {self.exchange} output gradient"
            dy = yield from self._flat(self.share.gathered(name, self._sequences(dy)))
            dx = a.product(dy, a.load(p[self.weight]))
        if part == "input":
            left |= {self.weight: dy, self.bias: bias_dy}
        else:
            g[self.weight], g[self.bias] = a.product(dy.T, a.load(x)), a.rounded(bias_dy.sum(axis=0))
        return dx

    def _sequences(self, x: Array) -> Array:
        """Return an array of shape (tokens, width) in the exchanges' shape (batch, tokens of a sequence, width)."""
        return x.reshape(self.batch, -1, x.shape[-1])

    @staticmethod
    def _flat(run: Pass[Array]) -> Pass[Array]:
        """Run an exchange and return its result in the shape (tokens, width)."""
        x = yield from run
        return x.reshape(-1, x.shape[-1])


__all__ = ["CutLinear", "Gradients", "Left", "Part"]
