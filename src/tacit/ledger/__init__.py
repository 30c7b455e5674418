"""One privacy budget for many runs: durable, exact under concurrency, and never silently reset.

``Ledger`` is the only entry point; the modules below it, each knowing one thing:
``certificate`` (what a ledger reads off a certificate), ``filters`` (which charges fit: the mathematics),
``chain`` (hashed rows), ``store`` (SQLite), ``anchor`` (witnesses against rolled-back copies).
"""

from tacit.ledger.certificate import Certificate
from tacit.ledger.chain import Entry
from tacit.ledger.ledger import Ledger
from tacit.ledger.summary import Remaining, Spent

__all__ = ["Certificate", "Entry", "Ledger", "Remaining", "Spent"]
