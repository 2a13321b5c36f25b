"""Quantities as text, and the three traps."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.basics.units import (
    Kind,
    format_bandwidth,
    format_bytes,
    format_memory,
    format_size,
    format_time,
    parse,
    parse_bytes,
)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("400 Gb/s", "bandwidth", 400e9 / 8),
        ("400 GB/s", "bandwidth", 400e9),
        ("1 GiB/s", "bandwidth", 2.0**30),
        ("1 Gib/s", "bandwidth", 2.0**30 / 8),
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2.0**30),
        ("8 B", "bytes", 8.0),
        ("5 us", "time", 5e-6),
        ("5 µs", "time", 5e-6),
        ("5us", "time", 5e-6),
        ("  1.5   ms  ", "time", 1.5e-3),
        ("0 s", "time", 0.0),
        ("2 min", "time", 120.0),
        (".5 h", "time", 1800.0),
        ("1e3 ns", "time", 1e-6),
        ("312 TFLOP/s", "flop_rate", 312e12),
        ("100 Gbps", "bandwidth", 12.5e9),
        ("100 Gbit/s", "bandwidth", 12.5e9),
        ("12.5 GBps", "bandwidth", 12.5e9),
        ("6 EFLOP", "flops", 6e18),
        ("1_000 kB", "bytes", 1e6),
        ("+3 MB", "bytes", 3e6),
    ],
)
def test_text_becomes_si(text: str, kind: Kind, expected: float) -> None:
    assert parse(text, kind) == expected


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("400 gb/s", "bandwidth", "did you mean 'GB/s' or 'Gb/s'"),
        ("400 gbps", "bandwidth", r"did you mean 'Gbps'\?"),
        ("80", "bytes", "has no unit"),
        ("GB", "bytes", "must be a number and a unit"),
        ("", "bytes", "must be a number and a unit"),
        ("-1 GB", "bytes", "must not be negative"),
        ("5 us", "bytes", "'us' measures time, not bytes"),
        ("5 GB", "time", "'GB' measures bytes, not time"),
        ("5 GB", "bandwidth", "'GB' measures bytes, not bandwidth"),
        ("5 TFLOP", "flop_rate", "'TFLOP' measures flops, not flop rate"),
        ("nan GB", "bytes", "must be a number"),
        ("inf GB", "bytes", "must be a number"),
        ("1e40 GB", "bytes", "outside the range that can be simulated"),
        ("1e999 GB", "bytes", "outside the range that can be simulated"),
        ("1 2 GB", "bytes", "no unit|must be a number"),
        ("1..2 GB", "bytes", "no unit|must be a number"),
        ("1_ GB", "bytes", "no unit|must be a number"),
    ],
)
def test_what_is_no_quantity_is_refused_with_advice(text: str, kind: Kind, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        parse(text, kind)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("got ")


@pytest.mark.parametrize("value", [80, 80.0, None, True, ["1 GB"]])
def test_a_bare_number_is_no_quantity(value: object) -> None:
    with pytest.raises(ValueError, match="must be text with a unit"):
        parse(value, "bytes")  # type: ignore[arg-type]


def test_bytes_come_out_whole() -> None:
    assert parse_bytes("1.5 KiB") == 1536
    assert parse_bytes("0.1 kB") == 100
    assert parse_bytes("256 MiB") == 256 * 2**20
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_bytes("0.3 B")


@settings(derandomize=True)
@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from([("us", -6), ("ms", -3), ("s", 0), ("ns", -9)]))
def test_decimals_are_read_without_a_rounding_in_between(whole: int, thousandths: int, unit: tuple[str, int]) -> None:
    name, exponent = unit
    exact = (whole + Fraction(thousandths, 1000)) * Fraction(10) ** exponent
    assert parse(f"{whole}.{thousandths:03d} {name}", "time") == float(exact)


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (1536, "1536 B"),
        (2**20, "1 MiB"),
        (256 * 2**20, "256 MiB"),
        (2**30, "1 GiB"),
        (5 * 2**40, "5 TiB"),
    ],
)
def test_bytes_are_shown_in_binary_units(nbytes: int, shown: str) -> None:
    assert format_bytes(nbytes) == shown


@given(st.integers(0, 2**50))
@settings(derandomize=True)
def test_shown_bytes_are_right_to_four_digits(nbytes: int) -> None:
    assert parse(format_bytes(nbytes), "bytes") == pytest.approx(nbytes, rel=6e-4)


@pytest.mark.parametrize("written", ["102.4 MB", "256 MiB", "2.5 MiB", "100 kB", "1 GB", "1000 B", "1 GiB", "0 B"])
def test_a_size_is_shown_in_the_units_in_which_it_was_written(written: str) -> None:
    assert format_size(parse_bytes(written)) == written


def test_a_size_without_a_short_exact_text_is_shown_in_binary_units() -> None:
    assert format_size(123_456_789) == format_bytes(123_456_789) == "117.7 MiB"


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(80 * 2**30, "80 GiB"), (85_520_809_984, "79.6 GiB"), (2**20, "1 MiB"), (1500, "1.46 KiB"), (0, "0 B")],
)
def test_memory_is_shown_in_binary_units_as_nvidia_smi_does(nbytes: int, shown: str) -> None:
    """An H100 says 81559MiB, which are 79.6 GiB; amounts of bytes are binary, rates are decimal."""
    assert format_memory(nbytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.00128, "1.28 ms"),
        (2.0, "2 s"),
        (5e-6, "5 us"),
        (1.23456e-8, "12.35 ns"),
        (0.0, "0 s"),
        (9999.4, "9999 s"),
        (9999.6, "10,000 s"),
        (87_084, "87,080 s"),
    ],
)
def test_times_are_shown_with_the_unit_that_fits(seconds: float, shown: str) -> None:
    assert format_time(seconds) == shown


@pytest.mark.parametrize(
    ("bandwidth", "shown"),
    [(12.5e9, "12.5 GB/s"), (3.35e12, "3.35 TB/s"), (1e6, "1 MB/s"), (2e3, "2 kB/s"), (5.0, "5 B/s")],
)
def test_bandwidths_are_shown_in_decimal_units(bandwidth: float, shown: str) -> None:
    assert format_bandwidth(bandwidth) == shown
