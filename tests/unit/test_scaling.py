"""Rules of loss scaling, worked out by hand."""

from __future__ import annotations

import pytest

from simulator.numerics.loss_scaling import Scale, deepspeed_scaler, grad_scaler, static_scaler


def values(scale: Scale, overflows: set[int], steps: int) -> list[float]:
    """The scale of each step, and of the one after the last."""
    found = [scale.value]
    for number in range(steps):
        scale = scale.after(overflow=number in overflows)
        found.append(scale.value)
    return found


def test_grad_scaler_halves_at_once_and_doubles_after_as_many_clean_steps() -> None:
    """Growth interval 4, overflows at 2, 7 and 8: 16 16 16 8 8 8 8 | 16: four clean (3-6) | 8 4 4 4 4 | 8."""
    told = values(grad_scaler(16.0, 4), {2, 7, 8}, 13)
    assert told == [16, 16, 16, 8, 8, 8, 8, 16, 8, 4, 4, 4, 4, 8]


def test_deepspeed_forgives_the_first_overflow_until_the_scale_has_grown() -> None:
    told = values(deepspeed_scaler(16.0, 4), {1, 3, 10}, 12)
    # 1: forgiven; 3: halved; 4-7 clean: doubled, and forgiving again; 10: forgiven.
    assert told == [16, 16, 16, 16, 8, 8, 8, 8, 16, 16, 16, 16, 16]


def test_refilled_at_every_clean_step_it_forgives_every_lone_overflow() -> None:
    scale = Scale(16.0, 1000, hysteresis=2, left=2, refills=True, least=1.0)
    assert values(scale, {1, 3, 5}, 6) == [16] * 7
    assert values(scale, {1, 2}, 4) == [16, 16, 16, 8, 8]


def test_an_overflow_at_the_least_scale_is_an_error() -> None:
    scale = deepspeed_scaler(1.0, hysteresis=1)
    with pytest.raises(OverflowError, match="loss scale of 1, the least"):
        scale.after(overflow=True)


def test_a_static_scale_stays() -> None:
    assert values(static_scaler(128.0), {0, 2}, 4) == [128.0] * 5


@pytest.mark.parametrize("mutant", ["counter not reset", "growth late"])
def test_the_rule_worked_by_hand_sees_wrong_scalers(mutant: str) -> None:
    right = values(grad_scaler(16.0, 4), {2, 7, 8}, 13)
    if mutant == "growth late":
        assert values(grad_scaler(16.0, 5), {2, 7, 8}, 13) != right
        return
    scale, found = grad_scaler(16.0, 4), [16.0]
    for number in range(13):
        clean = scale.clean
        scale = scale.after(overflow=number in {2, 7, 8})
        if number in {2, 7, 8}:
            scale = Scale(scale.value, 4, clean=clean)
        found.append(scale.value)
    assert found != right


def test_a_scale_never_grows_to_infinity() -> None:
    scale = Scale(2.0**1023, interval=1)
    assert scale.after(overflow=False).value == 2.0**1023
