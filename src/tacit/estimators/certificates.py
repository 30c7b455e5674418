"""The certificate of a whole pipeline: what its private steps cost together, if every other step is public."""

from __future__ import annotations

from typing import Any

from tacit.accounting import Certificate
from tacit.errors import NotCovered
from tacit.maps.finite import check_finite
from tacit.maps.steps import parts

__all__ = ["certificate_of"]


def certificate_of(model: Any) -> Certificate:
    """What a fitted pipeline or estimator promises: the sum of the certificates of its private steps.

    Steps with a certificate add up (Gaussian ones exactly); steps that learn nothing from records are free; any other
    step makes the whole pipeline uncertified, because its parameters tell about the data. So does a public step that
    can fail on one finite record: an error is an output.

    Formal guarantee: everything learned by the *last* fit of ``model`` satisfies the returned certificate.

    Assumptions: the steps were fitted once, on the same records; earlier fits (a grid search, a repeated call) are
    known to the ledger only. A FunctionTransformer must treat each record by itself, have a finite value for each, and
    hold no statistics of the data: the certificate carries marks that say so. A certificate is about what was learned;
    transformed records are still private.

    Args:
        model: a fitted Pipeline, ColumnTransformer, FeatureUnion, or one estimator; nested as you like.

    Returns:
        The certificate.

    Raises:
        NotCovered: if a step learned from the data without a certificate, can fail on one finite record, or nothing
            was private at all.
    """
    name = type(model).__name__
    found = [*parts(model, name), *check_finite(model, name)]
    certificates = [part for part in found if isinstance(part, Certificate)]
    if not certificates:
        raise NotCovered(
            "nothing in this model is private, so there is no ε to state: every step is public or learned nothing",
            axis="pipeline",
        )
    total = certificates[0]
    for certificate in certificates[1:]:
        total = total + certificate
    for mark in found:
        total = total.marked(mark) if isinstance(mark, str) else total
    return total
