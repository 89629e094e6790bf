"""What every decoding step says when values are not what their types allow.

A step checks all rows at once and stops at the first check that fails, naming *all* rows that fail
it. So no step has to cope with rows that an earlier one found bad, and a caller that skips them
starts again with the rest: as often as there are kinds of mistakes in the batch, not rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import InvalidOptionError

OnError = Literal["raise", "skip"]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class MalformedRowsError(Exception):
    """Some rows cannot be decoded. Caught by `decode_or_skip`; never seen by users."""

    def __init__(self, rows: Rows, reason: str) -> None:
        super().__init__(reason)
        self.rows, self.reason = rows, reason


def check_on_error(on_error: object) -> None:
    """Refuse what is no `OnError`. Called by the functions that make outputs, on the driver.

    Raises:
        InvalidOptionError: it is something else.
    """
    if on_error not in ("raise", "skip"):
        raise InvalidOptionError("on_error is 'raise' or 'skip'", got=repr(on_error))


def refuse(bad: Mask, reason: str, owners: Rows | None = None) -> None:
    """Stop if any element is bad; `owners` are the rows that elements of a nested value are of.

    Raises:
        MalformedRowsError: some are; it holds their rows.
    """
    if bad.any():
        elements = np.flatnonzero(bad)
        raise MalformedRowsError(elements if owners is None else owners[elements], reason)


def decode_or_skip(
    batch: pa.RecordBatch,
    decode: Callable[[pa.RecordBatch], list[pa.Array]],
    on_error: OnError,
    explain: Callable[[pa.RecordBatch, MalformedRowsError], Exception],
) -> tuple[list[pa.Array], int]:
    """Return the decoded columns, and how many rows were left out because they are malformed.

    Called by outputs. With "raise", the first malformed row becomes the error that `explain` makes.
    """
    skipped = 0
    while True:
        try:
            return decode(batch), skipped
        except MalformedRowsError as error:
            if on_error == "raise":
                raise explain(batch, error) from None
            keep = np.ones(batch.num_rows, bool)
            keep[error.rows] = False
            skipped += int(batch.num_rows - keep.sum())
            batch = batch.filter(pa.array(keep))
