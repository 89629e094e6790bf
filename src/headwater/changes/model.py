"""The one form of changes: what each column of a table of changes holds, before and after folding.

Values are text, because text is exact for every type there is: a 78-digit integer, a decimal, an
address. Null is null. What a text means is said by the table's declaration.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Operation = Literal["insert", "update", "upsert", "delete"]
FieldOperationName = Literal["set", "add", "sub", "min", "max", "set_if_null"]

OPERATIONS = ("insert", "update", "upsert", "delete")
INSERT, UPDATE, UPSERT, DELETE, REPLACE, TRANSIENT = range(6)
FOLDED_OPERATIONS = (*OPERATIONS, "replace", "transient")

FIELD_OPERATIONS = ("set", "add", "sub", "min", "max", "set_if_null")
SET, ADD, SUB, MIN, MAX, SET_IF_NULL = range(6)
NUMERIC = frozenset({"add", "sub", "min", "max"})

ANONYMOUS = ""
"""The name of a key column that only the table's declaration knows."""

KEY_TYPE = pa.list_(
    pa.struct([pa.field("name", pa.string(), False), pa.field("value", pa.string(), False)])
)
FIELDS_TYPE = pa.list_(
    pa.struct(
        [
            pa.field("name", pa.string(), False),
            pa.field("value", pa.string()),
            pa.field("operation", pa.string(), False),
        ]
    )
)
FRESH_TYPE = pa.list_(
    pa.struct([pa.field("name", pa.string(), False), pa.field("value", pa.string())])
)

CHANGES_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), False),
        pa.field("pk", KEY_TYPE, False),
        pa.field("operation", pa.string(), False),
        pa.field("fields", FIELDS_TYPE),
        pa.field("ordinal", pa.int64(), False),
        pa.field("block_number", pa.int64(), False),
    ]
)
"""One row per change. Within a block, changes happen in the order of their ordinals; those with
the same ordinal in the order of the rows."""

FOLDED_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), False),
        pa.field("pk", KEY_TYPE, False),
        pa.field("operation", pa.string(), False),
        pa.field("fields", FIELDS_TYPE),
        pa.field("fresh", FRESH_TYPE),
        pa.field("ordinal", pa.int64(), False),
        pa.field("block_number", pa.int64(), False),
    ]
)
"""One row per table, key and hot block, in the order in which the keys were first touched.

`fields` says what happens to a row that is there (update, upsert), `fresh` what a row holds that
was not there (insert, upsert) or takes the place of another (replace). `transient`: the row came
and went; there was none before and there is none after."""

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
