"""Places for lake targets in tests: buckets of an S3 server in this process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

ACCESS_KEY, SECRET_KEY = "an-access-key-id", "a-secret-of-tests-0123456789"
_numbers = count()


@dataclass(frozen=True)
class Bucket:
    """A place in an empty bucket of the S3 server, and how it is reached."""

    uri: str
    options: dict[str, str]


@cache
def s3_server() -> str:
    """Start moto's server once in this process; return its address."""
    from moto.server import ThreadedMotoServer

    server: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def bucket() -> Bucket:
    """Make a new bucket."""
    options = {
        "s3.endpoint": s3_server(),
        "s3.region": "us-east-1",
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
    }
    name = f"bucket-{next(_numbers)}"
    maker = fs.S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        region="us-east-1",
        scheme="http",
        endpoint_override=urlsplit(options["s3.endpoint"]).netloc,
        allow_bucket_creation=True,
    )
    maker.create_dir(name)
    return Bucket(f"s3://{name}/lake", options)
