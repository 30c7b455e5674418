"""Charged looks at a table: counts in public bins, and what bounds cut off."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tacit import DPLogisticRegression, Ledger, open_records
from tacit.audit import audit_gdp
from tacit.errors import InvalidInput
from tacit.estimators import clipping_report, private_histogram

MUCH = {"epsilon": 1e4, "delta": 1e-3, "random_state": 0}


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(0).normal(size=(3000, 3)) * [1.0, 10.0, 0.0]


def test_counts_are_those_of_numpy(table):
    edges = [[-9, -1, 0, 2, 9], [-99, 0, 5, 99], [-1.0, 0.5, 1.0]]
    found, certificate = private_histogram(table, edges, **MUCH)
    for column, own, counts in zip(table.T, edges, found, strict=True):
        np.testing.assert_allclose(counts, np.histogram(column, own)[0], atol=1)
    assert certificate.epsilon(1e-3) == pytest.approx(1e4)
    np.testing.assert_array_equal(private_histogram(table[:, 0], edges[0], **MUCH)[0].shape, (4,))


def test_the_report_counts_values_outside_of_the_bounds(table):
    X = np.vstack([table, [[-1.0, 5.0, 0.0], [1.0, -5.0, 0.0]]])  # on the bounds: inside
    report = clipping_report(X, ([-1, -5, 0], [1, 5, 0]), **MUCH)
    np.testing.assert_allclose(report.below, (X < [-1, -5, 0]).mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(report.above, (X > [1, 5, 0]).mean(axis=0), atol=1e-3)
    assert str(report).count("\n") == 3


@pytest.mark.parametrize("form", [lambda X: pd.DataFrame(X, columns=["a", "b", "c"]), open_records])
def test_frames_and_records_by_name(form, table):
    report = clipping_report(form(table), (-1, 1), **MUCH)
    assert len(report.names) == 3
    np.testing.assert_allclose(report.above, (table > 1).mean(axis=0), atol=1e-3)


def test_everybody_counts_once_where_ids_are_given():
    X, ids = np.array([[5.0]] * 99 + [[0.0]]), np.array([0] * 99 + [1])
    assert clipping_report(X, (-1, 1), groups=ids, **MUCH).above[0] == pytest.approx(0.5, abs=0.01)


def test_a_models_report_is_charged_to_its_ledger(table, tmp_path):
    budget = Ledger(tmp_path / "study.ledger", epsilon=3.0, delta=1e-5)
    model = DPLogisticRegression(epsilon=1.0, delta=1e-6, feature_bounds=(-1, 1), classes=[0, 1], ledger=budget)
    report = model.clipping_report(table, epsilon=0.5)
    assert report.certificate.epsilon(1e-6) == pytest.approx(0.5)
    assert [entry.note for entry in budget.entries()] == ["private histograms"]
    with pytest.raises(InvalidInput, match="one list of edges for each"):
        private_histogram(table, [[0, 1]], epsilon=1.0, delta=1e-6, ledger=budget)
    assert len(budget.entries()) == 1


def test_an_audit_stays_below_the_certificate():
    here, there = np.zeros(50), np.zeros(50)
    here[0], there[0] = -9.0, 9.0  # from below all bounds to above

    def sampler(x, first):
        def runs(k):
            seeds = range(first, first + k)
            reports = [clipping_report(x[:, None], (-1, 1), epsilon=2.0, delta=1e-3, random_state=i) for i in seeds]
            return np.array([one.above[0] - one.below[0] for one in reports])

        return runs

    certificate = clipping_report(here[:, None], (-1, 1), epsilon=2.0, delta=1e-3, random_state=0).certificate
    found = audit_gdp(sampler(here, 10**6), sampler(there, 2 * 10**6), 600)
    assert not found.verdict(certificate).violated
