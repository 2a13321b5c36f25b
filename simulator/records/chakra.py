"""Numbers and names of the Chakra execution trace format that its reader and its writer share.

Source: mlcommons/chakra, schema/protobuf/et_def.proto (version 0.0.4).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from simulator.records.collective_operation import COLLECTIVE_OPERATIONS, Holding


class NodeType(IntEnum):
    """Kinds of nodes."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    SEND = 5
    RECV = 6
    COLL = 7


NUMBERS: Final = {name: operation.chakra_number for name, operation in COLLECTIVE_OPERATIONS.items()}
# Operation of each collective's number. 8 is a reduce-scatter of blocks.
OPERATIONS: Final = {number: name for name, number in NUMBERS.items()} | {8: "reduce_scatter", 9: "barrier"}
# Operations whose `comm_size` is the part of a rank, not the whole array.
SIZE_OF_PART: Final = tuple(
    name for name, operation in COLLECTIVE_OPERATIONS.items() if operation.before is Holding.PART
)
VERSION: Final = "0.0.4"
# Fields of GlobalMetadata, Node and AttributeProto.
METADATA_VERSION, METADATA_ATTRIBUTE = 1, 2
ID, NAME, TYPE, CONTROL_DEPENDENCIES, DATA_DEPENDENCIES, START, DURATION, ATTRIBUTE = 1, 2, 3, 4, 5, 6, 7, 10
ATTRIBUTE_NAME, DOUBLE, INT32, INT64, BOOL, BOOL_LIST, STRING = 1, 3, 7, 9, 27, 28, 29
# Attributes that this simulator adds: a factor on the time of transfers, and messages that wait for their receiver.
NETWORK_TIME: Final = "network_time"
RENDEZVOUS: Final = "rendezvous"
