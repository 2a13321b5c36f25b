"""Forward and backward functions of a decoder-only GPT, unit by unit: embedding, layers, head.

Rule: a unit's forward takes the output of the unit before, and returns its own output and its cache; backward takes the
gradient of the output, and returns that of the input and those of parameters by name. The caller decides when
parameters are gathered or freed, and what is computed again.

Pre-LN blocks; queries, keys and values are one matmul with bias (heads are contiguous slices); GELU in its tanh form;
learned positions; a head without bias, with a table of its own or the embedding's. Parameters are named as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeVar

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.numerics import layers
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.block import Block, Cache
from simulator.numerics.cut_linear import CutLinear, Gradients, Left, Parameters, Part
from simulator.numerics.dropout import NO_DROPOUT, Draw
from simulator.numerics.exchange import Pass, alone
from simulator.numerics.experts import Experts
from simulator.numerics.share import WHOLE, Share

T = TypeVar("T")


@dataclass(frozen=True)
class Gpt:
    """A model's sizes and its arithmetic.

    Attributes
    ----------
    vocabulary, width, heads, positions, depth : int
        The width of a head is width / heads; the MLP is four times as wide as the model.
    arithmetic : Arithmetic
    attention : {"standard", "flash"}
    tied : bool
        Whether the head uses the embedding's table of tokens, which then gets gradients from both units.
    dropout : float
        Probability of dropout, on embeddings, on attention's weights and on what each block adds.
    share : Share
        What of the model, and of sequences, this rank has.
    experts, active : int
        In the place of each layer's MLP, and how many of them a token goes to; 0 for an MLP.
    capacity : float or None
        Tokens that an expert takes of each rank, over its even share; None: all.
    copies_table : bool
        Whether a tied head has a copy of the table of its own, as on another stage of a pipeline.
    """

    vocabulary: int
    width: int
    heads: int
    positions: int
    depth: int
    arithmetic: Arithmetic
    attention: Literal["standard", "flash"] = "standard"
    tied: bool = False
    dropout: float = 0.0
    share: Share = WHOLE
    copies_table: bool = False
    experts: int = 0
    active: int = 0
    capacity: float | None = None

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads: got {self.heads}; must divide the width {self.width}")

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Names of the units, in the order of the forward pass."""
        kinds = (" experts", "") if self.spreads else ("",)
        return ("embedding", *(f"layer {i}{kind}" for i in range(self.depth) for kind in kinds), "head")

    @property
    def spreads(self) -> bool:
        """Whether a layer's experts are a unit of their own, because other ranks have others."""
        return self.share.experts > 1

    def shapes(self, unit: str) -> dict[str, tuple[int, ...]]:
        """Shapes of this rank's part of a unit's parameters by name, in the order in which PyTorch registers them."""
        return {name: self.share.shape(name, shape) for name, shape in self._shapes(unit).items()}

    def _shapes(self, unit: str) -> dict[str, tuple[int, ...]]:
        d = self.width
        if unit == "embedding":
            return {"tok.weight": (self.vocabulary, d), "pos.weight": (self.positions, d)}
        if unit == "head":
            norm: dict[str, tuple[int, ...]] = {"lnf.weight": (d,), "lnf.bias": (d,)}
            table: dict[str, tuple[int, ...]] = {self._table: (self.vocabulary, d)}
            return norm if self.tied and not self.copies_table else norm | table
        if unit.endswith(" experts"):
            return _outside(unit, self._expert_shapes())
        shapes: dict[str, tuple[int, ...]] = {"ln1.weight": (d,), "ln1.bias": (d,)}
        shapes |= {"qkv.weight": (3 * d, d), "qkv.bias": (3 * d,), "proj.weight": (d, d), "proj.bias": (d,)}
        shapes |= {"ln2.weight": (d,), "ln2.bias": (d,)}
        if self.experts:
            shapes |= {"router.weight": (self.experts, d)} | ({} if self.spreads else self._expert_shapes())
        else:
            shapes |= self._mlp_shapes("")
        return _outside(unit, shapes)

    def _mlp_shapes(self, prefix: str) -> dict[str, tuple[int, ...]]:
        d = self.width
        shapes = {"fc1.weight": (4 * d, d), "fc1.bias": (4 * d,), "fc2.weight": (d, 4 * d), "fc2.bias": (d,)}
        return {f"{prefix}{name}": shape for name, shape in shapes.items()}

    def _expert_shapes(self) -> dict[str, tuple[int, ...]]:
        own = self._experts.own() if self._experts is not None else ()
        return dict(chain.from_iterable(self._mlp_shapes(f"experts.{expert}.").items() for expert in own))

    def home(self, name: str) -> str:
        """The unit that owns a parameter; another unit may compute with it too."""
        return next(unit for unit in self.units if name in self.shapes(unit))

    def used(self, unit: str, p: Mapping[str, Parameters]) -> Parameters:
        """The parameters that a unit computes with: its own, and for a tied head the table of tokens."""
        if unit == "head" and self.tied and not self.copies_table:
            return {**p[unit], "tok.weight": p["embedding"]["tok.weight"]}
        return {**p[unit], **p.get(f"{unit} experts", {})}

    def forward(self, unit: str, p: Parameters, x: Array, draw: Draw = NO_DROPOUT) -> Pass[tuple[Array, Any]]:
        """Run a unit.

        Parameters
        ----------
        unit : str
        p : mapping of name to array
            The parameters that it computes with, in the stored dtype.
        x : array
            Token numbers, shape (batch, seq_len), for the embedding; else (batch, seq_len, width). Where sequences are
            cut, of the tokens that this rank has, and of those that it has between matrices.
        draw : Draw, optional

        Returns
        -------
        tuple
            (batch, seq_len, width), or logits (batch, seq_len, vocabulary) from the head; and the cache.
        """
        if unit == "embedding":
            return (yield from self._embed(p, x, draw))
        if unit == "head":
            return (yield from self._head(p, x))
        cache: Cache = {}
        if unit.endswith(" experts"):
            return x, cache
        out = yield from self._block.forward(_inside(unit, p), x, draw, cache)
        return out, cache

    def again(
        self, unit: str, p: Parameters, x: Array, kept: Cache, cache: Cache, draw: Draw = NO_DROPOUT
    ) -> Pass[Array]:
        """Run a layer forward again, and fill its cache; arrays of it that were kept stay as they are."""
        return (yield from self._block.again(_inside(unit, p), x, kept, draw, cache))

    def backward(
        self,
        unit: str,
        p: Parameters,
        cache: Any,
        dy: Array,
        draw: Draw = NO_DROPOUT,
        left: Left | None = None,
        part: Part = "whole",
    ) -> Pass[tuple[Array | None, Gradients]]:
        """Gradients of a unit's input (None for the embedding) and, in the stored dtype, of the parameters it used.

        Of a half of the pass (`part`) only those that it makes; `left` is what the first half leaves for the second.
        """
        dx: Array | None = None
        inner: Gradients = {}
        behind: Left = {} if left is None else left
        if unit == "embedding":
            yield from self._embed_backward(cache, dy, draw, inner, behind, part)
        elif unit == "head":
            dx = yield from self._head_backward(p, cache, dy, inner, behind, part)
        elif unit.endswith(" experts"):
            # Its layer has made its gradients.
            dx = dy
        else:
            made: Gradients = {}
            dx = yield from self._block.backward(_inside(unit, p), cache, dy, draw, made, behind, part)
            inner = _outside(unit, made)
        return dx, {name: self.arithmetic.store(g) for name, g in inner.items()}

    @property
    def _block(self) -> Block:
        return Block(self.heads, self.arithmetic, self.attention, self.share, self._experts)

    @property
    def _experts(self) -> Experts | None:
        if not self.experts:
            return None
        return Experts(self.arithmetic, self.share, self.experts, self.active, self.capacity)

    def gradients(self, p: Mapping[str, Parameters], rows: Array) -> tuple[float, Gradients]:
        """Loss of some sequences, and gradients of all parameters: all units forward and backward, on one rank.

        Parameters
        ----------
        p : mapping of unit to parameters
        rows : int array, shape (batch, seq_len + 1)
        """
        x: Any = rows[:, :-1]
        targets, caches = rows[:, 1:].ravel(), {}
        for unit in self.units:
            x, caches[unit] = alone(self.forward(unit, self.used(unit, p), x))
        loss, kept = layers.cross_entropy(x.reshape(-1, self.vocabulary), targets)
        d: Any = layers.cross_entropy_backward(kept, targets).reshape(x.shape)
        gradients: Gradients = {}
        for unit in reversed(self.units):
            d, own = alone(self.backward(unit, self.used(unit, p), caches[unit], d))
            for name, gradient in own.items():
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
        return loss, gradients

    def _embed(self, p: Parameters, tokens: Array, draw: Draw) -> Pass[tuple[Array, Any]]:
        a, share, table = self.arithmetic, self.share, p["tok.weight"]
        rows, mine = self._rows(tokens)
        x = a.load(table)[rows]
        if share.tensor > 1:
            x = np.where(mine[..., None], x, x.dtype.type(0))
            how, what = (share.scattered, "scatter") if share.sequence else (share.summed, "sum")
            x = yield from how(f"{what} token embedding output", x)
        x = a.rounded(x + a.load(p["pos.weight"])[self._between(tokens.shape[1])])
        out, mask = layers.dropout(a, x, draw)
        return out, (tokens, mask)

    def _rows(self, tokens: Array) -> tuple[Array, Array]:
        """Each token's row of this rank's part of the table, and whether it has that token at all."""
        if self.share.tensor == 1:
            return tokens, np.ones(tokens.shape, np.bool_)
        rows = tokens - self.share.place * self.share.rows
        mine = (rows >= 0) & (rows < self.share.rows)
        return np.where(mine, rows, 0), mine

    def _between(self, own: int) -> Ints:
        """Positions of the tokens that this rank has between matrices, of so many that it has of a sequence."""
        return self.share.between(self.share.positions(own * self.share.context))

    def _embed_backward(self, cache: Any, dy: Array, draw: Draw, g: Gradients, left: Left, part: Part) -> Pass[None]:
        if part == "input":
            left["embedding"] = dy
            return
        a, (tokens, mask) = self.arithmetic, cache
        own = layers.masked(a, left.pop("embedding") if part == "weights" else dy, mask, draw)
        together = yield from self.share.gathered("gather token embedding output gradient", own)
        rows, mine = self._rows(tokens)
        tok = np.zeros((self.shapes("embedding")["tok.weight"][0], self.width), own.dtype)
        np.add.at(tok, rows[mine], together[mine])
        pos = np.zeros((self.positions, self.width), own.dtype)
        pos[self._between(tokens.shape[1])] = own.sum(axis=0)
        g |= {"tok.weight": a.rounded(tok), "pos.weight": a.rounded(pos)}

    def _head(self, p: Parameters, x: Array) -> Pass[tuple[Array, Any]]:
        flat = x.reshape(-1, self.width)
        normed, norm = layers.layer_norm(self.arithmetic, flat, p["lnf.weight"], p["lnf.bias"])
        logits, kept = yield from self._logits(len(x)).columns(p, normed)
        return logits.reshape(len(x), len(logits) // len(x), -1), (norm, kept)

    def _head_backward(self, p: Parameters, cache: Any, dy: Array, g: Gradients, left: Left, part: Part) -> Pass[Array]:
        a, (norm, kept) = self.arithmetic, cache
        flat = dy.reshape(-1, dy.shape[-1])
        if part == "weights":
            yield from self._logits(len(dy)).columns_backward(p, flat, kept, g, left, part)
            g |= {name: left.pop(name) for name in ("lnf.weight", "lnf.bias")}
            return dy
        made: Gradients = {}
        d = yield from self._logits(len(dy)).columns_backward(p, flat, kept, made, left, part)
        dx, scale, shift = layers.layer_norm_backward(a, d, norm, p["lnf.weight"])
        norms = left if part == "input" else g
        norms |= {"lnf.weight": scale, "lnf.bias": shift}
        g |= made
        return dx.reshape(len(dy), -1, self.width)

    def _logits(self, batch: int) -> CutLinear:
        return CutLinear(self.arithmetic, self.share, "logits", self._table, "", batch)

    @property
    def _table(self) -> str:
        """Name of the table that the head multiplies by."""
        return "tok.weight" if self.tied else "head.weight"


def _outside(unit: str, inside: Mapping[str, T]) -> dict[str, T]:
    """What is kept by names within a layer, by names in the model."""
    layer = unit.removeprefix("layer ").removesuffix(" experts")
    return {f"blocks.{layer}.{name}": value for name, value in inside.items()}


def _inside(unit: str, p: Parameters) -> dict[str, Array]:
    """A layer's parameters by their names within it."""
    prefix = f"blocks.{unit.removeprefix('layer ')}."
    return {name.removeprefix(prefix): value for name, value in p.items()}
