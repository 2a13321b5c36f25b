"""Forward and backward functions of a decoder-only GPT, unit by unit: embedding, layers, head.

A unit's forward takes the previous unit's output, and returns its own output and its cache. Backward takes the gradient
of the output, and returns the gradients of the input and, by name, of the parameters. The caller decides when to gather
or free parameters, and what to recompute.

Pre-LN blocks; queries, keys and values are a single matmul with bias (heads are contiguous slices); GELU in its tanh
form; learned positions; a head without bias, with its own table or the embedding's. Parameters are named as in PyTorch.
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
from simulator.numerics.block import Cache, TransformerBlock
from simulator.numerics.cut_linear import CutLinear, Gradients, Left, Parameters, Part
from simulator.numerics.dropout import NO_DROPOUT, Draw
from simulator.numerics.exchange import Pass, alone
from simulator.numerics.experts import Experts
from simulator.numerics.tensor_shard import WHOLE, TensorShard

T = TypeVar("T")


@dataclass(frozen=True)
class Gpt:
    """A GPT's sizes, its number format, and this rank's part of the model.

    Attributes
    ----------
    vocabulary, width, heads, positions, depth : int
        Size of the vocabulary, hidden size, attention heads, learned positions, layers. A head is width / heads wide;
        the MLP is four times as wide as the model.
    attention : {"standard", "flash"}
    tied : bool
        If True, the head uses the embedding's token table, which then gets gradients from both units.
    dropout : float
        Probability of dropout on embeddings, on attention's weights and on the output of each block.
    share : TensorShard
        This rank's part of the model and of the sequences.
    copies_table : bool
        If True, a tied head has its own copy of the table, because the embedding is on another pipeline stage.
    experts, active : int
        Experts that replace each layer's MLP, and experts that each token is sent to; 0 for an MLP.
    capacity : float or None
        Tokens that an expert takes from each rank, in units of its even share; None: unlimited.
    documents : tuple of int
        Tokens of each document that is packed into the only sequence, in order; empty for one document a sequence.
        Attention and positions begin anew with each.

    Examples
    --------
    >>> from simulator.numerics.arithmetic import arithmetic
    >>> Gpt(100, 8, 2, 16, 2, arithmetic("float32")).units
    ('embedding', 'layer 0', 'layer 1', 'head')
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
    share: TensorShard = WHOLE
    copies_table: bool = False
    experts: int = 0
    active: int = 0
    capacity: float | None = None
    documents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads: got {self.heads}; must divide the width {self.width}")

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Names of the units (embedding, layers, experts, head) in forward order."""
        # Expert-parallel experts stand before their layer, without kernels: their gradients are reduced over another
        # process group than the layer's, so buckets and shards need a unit of their own.
        kinds = (" experts", "") if self.spreads else ("",)
        return ("embedding", *(f"layer {i}{kind}" for i in range(self.depth) for kind in kinds), "head")

    @property
    def spreads(self) -> bool:
        """True if a layer's experts are a separate unit, because each rank holds different experts."""
        return self.share.experts > 1

    def shapes(self, unit: str) -> dict[str, tuple[int, ...]]:
        """Return the parameter shapes of a unit on this rank by name, in PyTorch's registration order."""
        return {name: self.share.shape(name, shape) for name, shape in self._shapes(unit).items()}

    def _shapes(self, unit: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a unit's whole parameters (this rank's experts alone) by name."""
        d = self.width
        if unit == "embedding":
            return {"tok.weight": (self.vocabulary, d), "pos.weight": (self.positions, d)}
        # A tied head owns only its norm; the table belongs to the embedding.
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
        """Return the shapes of an MLP's parameters by name, with a prefix before each name."""
        d = self.width
        shapes = {"fc1.weight": (4 * d, d), "fc1.bias": (4 * d,), "fc2.weight": (d, 4 * d), "fc2.bias": (d,)}
        return {f"{prefix}{name}": shape for name, shape in shapes.items()}

    def _expert_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the parameter shapes of this rank's experts by name."""
        experts = self._experts.own() if self._experts is not None else ()
        return dict(chain.from_iterable(self._mlp_shapes(f"experts.{expert}.").items() for expert in experts))

    def home(self, name: str) -> str:
        """Return the name of the unit that owns a parameter; another unit may compute with the parameter too."""
        return next(unit for unit in self.units if name in self.shapes(unit))

    def used(self, unit: str, p: Mapping[str, Parameters]) -> Parameters:
        """Return the parameters for computing a unit, by name: its own, its experts', and a tied head's token table."""
        if unit == "head" and self.tied and not self.copies_table:
            return {**p[unit], "tok.weight": p["embedding"]["tok.weight"]}
        return {**p[unit], **p.get(f"{unit} experts", {})}

    def forward(self, unit: str, p: Parameters, x: Array, draw: Draw = NO_DROPOUT) -> Pass[tuple[Array, Any]]:
        """Run a unit (embedding, layer or head) forward.

        Parameters
        ----------
        unit : str
            Name of the unit.
        p : mapping of name to array
            Parameters that the unit computes with, in the stored dtype.
        x : array
            Token numbers, shape (batch, seq_len), for the embedding; else (batch, seq_len, width). If sequences are
            cut: token numbers of this rank's context-parallel part, and activations of its tokens between matrices.
        draw : Draw, optional
            Dropout masks of the pass.

        Returns
        -------
        tuple
            Output, shape (batch, seq_len, width), or logits, shape (batch, seq_len, vocabulary), from the head; the
            cache.
        """
        if unit == "embedding":
            return (yield from self._embed(p, x, draw))
        if unit == "head":
            return (yield from self._head(p, x))
        cache: Cache = {}
        out = yield from self._block.forward(_inside(unit, p), x, draw, cache)
        return out, cache

    def again(
        self, unit: str, p: Parameters, x: Array, saved: Cache, cache: Cache, draw: Draw = NO_DROPOUT
    ) -> Pass[Array]:
        """Recompute a layer's forward pass from its input `x` and fill `cache`; tensors in `saved` stay unchanged."""
        return (yield from self._block.again(_inside(unit, p), x, saved, draw, cache))

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
        """Return the gradients of a unit's input (None for the embedding) and parameters, from the output gradient
        `dy`, in the stored dtype.

        For half a pass (`part`), return only the gradients that this half computes; `left` carries arrays from the
        input half to the weight half.
        """
        dx: Array | None = None
        inner: Gradients = {}
        behind: Left = {} if left is None else left
        if unit == "embedding":
            yield from self._embed_backward(cache, dy, draw, inner, behind, part)
        elif unit == "head":
            dx = yield from self._head_backward(p, cache, dy, inner, behind, part)
        else:
            block_gradients: Gradients = {}
            dx = yield from self._block.backward(_inside(unit, p), cache, dy, draw, block_gradients, behind, part)
            inner = _outside(unit, block_gradients)
        return dx, {name: self.arithmetic.store(g) for name, g in inner.items()}

    @property
    def _block(self) -> TransformerBlock:
        """Object that computes a layer's forward and backward passes on this rank."""
        return TransformerBlock(self.heads, self.arithmetic, self.attention, self.share, self._experts, self.documents)

    @property
    def _experts(self) -> Experts | None:
        """Object that computes a layer's experts on this rank, or None for an MLP."""
        if not self.experts:
            return None
        return Experts(self.arithmetic, self.share, self.experts, self.active, self.capacity)

    def gradients(self, p: Mapping[str, Parameters], rows: Array) -> tuple[float, Gradients]:
        """Return the loss of several sequences and every parameter's gradient, computed on a single rank.

        Parameters
        ----------
        p : mapping of unit to parameters
        rows : int array, shape (batch, seq_len + 1)
            Token numbers; each token is predicted from the tokens before it.
        """
        x: Any = rows[:, :-1]
        targets, caches = rows[:, 1:].ravel(), {}
        for unit in self.units:
            x, caches[unit] = alone(self.forward(unit, self.used(unit, p), x))
        loss, saved = layers.cross_entropy(x.reshape(-1, self.vocabulary), targets)
        d: Any = layers.cross_entropy_backward(saved, targets).reshape(x.shape)
        gradients: Gradients = {}
        for unit in reversed(self.units):
            d, unit_gradients = alone(self.backward(unit, self.used(unit, p), caches[unit], d))
            for name, gradient in unit_gradients.items():
                # A tied table gets a gradient from the head and from the embedding.
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
        return loss, gradients

    def _embed(self, p: Parameters, tokens: Array, draw: Draw) -> Pass[tuple[Array, Any]]:
        """Return the embeddings of tokens, with positions added and dropout applied, and the cache."""
        a, share, table = self.arithmetic, self.share, p["tok.weight"]
        rows, mine = self._rows(tokens)
        x = a.load(table)[rows]
        # The table is cut by vocabulary. Each rank looks up the tokens in its own rows and leaves 0 for the rest; the
        # sum over ranks is the lookup. With 2 ranks and 100 words, rank 0 fills token 7 and rank 1 fills token 60.
        if share.tensor > 1:
            x = np.where(mine[..., None], x, x.dtype.type(0))
            how, what = (share.scattered, "scatter") if share.sequence else (share.summed, "sum")
            x = yield from how(f"{what} token embedding output", x)
        x = a.rounded(x + a.load(p["pos.weight"])[self._between(tokens.shape[1])])
        out, mask = layers.dropout(a, x, draw)
        return out, (tokens, mask)

    def _rows(self, tokens: Array) -> tuple[Array, Array]:
        """Return each token's row in this rank's part of the token table, and a mask of the tokens in this part."""
        if self.share.tensor == 1:
            return tokens, np.ones(tokens.shape, np.bool_)
        rows = tokens - self.share.place * self.share.rows
        mine = (rows >= 0) & (rows < self.share.rows)
        # Reading row 0 for another rank's token is harmless; the mask discards the result.
        return np.where(mine, rows, 0), mine

    def _between(self, tokens: int) -> Ints:
        """Return the positions of this rank's tokens between matrices, for `tokens` tokens of each sequence; those of
        packed documents count from the beginning of each document.
        """
        positions = self.share.between(self.share.positions(tokens * self.share.context))
        if not self.documents:
            return positions
        return np.concatenate([np.arange(length) for length in self.documents])[positions]

    def _embed_backward(self, cache: Any, dy: Array, draw: Draw, g: Gradients, left: Left, part: Part) -> Pass[None]:
        """Put the gradients of the token and the position table into `g`, from the gradient `dy` of the embeddings."""
        # Token numbers have no gradient, so the whole pass belongs to the weight half.
        if part == "input":
            left["embedding"] = dy
            return
        a, (tokens, mask) = self.arithmetic, cache
        gradient = layers.masked(a, left.pop("embedding") if part == "weights" else dy, mask, draw)
        together = yield from self.share.gathered("gather token embedding output gradient", gradient)
        rows, mine = self._rows(tokens)
        tok = np.zeros((self.shapes("embedding")["tok.weight"][0], self.width), gradient.dtype)
        # A token may occur many times in a batch: `add.at` sums repeated rows, which `+=` would not.
        np.add.at(tok, rows[mine], together[mine])
        pos = np.zeros((self.positions, self.width), gradient.dtype)
        # Packed documents have positions in common.
        np.add.at(pos, self._between(tokens.shape[1]), gradient.sum(axis=0))
        g |= {"tok.weight": a.rounded(tok), "pos.weight": a.rounded(pos)}

    def _head(self, p: Parameters, x: Array) -> Pass[tuple[Array, Any]]:
        """Return the logits of the last layer's output `x` (final norm, then product with the table), and the cache."""
        flat = x.reshape(-1, self.width)
        normed, norm = layers.layer_norm(self.arithmetic, flat, p["lnf.weight"], p["lnf.bias"])
        logits, saved = yield from self._logits(len(x)).columns(p, normed)
        return logits.reshape(len(x), len(logits) // len(x), -1), (norm, saved)

    def _head_backward(self, p: Parameters, cache: Any, dy: Array, g: Gradients, left: Left, part: Part) -> Pass[Array]:
        """Return the head's input gradient from the logits' gradient `dy`; put the parameters' gradients into `g`."""
        a, (norm, saved) = self.arithmetic, cache
        flat = dy.reshape(-1, dy.shape[-1])
        if part == "weights":
            yield from self._logits(len(dy)).columns_backward(p, flat, saved, g, left, part)
            # The input half has computed the norm's gradients already.
            g |= {name: left.pop(name) for name in ("lnf.weight", "lnf.bias")}
            return dy
        logits_gradients: Gradients = {}
        d = yield from self._logits(len(dy)).columns_backward(p, flat, saved, logits_gradients, left, part)
        dx, scale, shift = layers.layer_norm_backward(a, d, norm, p["lnf.weight"])
        norms = left if part == "input" else g
        norms |= {"lnf.weight": scale, "lnf.bias": shift}
        g |= logits_gradients
        return dx.reshape(len(dy), -1, self.width)

    def _logits(self, batch: int) -> CutLinear:
        """Return the logits' matrix for `batch` sequences; ranks cut it by vocabulary, like a matrix cut by columns."""
        return CutLinear(self.arithmetic, self.share, "logits", self._table, "", batch)

    @property
    def _table(self) -> str:
        """Name of the parameter with the head's output matrix."""
        return "tok.weight" if self.tied else "head.weight"


def _outside(unit: str, inside: Mapping[str, T]) -> dict[str, T]:
    """Return a mapping in which names within a layer are replaced by names in the model ("blocks.0.fc1.weight")."""
    layer = unit.removeprefix("layer ").removesuffix(" experts")
    return {f"blocks.{layer}.{name}": value for name, value in inside.items()}


def _inside(unit: str, p: Parameters) -> dict[str, Array]:
    """Return a layer's parameters under their names within the layer ("fc1.weight")."""
    prefix = f"blocks.{unit.removeprefix('layer ')}."
    return {name.removeprefix(prefix): value for name, value in p.items()}
