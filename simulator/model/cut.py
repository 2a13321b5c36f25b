"""Which part of a model one rank of its tensor-parallel group computes and holds, and what the group exchanges for it.

Rule: sizes only; which ranks these are, and what an exchange takes, is not known here.

References
----------
.. [1] Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism", 2019.
.. [2] Korthikanti et al., "Reducing activation recomputation in large transformer models", MLSys 2023, section 4.2.
.. [3] NVIDIA/Megatron-LM, core/transformer/transformer_config.py: cp_comm_type.
.. [4] Jacobs et al., "DeepSpeed Ulysses", 2023, arXiv:2309.14509.
.. [5] Liu, Zaharia & Abbeel, "Ring attention with blockwise transformers", 2023, arXiv:2310.01889.
.. [6] NVIDIA/Megatron-LM, core/transformer/moe/token_dispatcher.py.
.. [7] deepseek-ai/DeepEP.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from simulator.model.shape import Transformer

# Megatron-LM's make-vocab-size-divisible-by.
_ROWS_TOGETHER: Final = 128


@dataclass(frozen=True, slots=True)
class Context:
    """How ranks cut sequences among them, and how attention sees all of them [3]_.

    Attributes
    ----------
    ulysses : int
        Ranks that hand heads and tokens to each other, so that each has all tokens of some heads [4]_.
    ring : int
        Groups of these, among which keys and values go round [5]_, or are gathered.
    gathers : bool
        Whether they are gathered.
    balanced : bool
        Whether each of them has an early and a late piece of the sequence, so that all have as much to do under a
        causal mask.
    place : int
        Of this rank's group among them, which matters where they are not balanced.
    """

    ulysses: int = 1
    ring: int = 1
    gathers: bool = False
    balanced: bool = True
    place: int = 0

    @property
    def ranks(self) -> int:
        """c, all of them."""
        return self.ulysses * self.ring

    @property
    def uneven(self) -> bool:
        """Whether ranks at different places have different work."""
        return self.ring > 1 and not self.balanced


ONE_PIECE: Final = Context()


@dataclass(frozen=True, slots=True)
class ExpertCut:
    """How experts are spread over ranks, and how tokens get to them [6]_.

    Attributes
    ----------
    ranks : int
        e, among which experts are spread.
    tensor : int
        Ranks among which each expert's matrices are cut.
    dispatch : {"all_to_all", "all_gather", "deduplicated"}
        A copy of a token for each expert that it has chosen; all tokens to all ranks; one copy for each rank that has
        some of its experts [7]_.
    capacity : float or None
        Tokens that an expert takes, over its even share: more are dropped, less are padded; None: all are taken.
    imbalance : float
        Tokens of the fullest rank over the mean, at least 1; all others wait for it.
    zipf : float
        The n-th most popular expert is chosen in proportion to n^-zipf; experts are dealt to ranks by turns, in the
        order of their popularity, about as evenly as by chance. 0: all are chosen alike.
    dtype : str or None
        Of tokens on their way to experts; None: that of activations. Their way back is in that.
    """

    ranks: int = 1
    dispatch: Literal["all_to_all", "all_gather", "deduplicated"] = "all_to_all"
    capacity: float | None = None
    imbalance: float = 1.0
    dtype: str | None = None
    tensor: int = 1
    zipf: float = 0.0

    def fullest(self, model: Transformer) -> float:
        """Tokens of the fullest rank over the mean.

        Examples
        --------
        >>> from simulator.model.load import load_model
        >>> mixtral = load_model("mixtral_8x7b")
        >>> [round(ExpertCut(ranks, zipf=1.0).fullest(mixtral), 3) for ranks in (1, 4, 8)]
        [1.0, 1.766, 2.943]
        """
        popularity = [float(place) ** -self.zipf for place in range(1, model.num_experts + 1)]
        return float(self.imbalance * self.ranks * sum(popularity[:: self.ranks]) / sum(popularity))

    def slots(self, model: Transformer, tokens: int) -> int:
        """Places that a rank's tokens take at one expert, padded ones too; 0 where nothing is padded."""
        if self.capacity is None:
            return 0
        return math.ceil(tokens * model.active_experts / model.num_experts * self.capacity)

    def chosen(self, model: Transformer, tokens: int) -> int:
        """Copies of a rank's tokens, one for each expert that takes it."""
        return self.slots(model, tokens) * model.num_experts or tokens * model.active_experts

    def at_experts(self, model: Transformer, tokens: int) -> int:
        """Tokens that the experts of the fullest rank get together from all ranks that hand tokens to it."""
        if self.capacity is not None:
            return self.slots(model, tokens) * model.num_experts
        return math.ceil(tokens * model.active_experts * self.fullest(model))

    def distinct_ranks(self, model: Transformer) -> float:
        """How many ranks have experts of one token, where it chooses evenly.

        e (1 - C(E - E/e, k) / C(E, k)) for k of E experts.

        Examples
        --------
        >>> from simulator.model.load import load_model
        >>> [round(ExpertCut(e).distinct_ranks(load_model("deepseek_v3")), 2) for e in (8, 32, 64)]
        [5.29, 7.27, 7.68]
        """
        experts, chosen = model.num_experts, model.active_experts
        elsewhere = math.comb(experts - experts // self.ranks, chosen) / math.comb(experts, chosen)
        return self.ranks * (1 - elsewhere)


ONE_PLACE: Final = ExpertCut()


@dataclass(frozen=True, slots=True)
class Cut:
    """How a model is cut.

    Attributes
    ----------
    tensor : int
        t, ranks among which matrices are cut: those in front by columns, those behind by rows.
    sequence : bool
        Whether what lies between them (norms, dropout, the residual stream) is cut along the sequence [2]_.
    context : Context
        How sequences are cut everywhere, and attention gets them together.
    experts : ExpertCut
    overlap : {"none", "ring_exchange", "bulk"}
        Whether matmuls hide the exchanges of those who cut them by user buffers; see overlap.py.
    """

    tensor: int = 1
    sequence: bool = False
    context: Context = ONE_PIECE
    experts: ExpertCut = ONE_PLACE
    overlap: Literal["none", "ring_exchange", "bulk"] = "none"

    @property
    def experts_apart(self) -> bool:
        """Whether experts, where there are any, are the same on other ranks than the rest of a layer is."""
        return self.experts.ranks > 1 or self.experts.tensor != self.tensor

    @property
    def along_sequence(self) -> int:
        """Ranks among which a sequence is cut between matrices."""
        return self.tensor if self.sequence else 1

    def vocabulary(self, model: Transformer) -> int:
        """Rows of the token table, padded where it is cut.

        Examples
        --------
        >>> from simulator.model.load import load_model
        >>> [Cut(tensor).vocabulary(load_model("gpt2")) for tensor in (1, 2, 8)]
        [50257, 50432, 51200]
        """
        together = _ROWS_TOGETHER * self.tensor
        return model.vocab_size if self.tensor == 1 else -(-model.vocab_size // together) * together

    def kv_heads(self, model: Transformer) -> int:
        """Heads of keys (or values) that a rank has: at least one, which several ranks then share."""
        return max(1, model.num_kv_heads // self.tensor)

    def gathers_queries(self, model: Transformer) -> bool:
        """Whether there are fewer heads of keys than ranks: what the first matrix makes is then gathered."""
        return model.num_kv_heads < self.tensor


WHOLE: Final = Cut()


@dataclass(frozen=True, slots=True)
class Communication:
    """What a group exchanges during an operation.

    Attributes
    ----------
    name : str
    operation : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring_shift"}
        A ring shift brings what each rank has to the next one.
    elements : int
        Of the whole array; of an all_to_all what each rank has of its own.
    backward : bool
        Whether in the backward pass.
    before : int
        The kernel of that pass before which it starts, by place in the operation's list; the length of the list if
        after all of them.
    awaited : int
        The kernel that waits for it, in the same way; beyond the list it is the first of the next operation.
    dtype : str or None
        None for the activations'.
    group : {"tensor", "context", "context ring", "experts", "expert tensor"}
        Among whom: ranks that cut matrices; those that hand heads to each other; those that are in one ring; those that
        hand tokens to each other's experts; those that cut the matrices of experts.
    sms : int or None
        Streaming multiprocessors that it takes from the kernels beside it; None: as many as a library's collective.
    """

    name: str
    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring_shift"]
    elements: int
    backward: bool
    before: int
    awaited: int
    dtype: str | None = None
    group: Literal["tensor", "context", "context ring", "experts", "expert tensor"] = "tensor"
    sms: int | None = None


def around_columns(name: str, elements: int, cut: Cut, kernels: int) -> tuple[Communication, ...]:
    """What a matrix that is cut by columns asks for; `kernels` of its backward pass, the input's gradient first.

    Without cut sequences its input is there as a whole, and the input's gradient is summed while the weights' gradient
    is computed. With them the input is gathered, and gathered anew for the weights' gradient while the input's is
    computed, which is then summed and scattered while the weights' is computed.
    """
    return tuple(_around_columns(name, elements, cut, kernels)) if cut.tensor > 1 else ()


def _around_columns(name: str, elements: int, cut: Cut, kernels: int) -> Iterator[Communication]:
    if not cut.sequence:
        yield Communication(f"sum {name} input gradient", "all_reduce", elements, True, 1, kernels)
        return
    yield Communication(f"gather {name} input", "all_gather", elements, False, 0, 0)
    yield Communication(f"gather {name} input again", "all_gather", elements, True, 0, 1)
    yield Communication(f"scatter {name} input gradient", "reduce_scatter", elements, True, 1, kernels)


def around_rows(name: str, elements: int, cut: Cut) -> tuple[Communication, ...]:
    """What a matrix that is cut by rows asks for: its output is summed; with cut sequences also scattered."""
    if cut.tensor == 1:
        return ()
    if not cut.sequence:
        return (Communication(f"sum {name} output", "all_reduce", elements, False, 1, 1),)
    return (
        Communication(f"scatter {name} output", "reduce_scatter", elements, False, 1, 1),
        Communication(f"gather {name} output gradient", "all_gather", elements, True, 0, 0),
    )


def refusal(model: Transformer, cut: Cut, seq_len: int) -> str:
    """Why a model cannot be cut so: what does not divide, and what would; empty where it can."""
    t = cut.tensor
    sizes = {"heads": model.num_heads}
    if not model.num_experts:
        sizes["feed-forward width"] = model.ffn_size
    if model.dense_layers:
        sizes["feed-forward width of dense layers"] = model.of_layer(0).ffn_size
    if model.shared_experts:
        sizes["feed-forward width of shared experts"] = model.shared_experts * model.ffn_size
    if cut.sequence:
        sizes["tokens of a sequence"] = seq_len // cut.context.ranks
    for name, size in sizes.items():
        if size % t:
            return f"got {t}; must divide the {size} {name} of {model.name}: {_divisors(size)}"
    if model.num_kv_heads % t and t % model.num_kv_heads:
        return f"got {t}; must divide the {model.num_kv_heads} heads of keys of {model.name}, or be a multiple of them"
    return ""


def context_refusal(model: Transformer, cut: Cut, seq_len: int) -> str:
    """Why sequences cannot be cut so; empty where they can."""
    context = cut.context
    pieces = context.ranks * (2 if context.balanced and context.ring > 1 else 1)
    if seq_len % pieces:
        return f"got {context.ranks}; sequences of {seq_len} tokens cannot be cut into {pieces} pieces"
    for name, heads in (("heads", model.num_heads), ("heads of keys", cut.kv_heads(model) * cut.tensor)):
        if (heads // cut.tensor) % context.ulysses:
            each = f" that each of {cut.tensor} tensor-parallel ranks has" if cut.tensor > 1 else ""
            own = heads // cut.tensor
            return f"got ulysses {context.ulysses}; must divide the {own} {name}{each}: {_divisors(own)}"
    return ""


def experts_refusal(model: Transformer, cut: Cut) -> str:
    """Why experts cannot be spread so; empty where they can."""
    e = cut.experts.ranks
    if e > 1 and not model.num_experts:
        return f"got {e}; {model.name} has no experts; leave it at 1"
    if model.num_experts % e:
        return f"got {e}; must divide the {model.num_experts} experts of {model.name}: {_divisors(model.num_experts)}"
    return ""


def expert_tensor_refusal(model: Transformer, cut: Cut) -> str:
    """Why the matrices of experts cannot be cut so; empty where they can."""
    t = cut.experts.tensor
    if model.num_experts and model.ffn_size % t:
        return f"got {t}; must divide the {model.ffn_size} feed-forward width of {model.name}'s experts: " + _divisors(
            model.ffn_size
        )
    return ""


def _divisors(size: int) -> str:
    return ", ".join(str(n) for n in range(1, 65) if size % n == 0)
