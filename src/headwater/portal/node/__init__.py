"""An EVM node as a source: JSON-RPC behind the portal client's transport."""

from headwater.portal.node.transport import NodeTransport

__all__ = ["NodeTransport"]
