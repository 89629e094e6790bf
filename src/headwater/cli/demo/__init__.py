"""`headwater demo`: the whole product in one command."""

from headwater.cli.demo.command import demo

__all__ = ["demo"]
