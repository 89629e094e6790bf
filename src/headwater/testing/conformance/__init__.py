"""The promises of a target, as tests of your own: see `suite`."""

from headwater.testing.conformance.suite import Crash, TargetConformance, apply_changes

__all__ = ["Crash", "TargetConformance", "apply_changes"]
