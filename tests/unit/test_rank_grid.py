"""Ranks on the grid of parallelism, as Megatron-LM's RankGenerator lays them out (executed there for these sizes)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.step.process_groups import Groups
from simulator.step.rank_grid import ORDER, RankGrid


def test_sixteen_ranks_lie_as_in_megatron() -> None:
    grid = RankGrid({"tp": 2, "cp": 2, "dp": 2, "pp": 2})
    firsts = {kinds: grid.groups(*kinds)[0].tolist() for kinds in (("tp",), ("cp",), ("dp",), ("pp",))}
    assert firsts == {("tp",): [0, 1], ("cp",): [0, 2], ("dp",): [0, 4], ("pp",): [0, 8]}
    assert grid.groups("dp", "cp")[0].tolist() == [0, 2, 4, 6]
    assert grid.groups("tp", "pp")[0].tolist() == [0, 1, 8, 9]


def test_experts_have_a_grid_of_their_own() -> None:
    grid = RankGrid({"tp": 1, "ep": 4, "dp": 2, "pp": 2})
    assert grid.groups("ep")[0].tolist() == [0, 1, 2, 3]
    assert grid.groups("dp")[0].tolist() == [0, 4]
    assert grid.groups("pp")[0].tolist() == [0, 8]


def test_another_order_swaps_who_is_near() -> None:
    grid = RankGrid({"tp": 2, "cp": 2, "dp": 2, "pp": 2}, ("tp", "cp", "ep", "pp", "dp"))
    assert grid.groups("pp")[0].tolist() == [0, 4]
    assert grid.groups("dp")[0].tolist() == [0, 8]


@given(st.permutations(ORDER), st.tuples(*[st.integers(1, 3)] * 5), st.sets(st.sampled_from(ORDER), min_size=1))
def test_groups_of_any_kinds_divide_the_ranks_and_differ_in_these_kinds_alone(
    order: list[str], sizes: tuple[int, ...], kinds: set[str]
) -> None:
    grid = RankGrid(dict(zip(ORDER, sizes, strict=True)), tuple(order))  # type: ignore[arg-type]
    groups = grid.groups(*kinds)  # type: ignore[arg-type]
    assert sorted(groups.ravel().tolist()) == list(range(grid.world_size))
    assert (np.diff(groups, axis=1) > 0).all()
    for kind in ORDER:
        values = grid.coordinate(kind)[groups]
        if kind in kinds:
            assert all(len(set(row)) == grid.sizes[kind] for row in values.tolist())
        else:
            assert (values == values[:, :1]).all()


@pytest.mark.parametrize(("shard", "mesh"), [(4, None), (2, None), (4, 2)])
def test_sharding_groups_lie_inside_those_of_data_parallelism(shard: int, mesh: int | None) -> None:
    groups = Groups(RankGrid({"tp": 2, "dp": 4, "pp": 2}), shard, mesh)
    every = [set(row) for row in groups.table("all").tolist()]
    assert every[0] == {0, 2, 4, 6}
    for scope in ("shard", "replicate", "mesh"):
        for row in groups.table(scope).tolist():  # type: ignore[arg-type]
            assert any(set(row) <= own for own in every)
    assert groups.members("replicate", groups.number("replicate", 0)) == ((0,) if shard == 4 else (0, 4))
    assert groups.members((0, 1), groups.number((0, 1), 3)) == (3, 11)
    assert groups.of_list("tensor", 1) == [4, 5, 6, 7]


def test_experts_lie_over_the_ranks_of_a_stage_in_megatrons_order() -> None:
    """etp, ep, then ranks with the same experts, whatever tp and cp are; 16 ranks in two stages."""
    grid = RankGrid({"tp": 2, "dp": 4, "pp": 2})
    groups = Groups(grid, 4, expert_ranks=2, expert_tensor=2)
    firsts = {name: groups.table(name)[0].tolist() for name in ("expert tensor", "experts", "expert data")}  # type: ignore[arg-type]
    assert firsts == {"expert tensor": [0, 1], "experts": [0, 2], "expert data": [0, 4]}
    alone = Groups(grid, 4, expert_ranks=4)
    assert alone.table("experts").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert alone.table("expert data")[0].tolist() == [0, 4]


@given(st.permutations(ORDER), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_ranks_from_both_ends_hold_the_same_part(order: list[str], tp: int, dp: int, half: int) -> None:
    grid = RankGrid({"tp": tp, "dp": dp, "pp": 2 * half}, tuple(order), mirrored=True)  # type: ignore[arg-type]
    place, tensor = grid.coordinate("pp"), grid.coordinate("tp")
    same, model = grid.same_part(), grid.one_model()
    assert sorted(same.ravel().tolist()) == sorted(model.ravel().tolist()) == list(range(grid.world_size))
    nearer = np.minimum(place, 2 * half - 1 - place)
    assert all(len(set(zip(nearer[row], tensor[row], strict=True))) == 1 for row in same)
    assert all(len(set(zip(nearer[row], tensor[row], strict=True))) == tp * half for row in model)
