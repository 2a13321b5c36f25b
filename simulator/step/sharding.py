"""How are model states sharded over data-parallel ranks? The keys of `sharding`, which are the step's record too."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from simulator.basics import reading
from simulator.basics.registry import module_names
from simulator.basics.spec import Count, Servers, Short, Spec

# Names from the ZeRO paper (section 5) and PyTorch's ShardingStrategy, each with advice.
_OTHER_STRATEGIES: Final = {
    **dict.fromkeys(("fsdp", "fsdp2", "full_shard", "zero"), "has the name zero3 here; write zero3"),
    "shard_grad_op": (
        "is zero3 without resharding after the forward pass; write {strategy: zero3, reshard_after_forward: false}"
    ),
    **dict.fromkeys(("no_shard", "dp", "zero0", "none"), "has the name ddp here; write ddp"),
    **dict.fromkeys(
        ("hsdp", "hybrid_shard"), "is zero3 within shard groups; write for example {strategy: zero3, shard_size: 8}"
    ),
    "zero++": "is not supported yet; the nearest setting is {strategy: zero3, reshard_after_forward: 8}",
    **dict.fromkeys(("ps", "parameter_servers", "byteps"), "write parameter_server"),
}


def _strategies() -> tuple[str, ...]:
    """Return the names of the shipped strategies, which are the names of their modules beside `strategy`.

    The catalog would import every strategy, and a strategy's module imports this record.
    """
    return tuple(name for name in module_names("simulator.step.strategies") if name != "strategy")


def _reshard() -> reading.ValueReader:
    """Return a validator for `reshard_after_forward`: a boolean, or a number of ranks from 2 on."""
    ranks = reading.whole(2, 1_000_000)

    def reader(value: Any) -> bool | int:
        # Booleans first: in Python True is an int.
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(ranks.reader(value))
        raise ValueError(f"got {reading.shown(value)}; must be true, false, or a number of ranks such as 8")

    return reading.ValueReader(reader, lambda: {"anyOf": [{"type": "boolean"}, ranks.schema()]})


class Sharding(Spec):
    """Sharding of model states over data-parallel ranks (keys of `sharding`)."""

    strategy: Annotated[str, reading.part(reading.choice(_strategies(), _OTHER_STRATEGIES))] = Field(
        default="zero3",
        description=(
            "Sharded states: none (ddp), optimizer states (zero1), also gradients (zero2), also parameters (zero3); or "
            "the path of an own strategy."
        ),
    )
    # The same values as in PyTorch's `fully_shard`.
    reshard_after_forward: Annotated[bool | int, _reshard()] = Field(
        default=True,
        description=(
            "zero3: whether gathered parameters are freed between forward and backward; a number: sharded over this "
            "number of neighbouring ranks in the meantime."
        ),
    )
    prefetch: Annotated[int, reading.whole(0, 10_000)] = Field(
        default=1, description="zero3: number of units gathered ahead of the current unit."
    )
    # 25 MiB is the default in PyTorch's DistributedDataParallel.
    bucket_size: Annotated[int, reading.size(1)] = Field(
        default=25 * 2**20, description="Every strategy except zero3: gradient bucket size."
    )
    shard_size: Count | None = Field(
        default=None,
        description=(
            "zero1, zero2, zero3: number of ranks with a common copy of the states; all data-parallel ranks if omitted."
        ),
    )
    layers_per_unit: Count = Field(
        default=1, description="zero3: number of layers that are gathered and freed together."
    )
    # DeepSpeed's parameter persistence threshold.
    keep_below: Annotated[int, reading.whole(0)] = Field(
        default=0, description="zero3: tensors with fewer elements are not sharded; DeepSpeed's default is 100000."
    )
    # "last" is FSDP's `no_sync` for every micro-batch except the last.
    gradient_sync: Annotated[Literal["every", "shard", "last"], reading.choice(("every", "shard", "last"))] = Field(
        default="every",
        description=(
            "zero3: micro-batches after which gradients are summed: every micro-batch; every micro-batch within "
            "shard groups, but only the last over the copies (shard); only the last, with whole gradients in memory "
            "(last)."
        ),
    )
    servers: Servers = Field(
        default=1,
        description="parameter_server: number of servers, each with a share of the parameters; all: one per worker.",
    )
    servers_on: Annotated[Literal["own", "workers"], reading.choice(("own", "workers"))] = Field(
        default="own",
        description="parameter_server: separate machines (own), or workers, one server per node before a second.",
    )
    asynchronous: Annotated[bool, reading.YES_NO] = Field(
        default=False, description="parameter_server: whether servers apply each gradient on arrival."
    )
    # The bound in a stale synchronous parallel parameter server (Ho et al. 2013).
    staleness: Annotated[int, reading.whole(0, 1_000_000)] | None = Field(
        default=None,
        description=(
            "asynchronous: number of steps that a worker may be ahead of the slowest worker; no limit if omitted."
        ),
    )

    @property
    def mesh(self) -> int | None:
        """Number of ranks that share parameters between forward and backward pass; None if not given as a number."""
        return None if isinstance(self.reshard_after_forward, bool) else self.reshard_after_forward

    @property
    def server_count(self) -> int:
        """Number of parameter servers, in a step, where `all` has become a number.

        Raises
        ------
        ValueError
            The number is `all` still.
        """
        if self.servers == "all":
            raise ValueError("sharding.servers: all is a number only beside a number of ranks")
        return self.servers

    def among(self, workers: int) -> Sharding:
        """Return this sharding for a number of workers: `servers: all` is replaced by that number."""
        return self.replaced(servers=workers) if self.servers == "all" else self


SHARDINGS: Final = Short({name: {"strategy": name} for name in _strategies()}, _OTHER_STRATEGIES, "strategy")

# The default: states sharded over all ranks.
ZERO3: Final = Sharding()
