"""What goes wrong in a federation."""

from __future__ import annotations

from tacit.errors import BudgetExhausted, TacitError

__all__ = ["FederationError", "LinkLost", "Refused", "Uncounted"]


class FederationError(TacitError, RuntimeError):
    """A federation cannot go on: a party refused, stopped, or did not keep to the protocol."""


class LinkLost(FederationError, ConnectionError):
    """The other side cannot be reached, or was silent for too long."""


class Refused(FederationError):
    """A node's refusal that may be told to the server: its words hold public things only."""


class Uncounted(BudgetExhausted):
    """A second session of a node without a ledger; its words hold public things only, too."""
