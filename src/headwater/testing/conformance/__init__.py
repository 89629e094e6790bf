"""The promises of a target, as tests for targets of your own; docs/custom-targets.md is the guide.

`TargetConformance` tests a class that implements `headwater.targets.Target`,
`OwnedTargetConformance` what is made with `headwater.create_target`. These five names are stable.
"""

from headwater.testing.conformance.crash import Sample
from headwater.testing.conformance.owned import OwnedTargetConformance
from headwater.testing.conformance.suite import Crash, TargetConformance, apply_changes

__all__ = ["Crash", "OwnedTargetConformance", "Sample", "TargetConformance", "apply_changes"]
