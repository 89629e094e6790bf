"""An S3 server for worlds: all of it in memory, and a tenth of a millisecond for a request.

    python tests/simulation/s3.py PORT

moto, on which the suites of lakes run, takes a hundred times as long, which was nine tenths of a
world. It has a process of its own, with the standard library alone: delta-rs waits for answers
without letting other threads of Python run. Credentials are not looked at. Writes with
`If-None-Match: *` and `If-Match` are refused as S3 refuses them.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import md5
from itertools import count
from re import findall
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape, unescape

_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_MOST_KEYS = 1000


@dataclass(frozen=True, slots=True)
class _Object:
    content: bytes
    written: datetime
    tag: str

    @classmethod
    def of(cls, content: bytes) -> _Object:
        return cls(
            content, datetime.now(UTC), f'"{md5(content, usedforsecurity=False).hexdigest()}"'
        )


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Answer:
    status: str = "200 OK"
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = None  # of the body that a HEAD leaves out


_NO_CONTENT = _Answer("204 No Content")


def _xml(name: str, inner: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{name} {_NAMESPACE}>{inner}</{name}>'.encode()


def _refused(status: str, code: str) -> _Answer:
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return _Answer(status, body.encode(), (("Content-Type", "application/xml"),))


@dataclass(slots=True)
class Store:
    """The buckets, their objects, and the uploads in parts that are under way."""

    buckets: dict[str, dict[str, _Object]] = field(default_factory=dict)
    _uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def answer(self, request: _Request) -> _Answer:
        """Answer one request."""
        if not request.key:
            return self._of_bucket(request)
        held = self.buckets.get(request.bucket)
        if held is None:
            return _refused("404 Not Found", "NoSuchBucket")
        match request.method:
            case "PUT":
                return self._put(request, held)
            case "POST":
                return self._upload(request, held)
            case "DELETE":
                self._uploads.pop(request.query.get("uploadId", ""), None)
                if "uploadId" not in request.query:
                    held.pop(request.key, None)
                return _NO_CONTENT
            case _:
                return _get(request, held)

    def _of_bucket(self, request: _Request) -> _Answer:
        held = self.buckets.get(request.bucket)
        if request.method == "PUT":
            self.buckets.setdefault(request.bucket, {})
            return _Answer()
        if held is None:
            return _refused("404 Not Found", "NoSuchBucket")
        match request.method:
            case "GET":
                return _Answer(body=_listed(request, held))
            case "POST":
                keys = [unescape(one) for one in findall("<Key>(.*?)</Key>", request.body.decode())]
                for key in keys:
                    held.pop(key, None)
                gone = "".join(f"<Deleted><Key>{escape(one)}</Key></Deleted>" for one in keys)
                return _Answer(body=_xml("DeleteResult", gone))
            case "DELETE":
                del self.buckets[request.bucket]
                return _NO_CONTENT
            case _:
                return _Answer()

    def _put(self, request: _Request, held: dict[str, _Object]) -> _Answer:
        upload = request.query.get("uploadId")
        if upload is not None:
            made = _Object.of(request.body)
            self._uploads[upload][int(request.query["partNumber"])] = request.body
            return _Answer(headers=(("ETag", made.tag),))
        source = request.headers.get("x-amz-copy-source")
        if source is not None:
            bucket, _, key = unquote(source).lstrip("/").partition("/")
            found = self.buckets.get(bucket, {}).get(key)
            if found is None:
                return _refused("404 Not Found", "NoSuchKey")
            return self._keep(request, held, found.content, copied=True)
        return self._keep(request, held, request.body)

    def _keep(
        self, request: _Request, held: dict[str, _Object], content: bytes, *, copied: bool = False
    ) -> _Answer:
        """Keep an object, if what the request says of the one before is true."""
        before, wanted = held.get(request.key), request.headers.get("if-match")
        if request.headers.get("if-none-match") == "*" and before is not None:
            return _refused("412 Precondition Failed", "PreconditionFailed")
        if wanted is not None and (before is None or before.tag.strip('"') != wanted.strip('"')):
            return _refused("412 Precondition Failed", "PreconditionFailed")
        held[request.key] = made = _Object.of(content)
        said = f"<ETag>{escape(made.tag)}</ETag>"
        if copied:
            said += f"<LastModified>{_iso(made)}</LastModified>"
            return _Answer(body=_xml("CopyObjectResult", said))
        return _Answer(headers=(("ETag", made.tag),))

    def _upload(self, request: _Request, held: dict[str, _Object]) -> _Answer:
        """Begin or end an upload in parts."""
        names = f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key>"
        if "uploads" in request.query:
            upload = f"upload-{next(self._numbers)}"
            self._uploads[upload] = {}
            said = f"{names}<UploadId>{upload}</UploadId>"
            return _Answer(body=_xml("InitiateMultipartUploadResult", said))
        parts = self._uploads.pop(request.query["uploadId"], None)
        if parts is None:
            return _refused("404 Not Found", "NoSuchUpload")
        kept = self._keep(request, held, b"".join(parts[one] for one in sorted(parts)))
        if kept.status != "200 OK":
            return kept
        said = f"{names}<ETag>{escape(held[request.key].tag)}</ETag>"
        return _Answer(body=_xml("CompleteMultipartUploadResult", said))


def _iso(found: _Object) -> str:
    return found.written.strftime("%Y-%m-%dT%H:%M:%S.") + f"{found.written.microsecond // 1000:03}Z"


def _get(request: _Request, held: dict[str, _Object]) -> _Answer:
    found = held.get(request.key)
    if found is None:
        return _refused("404 Not Found", "NoSuchKey")
    content, status = found.content, "200 OK"
    headers = [
        ("ETag", found.tag),
        ("Last-Modified", format_datetime(found.written, usegmt=True)),
        ("Accept-Ranges", "bytes"),
        ("Content-Type", "application/octet-stream"),
    ]
    wanted = request.headers.get("range", "")
    if wanted.startswith("bytes="):
        first, _, last = wanted[6:].partition("-")
        size = len(content)
        start = int(first) if first else max(0, size - int(last))
        stop = size if not (first and last) else min(size, int(last) + 1)
        if start >= size:
            return _refused("416 Range Not Satisfiable", "InvalidRange")
        content, status = content[start:stop], "206 Partial Content"
        headers.append(("Content-Range", f"bytes {start}-{stop - 1}/{size}"))
    if request.method == "HEAD":
        return _Answer(status, headers=tuple(headers), length=len(content))
    return _Answer(status, content, tuple(headers))


def _listed(request: _Request, held: dict[str, _Object]) -> bytes:
    """Return one page of the keys with a prefix, and what they share up to a delimiter."""
    asked = request.query
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    behind = max(asked.get("start-after", ""), asked.get("continuation-token", ""))
    most = min(_MOST_KEYS, int(asked.get("max-keys") or _MOST_KEYS))
    encode = quote if asked.get("encoding-type") == "url" else escape
    keys: list[str] = []
    groups: list[str] = []
    last, is_cut = "", False
    for key in sorted(one for one in held if one.startswith(prefix) and one > behind):
        head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        group = prefix + head + delimiter
        if found and (group in groups or group == behind or behind.startswith(group)):
            last = key
            continue
        if len(keys) + len(groups) >= most:
            is_cut = True
            break
        (groups if found else keys).append(group if found else key)
        last = key
    contents = "".join(
        f"<Contents><Key>{encode(key)}</Key><LastModified>{_iso(held[key])}</LastModified>"
        f"<ETag>{escape(held[key].tag)}</ETag><Size>{len(held[key].content)}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for key in keys
    )
    shared = "".join(
        f"<CommonPrefixes><Prefix>{encode(one)}</Prefix></CommonPrefixes>" for one in groups
    )
    more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if is_cut else ""
    return _xml(
        "ListBucketResult",
        f"<Name>{request.bucket}</Name><Prefix>{encode(prefix)}</Prefix>"
        f"<KeyCount>{len(keys) + len(groups)}</KeyCount><MaxKeys>{most}</MaxKeys>"
        f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>{more}{contents}{shared}",
    )


def _unchunked(body: bytes | bytearray, at: int = 0) -> tuple[bytes, int] | None:
    """Take the sizes and signatures of pieces out of a body that is sent in pieces.

    Returns it, and where it ends with its trailers; None if more is to come.
    """
    found: list[bytes | bytearray] = []
    while (end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:end].partition(b";")[0], 16)
        at = end + 2
        if not size:
            stop = body.find(b"\r\n\r\n", end)
            return None if stop < 0 else (b"".join(found), stop + 4)
        found.append(body[at : at + size])
        at += size + 2
    return None


class Connection(asyncio.Protocol):
    """One connection, which is kept; requests come one after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held = bytearray()
        self._was_told_to_go_on = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while self._answer_next():
            pass

    def _answer_next(self) -> bool:
        """Answer a request if it has come whole; tell whether it has."""
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = self._held[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in
                   (one.partition(":") for one in lines)}  # fmt: skip
        body = self._body(end + 4, headers)
        if body is None:
            if not self._was_told_to_go_on and headers.get("expect", "").lower() == "100-continue":
                self._was_told_to_go_on = True
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return False
        self._was_told_to_go_on = False
        method, target, _ = first.split(" ")
        path, _, text = target.partition("?")
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        query = dict(parse_qsl(text, keep_blank_values=True))
        self._send(method, self._store.answer(_Request(method, bucket, key, query, headers, body)))
        return True

    def _body(self, start: int, headers: dict[str, str]) -> bytes | None:
        """Take a whole body out of what has come; None if more is to come."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            came = _unchunked(self._held, start)
        else:
            stop = start + int(headers.get("content-length", "0"))
            came = None if len(self._held) < stop else (bytes(self._held[start:stop]), stop)
        if came is None:
            return None
        body, stop = came
        del self._held[:stop]
        if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            pieces = _unchunked(body)
            assert pieces is not None
            return pieces[0]
        return body

    def _send(self, method: str, answer: _Answer) -> None:
        length = len(answer.body) if answer.length is None else answer.length
        lines = [f"HTTP/1.1 {answer.status}", f"Content-Length: {length}", "Server: worlds"]
        lines += [f"{name}: {value}" for name, value in answer.headers]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self._transport.write(head if method == "HEAD" else head + answer.body)


async def serve(port: int) -> None:
    """Serve until the process ends."""
    store = Store()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(store), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
