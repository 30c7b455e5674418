"""Everything Tacit raises on purpose: each message says what, why, and what to do."""

from __future__ import annotations

__all__ = [
    "BudgetExhausted",
    "ClusterError",
    "InvalidInput",
    "LedgerCorrupt",
    "LedgerError",
    "MechanismMismatch",
    "NotCovered",
    "PrivacyUtilityWarning",
    "TacitError",
]


class TacitError(Exception):
    """The root of all errors that Tacit raises on purpose."""


class PrivacyUtilityWarning(UserWarning):
    """A fit whose result should not be used as it is, as public numbers tell: records, columns, budget."""


class InvalidInput(TacitError, ValueError):
    """A public argument is out of its range or of the wrong type."""


class NotCovered(TacitError, ValueError):
    """No theorem covers the mechanism, so there is no ε to print.

    Attributes:
        axis: the part of the mechanism that stands in the way ("sampling", "view.output", ...).
    """

    def __init__(self, message: str, *, axis: str) -> None:
        super().__init__(message)
        self.axis = axis

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_not_covered, (str(self), self.axis))


def _rebuild_not_covered(message: str, axis: str) -> NotCovered:
    return NotCovered(message, axis=axis)


class MechanismMismatch(TacitError, ValueError):
    """What is about to run is not what was certified."""


class BudgetExhausted(TacitError, RuntimeError):
    """A release beyond the certified number, or a reservation beyond the ledger's limit."""


class LedgerError(TacitError, RuntimeError):
    """A ledger cannot serve the request (wrong relation, wrong unit, unreachable file)."""


class LedgerCorrupt(LedgerError):
    """A ledger file is damaged, edited or rolled back; no budget is granted from it."""


class ClusterError(TacitError, RuntimeError):
    """A cluster that holds the records does not answer, or answers for other records than before."""
