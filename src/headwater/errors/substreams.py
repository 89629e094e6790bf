"""E31: Substreams: endpoints, sessions, what modules report. Packages are from E3120 on."""

from headwater.errors.base import PortalError


class SubstreamsRefusedError(
    PortalError,
    code="E3101",
    fix="read the endpoint's own words in the message: INVALID_ARGUMENT is a request, a module or "
    "a cursor that it refuses, UNAUTHENTICATED and PERMISSION_DENIED are credentials "
    "(SUBSTREAMS_API_KEY or SUBSTREAMS_API_TOKEN), FAILED_PRECONDITION a limit; what is committed "
    "stays as it is",
):
    """The endpoint ended the session with a status that a new session cannot mend."""


class SubstreamsUnreachableError(
    PortalError,
    code="E3102",
    fix="check the endpoint and the network, or raise max_retries; a restart goes on from the "
    "stored cursor",
    retryable=True,
):
    """All permitted sessions in a row ended before a block arrived."""


class QuotaExceededError(
    PortalError,
    code="E3103",
    fix="raise the plan at the provider, or wait until the quota is renewed; a restart goes on "
    "from the stored cursor",
):
    """The provider's quota is used up: asking again would be refused again."""


class ModuleFailedError(
    PortalError,
    code="E3104",
    fix="read the reason and the logs of the module in the message; a module that fails on a "
    "block fails on it each time, so correct the package and start again",
):
    """A module of the package failed at the endpoint."""


class SubstreamsMessageError(
    PortalError,
    code="E3105",
    fix="report it to the endpoint's operator; nothing after the last good block was taken",
):
    """A message of the endpoint cannot be read, or contradicts those before it."""


class UndoDepthError(
    PortalError,
    code="E3106",
    fix="nothing was changed; check that the endpoint serves the chain that the tables were "
    "filled from, raise rollback_cap for deep reorganizations, or rewind to a block you trust",
):
    """The endpoint has another block than a stored one that cannot be undone."""


class PlaintextEndpointError(
    PortalError,
    code="E3110",
    fix="write http://host:port, or give --plaintext to headwater sink run; no key is sent over "
    "plaintext",
):
    """TLS was asked for, and the endpoint answered without."""


class SubstreamsEndpointError(
    PortalError,
    code="E3107",
    fix="give host:port, http://host:port (plaintext) or https://host:port; a network's name needs "
    "SUBSTREAMS_ENDPOINTS_CONFIG_<NETWORK> in the environment",
):
    """The endpoint's address cannot be understood; nothing was dialled."""
