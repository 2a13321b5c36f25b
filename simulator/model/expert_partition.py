"""How are experts distributed over ranks, and how uneven is the load: which ranks get how many tokens?

References
----------
.. [1] NVIDIA/Megatron-LM, core/transformer/moe/token_dispatcher.py.
.. [2] deepseek-ai/DeepEP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from simulator.model.shape import Transformer


@dataclass(frozen=True, slots=True)
class ExpertPartition:
    """How experts are distributed over ranks, and how tokens reach them [1]_.

    Attributes
    ----------
    ranks : int
        Expert-parallel ranks, e.
    tensor : int
        Ranks that cut each expert's matrices.
    dispatch : {"all_to_all", "all_gather", "deduplicated"}
        A copy of a token per chosen expert; every token to every rank; a copy per rank with at least one chosen expert
        [2]_.
    capacity : float or None
        Tokens that an expert takes, in units of its even share: excess tokens are dropped, missing tokens padded; None:
        unlimited.
    imbalance : float
        Tokens of the fullest rank over the mean, at least 1; every other rank waits for the fullest.
    zipf : float
        The n-th most popular expert is chosen in proportion to n^-zipf. Experts are dealt to ranks in turn by
        popularity, which is about as even as chance. 0: equal popularity.
    dtype : str or None
        Dtype of tokens on their way to experts; None: the activations' dtype, which the way back always uses.
    """

    ranks: int = 1
    dispatch: Literal["all_to_all", "all_gather", "deduplicated"] = "all_to_all"
    capacity: float | None = None
    imbalance: float = 1.0
    dtype: str | None = None
    tensor: int = 1
    zipf: float = 0.0

    def fullest(self, model: Transformer) -> float:
        """Return the tokens on the fullest expert-parallel rank, divided by the mean over ranks.

        Examples
        --------
        >>> from simulator.model.load import load_model
        >>> mixtral = load_model("mixtral_8x7b")
        >>> [round(ExpertPartition(ranks, zipf=1.0).fullest(mixtral), 3) for ranks in (1, 4, 8)]
        [1.0, 1.766, 2.943]
        """
        popularity = [float(place) ** -self.zipf for place in range(1, model.num_experts + 1)]
        # The rank with the most popular expert is the fullest. With 8 experts on 4 ranks it also has the fifth: (1 +
        # 1/5) over the sum 1 + 1/2 + ... + 1/8, times 4 ranks.
        return float(self.imbalance * self.ranks * sum(popularity[:: self.ranks]) / sum(popularity))

    def slots(self, model: Transformer, tokens: int) -> int:
        """Return the number of rows reserved at each expert for a rank's tokens, including padding; 0 without a
        capacity.
        """
        if self.capacity is None:
            return 0
        return math.ceil(tokens * model.active_experts / model.num_experts * self.capacity)

    def chosen(self, model: Transformer, tokens: int) -> int:
        """Return the number of token copies that a rank with `tokens` tokens sends to experts: a copy per accepting
        expert.
        """
        return self.slots(model, tokens) * model.num_experts or tokens * model.active_experts

    def at_experts(self, model: Transformer, tokens: int) -> int:
        """Return the number of token copies that the fullest rank's experts receive if each rank has `tokens`
        tokens.
        """
        if self.capacity is not None:
            # E / e experts, each with `slots` rows from each of e ranks.
            return self.slots(model, tokens) * model.num_experts
        return math.ceil(tokens * model.active_experts * self.fullest(model))

    def distinct_ranks(self, model: Transformer) -> float:
        """Return the expected number of distinct ranks that hold a token's experts, if tokens choose experts evenly.

        e (1 - C(E - E/e, k) / C(E, k)) for k of E experts.

        Examples
        --------
        >>> from simulator.model.load import load_model
        >>> [round(ExpertPartition(e).distinct_ranks(load_model("deepseek_v3")), 2) for e in (8, 32, 64)]
        [5.29, 7.27, 7.68]
        """
        experts, chosen = model.num_experts, model.active_experts
        # Probability that a given rank holds none of the k chosen experts.
        elsewhere = math.comb(experts - experts // self.ranks, chosen) / math.comb(experts, chosen)
        return self.ranks * (1 - elsewhere)
