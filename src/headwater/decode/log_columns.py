"""The columns that both readers of logs produce, before the headers are joined to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TOPICS = 4
ADDRESS_DIGITS = 40
TOPIC_DIGITS = 64


@dataclass(frozen=True, slots=True)
class LogColumns:
    """Logs of several blocks, in order. Topics and data have no 0x; an absent topic is null."""

    logs_per_block: npt.NDArray[np.int64]
    transaction_hash: pa.StringArray
    transaction_index: pa.Int32Array
    log_index: pa.Int32Array
    address: pa.StringArray
    topics: tuple[pa.BinaryArray, ...]
    data: pa.BinaryArray
