"""What a node offers, read by the server: looked at before it is computed, so that nobody can ask it for much work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tacit import _codec, _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.federation.errors import FederationError
from tacit.mechanism import Adjacency, Mechanism, Plan

__all__ = ["Offer", "agreed", "read_certificate", "read_terms", "total_std", "weakest", "weakest_mark"]

MAX_ROWS = 1 << 53
MAX_MARKS = 10
MAX_VALUES = 10_000_000


@dataclass(frozen=True, eq=False)
class Offer:
    """What a node promises, and how much noise it adds.

    Attributes:
        statement: what it says about itself.
        certificate: certified again.
    """

    statement: dict[str, Any]
    certificate: Certificate

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The parts of its plan."""
        return tuple(part for part in self.certificate.plan.parts if isinstance(part, Mechanism))

    @property
    def weight(self) -> float:
        """Decides who is weakest, at every δ: plans of one run differ by a factor of their ratios alone."""
        return self.mechanisms[0].ratio.max


def read_terms(fields: dict[str, Any], task: str) -> dict[str, Any]:
    """What every node states, checked.

    Args:
        fields: from anybody.
        task: that the node must take part in.

    Returns:
        The terms.

    Raises:
        InvalidInput: if one is missing or out of range.
    """
    if fields.get("task") != task:
        raise InvalidInput("it takes part in another task")
    units, columns = (_validate.positive_int(**{name: fields.get(name)}) for name in ("units", "columns"))
    if max(units, columns) > MAX_ROWS:
        raise InvalidInput("out of range")
    unit = _validate.one_of(("record", "person", "item"), unit=fields.get("unit"))
    return {
        "task": task,
        "units": units,
        "columns": columns,
        "unit": unit,
        "adjacency": Adjacency.parse(fields.get("adjacency")).value,
        "epsilon": _validate.positive(epsilon=fields.get("epsilon")),
        "delta": _validate.delta(fields.get("delta")),
    }


def agreed(statements: dict[int, dict[str, Any]], names: Sequence[str]) -> None:
    """Refuse nodes that do not belong together, before any of them has begun."""
    for name in names:
        found = [statement[name] for statement in statements.values()]
        if any(one != found[0] for one in found):
            words = ", ".join(map(str, found))
            raise FederationError(f"nodes differ in {name} ({words[:200]}): agree on one; nothing was spent")


def read_certificate(text: object, check: Callable[[Plan], bool]) -> Certificate:
    """A certificate from anybody.

    Args:
        text: of the certificate.
        check: whether its plan is one of the proposed run.

    Returns:
        The certificate, certified again.

    Raises:
        InvalidInput: if it is none of the run that was proposed.
    """
    try:
        data = _codec.parse(text) if isinstance(text, str) else None
        plan = _codec.decode(data["plan"], limit=MAX_VALUES) if isinstance(data, dict) else None
    except (KeyError, InvalidInput):
        plan = None
    if not isinstance(plan, Plan) or not check(plan):
        raise InvalidInput("its certificate is not one of the proposed run")
    assert isinstance(text, str)
    certificate = Certificate.from_json(text)
    if len(certificate.marks) > MAX_MARKS:
        raise InvalidInput("its certificate has too many marks")
    return certificate


def weakest_mark(nodes: int, unit: str) -> str:
    """What the one certificate of a federation is."""
    return (
        f"the weakest of the certificates that {nodes} nodes stated for themselves: it holds for every {unit} of the "
        f"federation by what is at one node; that of a {unit}'s own node is in certificates_"
    )


def weakest(offers: Sequence[Offer]) -> tuple[Offer, Certificate]:
    """The offer of the weakest promise, and its certificate with the marks of all: it holds for everybody."""
    found = max(offers, key=lambda offer: offer.weight)
    certificate = found.certificate
    for mark in dict.fromkeys(mark for offer in offers for mark in offer.certificate.marks):
        if mark not in certificate.marks:
            certificate = certificate.marked(mark)  # a seed at any node concerns everybody who reads this
    return found, certificate.marked(weakest_mark(len(offers), certificate.unit))


def total_std(stds: Sequence[float]) -> float:
    """Of the sum of independent noise."""
    return math.hypot(*stds)
