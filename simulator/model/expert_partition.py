"""How are experts distributed over ranks, and how uneven is the load: which ranks get how many tokens?

References
----------
.. [1] NVIDIA/Megatron-LM, core/transformer/moe/token_dispatcher.py.
.. [2] deepseek-ai/DeepEP, csrc/kernels/internode.cu: a token crosses the network once per node, to the rank at the
   sender's place there, which forwards the token over NVLink, once per rank.
.. [3] pytorch/torchtitan, models/moe/moe.py: `_debug_force_load_balance_routing`; the same in NVIDIA-NeMo/Automodel,
   components/moe/layers.py: `FakeBalancedGate`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Final

from simulator.model.expert_counts import fullest_ranks, read_counts, walked_loads
from simulator.model.experts_spec import ExpertsSpec
from simulator.model.shape import Transformer

EXCHANGE: Final = ExpertsSpec()


@dataclass(frozen=True, slots=True)
class ExpertPartition:
    """How experts are distributed over ranks, and how tokens reach them [1]_ [2]_ [3]_.

    Experts are dealt to ranks in turn by popularity, which is about as even as chance.
    """

    ranks: int = 1  # expert-parallel ranks, e
    tensor: int = 1  # ranks that cut each expert's matrices
    exchange: ExpertsSpec = EXCHANGE
    # Consecutive expert-parallel ranks on each node; 0 if nodes are unknown, or have unequal numbers of these ranks. A
    # token then has a copy per rank.
    in_node: int = 0

    @property
    def nodes(self) -> int:
        """Number of nodes over which a group of expert-parallel ranks is distributed; 1 if unknown."""
        return self.ranks // self.in_node if self.in_node else 1

    def fullest(self, model: Transformer) -> float:
        """Return the tokens on the fullest expert-parallel rank, divided by the mean over ranks.

        >>> from simulator.model.load import load_model
        >>> mixtral, skewed = load_model("mixtral_8x7b"), ExpertsSpec(imbalance={"zipf": 1.0})
        >>> [round(ExpertPartition(ranks, exchange=skewed).fullest(mixtral), 3) for ranks in (1, 4, 8)]
        [1.0, 1.766, 2.943]
        """
        if self.exchange.moves:
            loads = self.loads(model)
            return sum(loads) / len(loads)
        popularity = [float(place) ** -self.exchange.zipf for place in range(1, model.num_experts + 1)]
        # The rank with the most popular expert is the fullest. With 8 experts on 4 ranks it also has the fifth: (1 +
        # 1/5) over the sum 1 + 1/2 + ... + 1/8, times 4 ranks.
        return float(self.exchange.factor * self.ranks * sum(popularity[:: self.ranks]) / sum(popularity))

    def loads(self, model: Transformer) -> tuple[float, ...]:
        """Return the tokens on the fullest rank, divided by the mean over ranks, for each step that `imbalance` asks
        for.
        """
        exchange = self.exchange
        if exchange.recorded:
            return fullest_ranks(read_counts(exchange.recorded), self.ranks)
        if not exchange.moves:
            return (self.fullest(model),)
        sizes = model.num_layers, model.num_experts, self.ranks
        return walked_loads(exchange.zipf, exchange.walk, exchange.steps, exchange.seed, *sizes)

    def slots(self, model: Transformer, tokens: int) -> int:
        """Return the number of rows reserved at each expert for a rank's tokens, including padding; 0 without a
        capacity.
        """
        if self.exchange.capacity is None:
            return 0
        return math.ceil(tokens * model.active_experts / model.num_experts * self.exchange.capacity)

    def chosen(self, model: Transformer, tokens: int) -> int:
        """Return the number of token copies that a rank with `tokens` tokens sends to experts: a copy per accepting
        expert.
        """
        return self.slots(model, tokens) * model.num_experts or tokens * model.active_experts

    def at_experts(self, model: Transformer, tokens: int) -> int:
        """Return the number of token copies that the fullest rank's experts receive if each rank has `tokens`
        tokens.
        """
        if self.exchange.capacity is not None:
            # E / e experts, each with `slots` rows from each of e ranks.
            return self.slots(model, tokens) * model.num_experts
        return math.ceil(tokens * model.active_experts * self.fullest(model))

    def distinct(self, model: Transformer, places: int) -> float:
        """Return the expected number of places (nodes or ranks) that hold at least one expert chosen by a token, if
        `places` places hold equal runs of consecutive experts.

        >>> from simulator.model.load import load_model
        >>> deepseek = load_model("deepseek_v3")
        >>> [round(ExpertPartition(64).distinct(deepseek, places), 2) for places in (2, 8, 32, 64)]
        [1.93, 3.63, 6.6, 7.36]

        In turn, a token's 8 experts are on 2 ranks with 4 experts each, on the same node:

        >>> in_turn = ExpertPartition(64, exchange=ExpertsSpec(routing="round_robin"))
        >>> in_turn.distinct(deepseek, 64), in_turn.distinct(deepseek, 8)
        (2.0, 1.0)
        """
        experts, active = model.num_experts, model.active_experts
        if self.exchange.routing == "round_robin":
            return _distinct_in_turn(experts, active, places)
        return _distinct_at_random(experts, active, places, model.expert_groups, model.active_groups)


@cache
def _distinct_in_turn(experts: int, active: int, places: int) -> float:
    """Return the mean number of places with an expert of a token, if token i chooses experts i k, ..., i k + k - 1."""
    # After E / gcd(E, k) tokens the choice starts anew.
    tokens, each = experts // math.gcd(experts, active), experts // places
    places_of = [{(token * active + n) % experts // each for n in range(active)} for token in range(tokens)]
    return sum(map(len, places_of)) / tokens


@cache
def _distinct_at_random(experts: int, active: int, places: int, groups: int, active_groups: int) -> float:
    """Return the expected number of places with an expert of a token that chooses k experts of m random groups.

    A place without chosen experts has o experts in the m chosen groups of E / G experts, and all k are among the
    others: probability C(m E / G - o, k) / C(m E / G, k), averaged over the choices of groups. With one group of all
    experts this is the hypergeometric C(E - E / e, k) / C(E, k).
    """
    size, each = experts // groups, experts // places
    choices = math.comb(active_groups * size, active) * math.comb(groups, active_groups)
    distinct = 0.0
    for place in range(places):
        first, last = place * each, (place + 1) * each
        # Experts of each group at this place, without groups elsewhere.
        shared = [
            min(last, (group + 1) * size) - max(first, group * size) for group in range(first // size, -(-last // size))
        ]
        # Ways to choose some of these groups, by their number and by their experts at this place.
        ways = Counter({(0, 0): 1})
        for here in shared:
            ways += Counter(
                {(taken_groups + 1, own_experts + here): count for (taken_groups, own_experts), count in ways.items()}
            )
        nowhere = sum(
            count
            * math.comb(groups - len(shared), active_groups - taken_groups)
            * math.comb(active_groups * size - own_experts, active)
            for (taken_groups, own_experts), count in ways.items()
            if taken_groups <= active_groups
        )
        distinct += 1 - nowhere / choices
    return distinct
