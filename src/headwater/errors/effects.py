"""E7: Side effects: messages that cannot be made, delivered or found."""

from headwater.errors.base import EffectError


class MessageRowsError(
    EffectError,
    code="E7001",
    fix="keep block_number and block_hash in the rows of an output that on_finalized delivers, as "
    "they were decoded",
):
    """Rows that are to be delivered do not say which block of their batch they belong to."""


class DeliveryRefusedError(
    EffectError,
    code="E7002",
    fix="mend the receiver or the message, then replay the dead letter: headwater outbox replay",
):
    """A receiver will never take these messages. Raise it to have them become dead letters."""


class DeliveryError(
    EffectError,
    code="E7003",
    fix="nothing, if the receiver comes back: delivery is tried again, with growing pauses",
    retryable=True,
):
    """Messages could not be delivered now. `retry_after_s` is the pause that was asked for."""

    @property
    def retry_after_s(self) -> float | None:
        """How long the receiver wants to be left alone."""
        asked = self.facts.get("retry_after_s")
        return float(asked) if isinstance(asked, int | float) else None


class DeadLetterError(
    EffectError,
    code="E7004",
    fix="list what there is with: headwater outbox show",
):
    """There is no such dead letter."""
