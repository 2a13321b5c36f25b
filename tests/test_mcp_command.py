"""`simulator mcp`: ten calls by the protocol's own client over standard input and output, and what is refused."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from simulator.cli.commands.mcp import TOOLS, answer, input_schema

_GPT = "cluster: {topology: dgx_h100, world_size: 8}\ntraining: {model: gpt2, seq_len: 512}\n"
_SUM = {
    "name": "sum",
    "cluster": {"topology": "dgx_h100", "world_size": 8},
    "collective": {"operation": "all_reduce", "size": "1 MiB"},
}


def called(*calls: tuple[str, dict[str, Any]]) -> list[tuple[str, bool]]:
    """Texts of the answers by a server that one client started, and whether each call failed."""

    async def session() -> list[tuple[str, bool]]:
        command = StdioServerParameters(command=sys.executable, args=["-m", "simulator", "mcp"])
        async with Client(command) as client:
            offered = await client.list_tools()
            assert {tool.name for tool in offered.tools} == set(TOOLS)
            answers = []
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                answers.append((result.content[0].text, bool(result.is_error)))
            return answers

    return asyncio.run(session())


def test_ten_calls_of_a_client_are_answered() -> None:
    answers = called(
        ("memory", {"model": "llama3_8b", "gpu": "h100_sxm", "dp": 8, "sharding": "zero3"}),
        ("fit_check", {"model": "llama3_8b", "gpu": "rtx_4090", "method": "full", "seq_len": 512}),
        ("simulate", {"scenario": f"name: step\n{_GPT}"}),
        ("simulate", {"scenario": json.dumps(_SUM), "settings": ["cluster.world_size=4"]}),
        ("collective", {"operation": "all_gather", "topology": "dgx_h100", "begin": "1MiB", "end": "2MiB"}),
        ("plan", {"source": "gpt2", "topology": "dgx_h100", "gpus": 2, "seq_len": 128, "global_batch": "8seq",
                  "without": ["zero3", "zero2"], "best": 2}),
        ("expect", {"source": f"name: step\n{_GPT}", "measured": "1 s"}),
        ("support", {"gpu": "h100_sxm"}),
        ("schema", {"kind": "topology"}),
        ("simulate", {"scenario": "no_such_scenario"}),
    )  # fmt: skip
    assert [failed for _, failed in answers] == [False] * 9 + [True]
    documents = [json.loads(text) for text, _ in answers[:9]]
    assert documents[0]["fits"] is True
    # A model that does not fit is an answer, with exit code 1.
    assert documents[1]["fits"] is False
    assert "tokens/s" in documents[2]["answer"]["sentences"][0]
    assert len(documents[4]["points"]) == 2
    assert documents[7]["kernels"].keys() == {"h100_sxm"}
    assert answers[9][0] == "scenario: got 'no_such_scenario'; `simulator list scenarios` lists all"


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("sweep", {}, "tool: got 'sweep'; one of memory"),
        ("memory", {"model": "gpt2", "out": "/tmp/x"}, "out: is no argument; one of model"),
        ("memory", {}, "Missing argument"),
        ("memory", {"model": "gpt2", "sequence_parallel": "false"}, "got 'false'; must be true or false"),
        ("memory", {"model": "gpt2\0"}, "got a text with the character 0"),
        ("simulate", {"scenario": "--help"}, "scenario: got '--help'"),
        # An own optimizer is code.
        ("simulate", {"scenario": _GPT + "name: own\n", "settings": ["training.optimizer=mine.py"]}, "--no-plugins"),
    ],
)
def test_what_cannot_be_answered_is_told_in_a_line(tool: str, arguments: dict[str, Any], told: str) -> None:
    (text,), failed = asyncio.run(answer(tool, arguments, 60.0, set()))
    assert failed
    assert told in text


def test_a_long_question_is_stopped() -> None:
    question = {"source": "llama3_70b", "topology": "dgx_h100", "gpus": 512, "seq_len": 8192, "global_batch": "1024seq"}
    running = set[int]()
    (text,), failed = asyncio.run(answer("plan", question, 1.5, running))
    assert failed
    assert not running
    assert text == "plan: no answer in 1.5 s; ask for fewer GPUs, points or settings"


@pytest.mark.parametrize("command", TOOLS.values())
def test_a_tool_has_the_arguments_of_its_command_and_none_of_terminals(command: str) -> None:
    schema = input_schema(command)
    assert not {"out", "as_json", "no_plugins", "cache"} & schema["properties"].keys()
    assert set(schema["required"]) <= schema["properties"].keys()
    assert all(entry["description"] for entry in schema["properties"].values())


def test_warnings_follow_the_answer_and_null_is_not_given() -> None:
    arguments = {"scenario": f"name: step\n{_GPT}", "settings": ["training.offload.fraction=0.5"]}
    (text, warnings), failed = asyncio.run(answer("simulate", arguments, 60.0, set()))
    assert not failed
    assert "tokens/s" in text
    assert "training.offload.fraction=0.5: has no effect here" in warnings
    (text,), failed = asyncio.run(answer("support", {"gpu": None}, 60.0, set()))
    assert not failed
    assert "h100_sxm" in json.loads(text)["kernels"]


def test_a_signal_ends_the_server_and_what_it_runs() -> None:
    command = [sys.executable, "-m", "simulator", "mcp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n")
        server.stdin.flush()
        assert "simulator" in server.stdout.readline()
        server.terminate()
        assert server.wait(timeout=60) in (128 + signal.SIGTERM, -signal.SIGTERM)
