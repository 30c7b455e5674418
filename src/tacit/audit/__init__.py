"""Audits: statistics that attack Tacit's own claims, and say with what confidence they won.

Four attacks, each a lower bound on the privacy loss that holds with a stated confidence:

=================  ================================================  =========================
``audit_gdp``      many runs on two neighbours D and D2              μ of Gaussian DP
``audit_epsilon``  many runs on two neighbours D and D2              ε at one δ
``audit_one_run``  one run with many randomly included canaries      ε at one δ
``audit_bits``     many releases on two neighbours D and D2          ε, and outputs that are impossible on D2
=================  ================================================  =========================

Every result has ``verdict(certificate)``: does what was observed contradict what was certified? An audit
can refute a certificate; it can never prove one.
"""

from __future__ import annotations

from tacit.audit.bits import BitAudit, BitTest, audit_bits
from tacit.audit.epsilon import EpsilonAudit, audit_epsilon
from tacit.audit.gdp import GdpAudit, audit_gdp
from tacit.audit.one_run import OneRunAudit, audit_one_run
from tacit.audit.reach import multiples, reaches
from tacit.audit.verdict import Certificate, Verdict

__all__ = [
    "BitAudit",
    "BitTest",
    "Certificate",
    "EpsilonAudit",
    "GdpAudit",
    "OneRunAudit",
    "Verdict",
    "audit_bits",
    "audit_epsilon",
    "audit_gdp",
    "audit_one_run",
    "multiples",
    "reaches",
]
