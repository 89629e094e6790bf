"""TLS for the relay: a certificate of this process alone, which tasks are given with their work.

No authority vouches for it and no file keeps it: the driver makes key and certificate when it first
needs them, executors trust this one certificate and no other, and both are gone with the process.
Python's `ssl` cannot make certificates; the few fields of one are written here with pycryptodome,
which is there for keccak.
"""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from tempfile import NamedTemporaryFile

from Crypto.Hash import SHA256
from Crypto.PublicKey import ECC
from Crypto.Signature import DSS
from Crypto.Util.asn1 import (
    DerBitString,
    DerInteger,
    DerObjectId,
    DerOctetString,
    DerSequence,
    DerSetOf,
)

_ECDSA_SHA256 = "1.2.840.10045.4.3.2"
_COMMON_NAME = "2.5.4.3"
_UTF8_STRING, _UTC_TIME, _VERSION = 0x0C, 0x17, 0xA0
_VALID = (b"200101000000Z", b"491231235959Z")  # clocks of machines differ; the process ends it


@dataclass(frozen=True, slots=True)
class Identity:
    """What the driver proves with that it is the driver."""

    certificate: bytes  # DER; public
    context: ssl.SSLContext


@cache
def driver_identity() -> Identity:
    """Return key and certificate of this process. Runs on the driver."""
    key = ECC.generate(curve="P-256")
    certificate = _self_signed(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with NamedTemporaryFile(mode="w", suffix=".pem") as file:  # for the user alone, and gone below
        file.write(ssl.DER_cert_to_PEM_cert(certificate) + key.export_key(format="PEM") + "\n")
        file.flush()
        context.load_cert_chain(file.name)
    return Identity(certificate, context)


def trusting(certificate: bytes) -> ssl.SSLContext:
    """Return the settings of a connection to the holder of this certificate, and to no other.

    Runs on executors. The name of the driver does not count: the certificate is the name.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine as only this machine can reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _self_signed(key: ECC.EccKey) -> bytes:
    algorithm = DerSequence([DerObjectId(_ECDSA_SHA256)])
    part = DerSequence([DerObjectId(_COMMON_NAME), _tagged(_UTF8_STRING, b"headwater")])
    name = DerSequence([DerSetOf([part.encode()])])
    content = DerSequence(
        [
            _tagged(_VERSION, DerInteger(2).encode()),  # X.509 v3
            DerInteger(secrets.randbits(120)),
            algorithm,
            name,
            DerSequence([_tagged(_UTC_TIME, moment) for moment in _VALID]),
            name,
            key.public_key().export_key(format="DER"),
        ]
    ).encode()
    signature = DSS.new(key, "fips-186-3", encoding="der").sign(SHA256.new(content))
    return DerSequence([content, algorithm, DerBitString(signature)]).encode()


def _tagged(tag: int, payload: bytes) -> bytes:
    return bytes([tag]) + DerOctetString(payload).encode()[1:]
