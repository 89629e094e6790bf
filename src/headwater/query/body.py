"""Requests as bytes: compact JSON, its hash, and the size that a portal still accepts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from headwater.errors import QueryLimitError

MAX_BODY_BYTES = 256 * 1024
MAX_FILTERS = 100


def encode(document: Mapping[str, object]) -> bytes:
    """Write compact JSON, keys in the order of the document."""
    return json.dumps(document, separators=(",", ":")).encode()


def hash_document(document: Mapping[str, object]) -> str:
    """Return the SHA-256 of the compact JSON in hex; it depends on the order of the keys."""
    return hashlib.sha256(encode(document)).hexdigest()


def check_limits(body: bytes, filters: int) -> None:
    """Refuse what a portal would refuse, before it is sent.

    Raises:
        QueryLimitError: more than 256 KiB, or more than 100 filters over all families.
    """
    if filters > MAX_FILTERS:
        raise QueryLimitError("too many filters in one query", filters=filters, limit=MAX_FILTERS)
    if len(body) > MAX_BODY_BYTES:
        raise QueryLimitError("the query is too large", bytes=len(body), limit=MAX_BODY_BYTES)
