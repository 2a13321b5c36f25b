"""The table of nccl-tests, both ways. Rows of real logs are quoted with their source."""

from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.report.tables.nccl_csv import parse_csv
from simulator.report.tables.nccl_file import read
from simulator.report.tables.nccl_table import NcclRow, Timing, parse_table, write_table

# 16 H100, all_reduce: github.com/lessizzmore/create-a3mega-ztan-fork, ztan-NCCL-test-result.
MODERN = "134217728   33554432   float     sum      -1   1652.2   81.24  152.32      0   1636.7   82.01  153.76   0"
# 8 A100, an older version: github.com/microsoft/superbenchmark, tests/data/nccl_alltoall.log and nccl_broadcast.log.
NO_ROOT = "      131072          4096   float            87.35    1.50    1.31    N/A    86.76    1.51    1.32    N/A"
NO_REDOP = "  134217728      33554432   float       0    672.2  199.67  199.67    N/A    670.0  200.34  200.34    N/A"


def test_a_row_of_a_log_becomes_si() -> None:
    (row,) = parse_table(MODERN)
    assert row == NcclRow(
        134217728, 33554432, "float32", "sum", -1, 1652.2 / 1e6, 81.24e9, 152.32e9, 0,
        Timing(1636.7 / 1e6, 82.01e9, 153.76e9, 0),
    )  # fmt: skip


def test_busbw_of_a_real_row_is_algbw_times_the_all_reduce_factor() -> None:
    (row,) = parse_table(MODERN)
    assert row.algbw is not None
    assert row.busbw == pytest.approx(row.algbw * 2 * 15 / 16, rel=1e-3)
    assert row.algbw == pytest.approx(row.size / row.time, rel=1e-3)


def test_older_logs_without_redop_or_root_are_read() -> None:
    (row,) = parse_table(NO_ROOT)
    assert (row.redop, row.root, row.time, row.wrong) == ("none", -1, 87.35 / 1e6, None)
    (row,) = parse_table(NO_REDOP)
    assert (row.redop, row.root, row.algbw) == ("none", 0, 199.67e9)


def test_a_log_with_prefixes_headers_and_other_lines_is_read() -> None:
    text = "\n".join(
        [
            "0: # nThread 1 nGpus 8 minBytes 8",
            "#  Rank  0 Group  0 Pid   6899 on host device  0 [0000:04:00] NVIDIA H100 80GB HBM3",
            "host:3442:3442 [0] NCCL INFO Channel 00/02 : 0 1 2 3",
            "host:3442:3442 [0] NCCL INFO comm 0x1 rank 7 8 nranks 8",
            f"0: {MODERN}",
            f"[1,0]<stdout>:{MODERN}",
            "# Out of bounds values : 0 OK",
            "# Avg bus bandwidth    : 70.742",
        ]
    )
    assert [row.size for row in parse_table(text)] == [134217728, 134217728]


@pytest.mark.parametrize(
    ("columns", "in_place", "wrong"),
    [
        ("sum -1 15.31 0.50 0.75", None, None),
        ("sum -1 15.31 0.50 0.75 3", None, 3),
        ("sum -1 15.31 0.50 0.75 N/A", None, None),
        ("sum -1 15.31 0.50 0.75 - - - - -", None, None),
        ("sum -1 15.31 0.50 0.75 16.0 0.40 0.70", Timing(16e-6, 0.4e9, 0.7e9), None),
        ("sum 15.31 0.50 0.75 1e-06 16.0 0.40 0.70 0e+00", Timing(16e-6, 0.4e9, 0.7e9), None),
        ("15.31 0.50 0.75 0", None, 0),
    ],
)
def test_missing_columns_are_told_from_the_others(columns: str, in_place: Timing | None, wrong: int | None) -> None:
    (row,) = parse_table(f"8 2 float {columns}")
    assert (row.time, row.algbw, row.busbw) == pytest.approx((15.31e-6, 0.5e9, 0.75e9))
    assert row.wrong == wrong
    if in_place is None:
        assert row.in_place is None
    else:
        assert row.in_place is not None
        assert (row.in_place.time, row.in_place.busbw) == pytest.approx((in_place.time, in_place.busbw))


def test_what_is_written_is_read_back() -> None:
    rows = [
        NcclRow(8, 2, "float32", "sum", -1, 15.31e-6, 0.52e9, 0.91e9, 0, Timing(14.95e-6, 0.54e9, 0.94e9, 0)),
        NcclRow(2**30, 2**29, "bfloat16", "average", -1, 6759.0e-6, 158.86e9, 297.86e9, 2, None),
        NcclRow(2**33, 2**31, "float16", "product", 3, 47535e-6, 180.71e9, 338.82e9, None, None),
        NcclRow(2**10, 2**10, "float8_e5m2", "none", 0, 1e-6, 1.02e9, 1.02e9, None, None),
    ]
    assert write_table(parse_table(write_table(rows))) == write_table(rows)
    for row, again in zip(rows, parse_table(write_table(rows)), strict=True):
        assert (again.size, again.count, again.dtype, again.redop, again.root, again.wrong) == (
            row.size, row.count, row.dtype, row.redop, row.root, row.wrong,
        )  # fmt: skip
        assert again.time == pytest.approx(row.time, rel=1e-3)
        assert again.busbw == pytest.approx(row.busbw, rel=1e-2)


def test_the_footer_sums_wrong_elements_and_averages_busbw() -> None:
    rows = [NcclRow(8, 2, "float32", "sum", -1, 1e-6, 1e9, busbw, wrong) for busbw, wrong in ((1e9, 0), (3e9, 5))]
    assert write_table(rows).splitlines()[-3:] == [
        "# Out of bounds values : 5 FAILED",
        "# Avg bus bandwidth    : 2",
        "#",
    ]


def test_unchecked_elements_are_a_dash() -> None:
    table = write_table([NcclRow(8, 2, "float32", "sum", -1, 1e-6, 1e9, 1e9)], comment="simulated")
    assert table.startswith("# simulated\n#")
    assert table.splitlines()[4].endswith(" -")
    assert "# Out of bounds values : - not checked" in table


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("8 2 float sum", "log:2: got 1 columns after the type; must be 3 to 10"),
        ("8 2 float sum -1 fast 0.0 0.0 0", "log:2: time: got 'fast'; must be a number, 0 or more"),
        ("8 2 float sum x 15.31 0.0 0.0 0", "log:2: root: got 'x'; must be a whole number"),
        ("8 2 float sum -1 15.31 0.0 0.0 maybe", "log:2: #wrong: got 'maybe'; must be a whole number or N/A"),
        ("8 2 float sum -1 - - - 0", "log:2: got no out-of-place time"),
    ],
)
def test_a_broken_row_is_told_with_its_line(line: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_table(f"{MODERN}\n{line}\n", "log")
    assert str(caught.value).startswith(message)


def test_a_log_without_rows_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"empty\.log: no row of an nccl-tests table"):
        parse_table("nothing here\n", "empty.log")


@pytest.mark.parametrize(
    ("header", "cells", "size", "time"),
    [
        ("size,time", "1024,20", 1024, 20e-6),
        ("size_bytes,time_us_oop", "1024,20", 1024, 20e-6),
        ("Size (B);Time (us)", "1024;20", 1024, 20e-6),
        ("bytes\ttime_s", "1024\t0.5", 1024, 0.5),
        ("gpu,size_mib,time_ms", "H100,2,1.5", 2 * 2**20, 1.5e-3),
        ("message_size,latency_us", "1024,20", 1024, 20e-6),
    ],
)
def test_csv_columns_are_known_by_their_names(header: str, cells: str, size: int, time: float) -> None:
    (row,) = parse_csv(f"# measured\n{header}\n{cells}\n")
    assert row.size == size
    assert row.time == pytest.approx(time)
    assert row.algbw == pytest.approx(size / time)


def test_csv_reads_what_else_is_there() -> None:
    text = "op,dtype,redop,count,size_bytes,time_us_oop,algbw_GBps_oop,busbw_GBps_oop,time_us_ip,busbw_GBps_ip\n"
    (row,) = parse_csv(text + "all_reduce,float,sum,2,8,164.3,0.5,0.9,163.3,\n")
    assert (row.dtype, row.redop, row.count, row.algbw, row.busbw) == ("float32", "sum", 2, 0.5e9, 0.9e9)
    assert row.in_place is not None
    assert (row.in_place.time, row.in_place.algbw) == pytest.approx((163.3e-6, 8 / 163.3e-6))
    assert row.in_place.busbw is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size,speed\n1,2\n", "x.csv:1: got columns size, speed; must have a time: one of time, time_us"),
        ("when,time\n1,2\n", "x.csv:1: got columns when, time; must have a size: one of size, size_bytes"),
        ("size,time\n8,fast\n", "x.csv:2: time: got 'fast'; must be a number"),
        ("size,time\n8,0\n", "x.csv:2: time: got 0; must be more than 0"),
        ("size,time\n8,\n", "x.csv:2: time: got nothing; must be a number"),
        ("size,time\n-8,1\n", "x.csv:2: size: got '-8'; must be 0 or more, and finite"),
        ("size,time\n8.5,1\n", "x.csv:2: size: got 8.5; must be a whole number of bytes"),
        ("size,time\n8,1,1\n", "x.csv:2: got 3 columns; must be 2, as in the header"),
        ("size,time\n", "x.csv: no rows below the header"),
        ("\n", "x.csv: the file is empty"),
    ],
)
def test_a_broken_csv_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_csv(text, "x.csv")
    assert str(caught.value).startswith(message)


def test_read_tells_a_csv_from_a_log(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeffsize,time\n8,20\n", encoding="utf-8")
    (tmp_path / "b.log").write_text(MODERN)
    assert read(tmp_path / "a.csv")[0].size == 8
    assert read(tmp_path / "b.log")[0].size == 134217728


def test_read_tells_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read: No such file"):
        read(tmp_path / "none.log")
    (tmp_path / "c.log").write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match="not a UTF-8 text file: byte 0"):
        read(tmp_path / "c.log")
