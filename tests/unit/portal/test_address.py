import base64
import pickle

import pytest

from headwater.address import Secret
from headwater.errors import PortalUrlError
from headwater.portal import portal_address


@pytest.mark.parametrize(
    ("url", "shown", "target"),
    [
        ("https://portal.example/datasets/eth", "https://portal.example/datasets/eth",
         "/datasets/eth/stream"),
        (" https://portal.example/datasets/eth// ", "https://portal.example/datasets/eth",
         "/datasets/eth/stream"),
        ("HTTP://Portal.Example:8080", "http://portal.example:8080", "/stream"),
        ("http://[::1]:8000/d", "http://[::1]:8000/d", "/d/stream"),
        ("https://h:443/d/", "https://h/d", "/d/stream"),
    ],
)  # fmt: skip
def test_an_address_is_understood_with_or_without_its_last_slash(
    url: str, shown: str, target: str
) -> None:
    address = portal_address(url)
    assert str(address) == shown
    assert address.target("stream") == target


def test_credentials_become_a_header_and_are_shown_nowhere() -> None:
    address = portal_address("https://us%40er:p%2Fss@h/d?key=secret")
    assert address.authorization is not None
    assert base64.b64decode(address.authorization.reveal().removeprefix("Basic ")) == b"us@er:p/ss"
    for text in (str(address), repr(address), f"{address}"):
        for secret in ("us@er", "us%40er", "p/ss", "p%2Fss", "secret", "Basic"):
            assert secret not in text


def test_a_user_without_a_password_is_a_credential_too() -> None:
    address = portal_address("https://token@h/d")
    assert address.authorization == Secret("Basic " + base64.b64encode(b"token:").decode())


def test_the_query_string_is_sent_with_every_route_and_after_its_own() -> None:
    address = portal_address("https://h/d?key=secret")
    assert address.target("stream") == "/d/stream?key=secret"
    assert address.target("metadata?expand[]=metadata") == (
        "/d/metadata?expand[]=metadata&key=secret"
    )
    assert portal_address("https://h/d").target("metadata?a=b") == "/d/metadata?a=b"


def test_an_address_travels_with_its_secrets() -> None:
    address = portal_address("https://u:p@h/d?key=secret")
    assert pickle.loads(pickle.dumps(address)) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "portal.example/secret",
        "ftp://u:secret@h/d",
        "https://",
        "https:///secret",
        "https://u:secret@/d",
        "https://u:secret@h:port/d",
        "https://u:secret@h:99999/d",
        "https://u:sec ret@h/d",
        "https://u:secret@h/d\nx",
        "https://u:secret@h/\x00d",
        "https://u:12#secret@h/d",
        "https://u:12/secret@h/d",
        "https://u:12?secret@h/d",
        "https://u:secret@[::1/d",
        "https://u:secret\u2100@h/d",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(PortalUrlError) as caught:
        portal_address(url)
    assert "secret" not in str(caught.value)
    assert str(caught.value).startswith("[E0004]")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_address_must_be_a_text() -> None:
    with pytest.raises(PortalUrlError, match="must be a text"):
        portal_address(b"https://h")  # type: ignore[arg-type]
