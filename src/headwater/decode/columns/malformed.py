"""Reports the rows that a decoding step cannot decode.

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
import pyarrow.compute as pc

from headwater.core.callbacks import Callback
from headwater.errors import DecodeError, InvalidOptionError

OnError = Literal["raise", "skip"] | Callable[[DecodeError], object]
"""What to do with an item that cannot be decoded: a function is told, and may raise the error."""
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class MalformedRowsError(Exception):
    """Some rows cannot be decoded. Caught by `output.decode_rows`; never seen by users."""

    def __init__(self, rows: Rows, reason: str) -> None:
        super().__init__(reason)
        self.rows, self.reason = rows, reason


def check_on_error(on_error: object) -> None:
    """Refuse what is no `OnError`. Called by the functions that make outputs, on the driver.

    Raises:
        InvalidOptionError: it is something else, or a function of other arguments.
        AsyncCallbackError: it is a coroutine function.
    """
    if callable(on_error):
        Callback("on_error", on_error, "error")
    elif on_error not in ("raise", "skip"):
        raise InvalidOptionError(
            "on_error is 'raise', 'skip' or a function of the error", got=repr(on_error)
        )


def said_of(on_error: object) -> str | None:
    """Return what a definition says of `on_error`: of a function, that there is one."""
    return "function" if callable(on_error) else None if on_error is None else str(on_error)


def refuse(bad: Mask | pa.BooleanArray, reason: str, owners: Rows | None = None) -> None:
    """Stop if any element is bad; `owners` are the rows that elements of a nested value are of.

    Null is not bad.

    Raises:
        MalformedRowsError: some are; it holds their rows.
    """
    if not isinstance(bad, np.ndarray):
        bad = pc.fill_null(bad, False).to_numpy(zero_copy_only=False)
    if bad.any():
        elements = np.flatnonzero(bad)
        raise MalformedRowsError(elements if owners is None else owners[elements], reason)


def refuse_unless_utf8(column: pa.Array, where: str, owners: Rows) -> None:
    """Stop if the bytes of some texts are not UTF-8; of a string or binary column.

    Raises:
        MalformedRowsError: some are not; it holds their rows.
    """
    try:
        column.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        texts = column.cast(pa.binary()).to_pylist()
        bad = np.array([text is not None and not _is_utf8(text) for text in texts])
        refuse(bad, f"{where} is not UTF-8", owners)
        raise


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
