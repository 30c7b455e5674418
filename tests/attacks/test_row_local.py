"""A record's integers and features are functions of that record, to the bit, however it is stored and beside whom.

Every registered query, statistic and row map: each record alone and in a table; permuted, shortened, padded with other
records of any size, cut into parts, dense and sparse, in memory that begins at any place. Registries drive the tests;
``make attack`` looks at 10⁵ records of each.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import tacit
from tacit import maps
from tacit.estimators import load_all
from tacit.maps import ROW_MAPS
from tacit.mechanism import Mechanism
from tacit.problem import Huber, Logistic
from tacit.records import Rows
from tacit.release import QUERIES, Sweep, sensitivity
from tacit.release.queries import STATISTICS, TargetDistance

load_all()
maps.load_all()
FEW, MANY = 2_000, 100_000
TABLE = 200
"""Records of a table: more than the widest vector registers hold, so that loops have a body and a tail."""
ONE = Mechanism(adjacency="replace-one", ratio=1.0, steps=1)
QUERY_NAMES = sorted(
    name for name, cls in QUERIES.items() if not issubclass(cls, Sweep) and cls.__module__.startswith("tacit.release")
)
MAP_NAMES = sorted(
    name for name, cls in ROW_MAPS.items() if cls.__module__.startswith("tacit.") and not inspect.isabstract(cls)
)


# -- one table in many places -----------------------------------------------------------------------------------------


def offset(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same array where memory begins a few entries later, by rows or by columns."""
    shift = int(rng.integers(1, 9))
    flat = np.zeros(X.size + shift, X.dtype)[shift:]
    view = flat.reshape(X.shape) if rng.random() < 0.5 else flat.reshape(X.shape[::-1]).T
    view[...] = X
    return view


def stored(X: Any, rng: np.random.Generator) -> Any:
    if sparse.issparse(X):
        return rng.choice([sparse.csr_array, sparse.csc_array])(X)
    return offset(np.asarray(X), rng)


def some(X: Any, index: np.ndarray) -> Any:
    return X.tocsr()[index] if sparse.issparse(X) else X[index]


def joined(X: Any, more: Any) -> Any:
    return sparse.vstack([X, more]).tocsr() if sparse.issparse(X) else np.concatenate([X, more])


def strangers(X: Any, rng: np.random.Generator) -> Any:
    """Other records: some of zeros, some tiny, some huge."""
    sizes = rng.choice([0.0, 1e-300, 1e-3, 1.0, 1e150], size=int(rng.integers(1, 70)))
    rows = some(X, rng.integers(X.shape[0], size=len(sizes)))
    with np.errstate(all="ignore"):
        found = (sparse.diags_array(sizes) @ rows).tocsr() if sparse.issparse(rows) else rows * sizes[:, None]
    if sparse.issparse(found):
        found.eliminate_zeros()
    return found if sparse.issparse(found) else found.astype(X.dtype)


def tables(rng: np.random.Generator, X: Any) -> Iterator[tuple[np.ndarray, Any]]:
    """(which records come first, a table that begins with them): permuted, shortened, padded, moved."""
    n = X.shape[0]
    yield np.arange(n), stored(X, rng)
    order = rng.permutation(n)
    yield order, stored(some(X, order), rng)
    short = order[: int(rng.integers(1, n))]
    yield short, stored(some(X, short), rng)
    yield order, stored(joined(some(X, order), strangers(X, rng)), rng)
    first = int(rng.integers(n))
    yield np.arange(first, n), stored(X, rng)[first:] if not sparse.issparse(X) else stored(X.tocsr()[first:], rng)


# -- queries ----------------------------------------------------------------------------------------------------------


def integers(query: Any, rows: Rows, state: Any, grid: Any) -> np.ndarray:
    """Σ over all records."""
    with np.errstate(all="ignore"):
        return query.total(rows, state, np.ones((1, len(rows)), bool), grid)[0]


def check_query(name: str, records: int, seed: int) -> int:
    """Tables of a query: every sum must be the sum of its records' integers, each worked out alone."""
    rng, done = np.random.default_rng(seed), 0
    while done < records:
        n = TABLE
        query, rows, _, state = QUERIES[name].example(rng, records=n)
        grid = query.grid(sensitivity(ONE, query) / rng.choice([0.003, 0.4, 20.0]))
        X, y = rows.X, rows.y
        alone = np.array([integers(query, rows.take(np.array([i])), state, grid) for i in range(n)])
        for index, table in tables(rng, X):
            extra = table.shape[0] - len(index)
            there = Rows(table, None if y is None else np.concatenate([y[index], np.resize(y, (extra, *y.shape[1:]))]))
            found = integers(query, there, state, grid)
            if extra:
                found = found - integers(query, there.take(np.arange(len(index), table.shape[0])), state, grid)
            np.testing.assert_array_equal(found, alone[index].sum(axis=0))
        done += n
    return done


@pytest.mark.parametrize("name", QUERY_NAMES)
def test_queries(name):
    check_query(name, FEW, 1)


@pytest.mark.attack
@pytest.mark.parametrize("name", QUERY_NAMES)
def test_queries_with_many_records(name, record_property):
    record_property("records", check_query(name, MANY, 2))
    record_property("seed", 2)


# -- statistics -------------------------------------------------------------------------------------------------------


def made(kind: type, rng: np.random.Generator, p: int) -> Any:
    """A statistic of this kind, by the names of its fields."""
    known: dict[str, Any] = {
        "low": -1.5,
        "high": 2.0,
        "centre": 0.3,
        "logarithmic": bool(rng.random() < 0.5),
        "loss": rng.choice([Logistic(), Huber(0.7)]),
        "v": rng.normal(size=p),
        "of": TargetDistance(0.1),
        "threshold": -0.5,
        "column": int(rng.integers(p)),
        "scale": 0.7,
        "reach": rng.choice([0.0, 0.3, 2.0], p),
    }
    return kind(**{name: known[name] for name in getattr(kind, "__dataclass_fields__", {})})


STATISTIC_NAMES = sorted(name for name in STATISTICS if not name.startswith("_") and name != "Score")


def check_statistic(kind: type, records: int, seed: int) -> int:
    rng, done = np.random.default_rng(seed), 0
    while done < records:
        p = int(rng.integers(1, 40))
        X = rng.normal(size=(TABLE, p)) * rng.choice([1e-3, 1.0, 1e3])
        X = sparse.csr_array(np.where(np.abs(X) < np.median(np.abs(X)), 0, X)) if rng.random() < 0.5 else X
        y = rng.choice([-1.0, 1.0], TABLE) if rng.random() < 0.5 else rng.normal(size=TABLE)
        statistic = made(kind, rng, p)
        rows = Rows(X, y)
        alone = np.array([statistic(rows.take(np.array([i])))[0] for i in range(TABLE)])
        for index, table in tables(rng, X):
            there = np.concatenate([y[index], np.resize(y, table.shape[0] - len(index))])
            with np.errstate(all="ignore"):
                found = statistic(Rows(table, offset(there, rng)))
            assert found[: len(index)].tobytes() == alone[index].tobytes()
        done += TABLE
    return done


@pytest.mark.parametrize("name", STATISTIC_NAMES)
def test_statistics(name):
    check_statistic(STATISTICS[name], FEW, 3)


@pytest.mark.attack
@pytest.mark.parametrize("name", STATISTIC_NAMES)
def test_statistics_of_many_records(name, record_property):
    record_property("records", check_statistic(STATISTICS[name], MANY, 4))
    record_property("seed", 4)


@dataclass
class ByPlace:
    """A library's product, which rounds a row by its place and by how many rows there are."""

    v: Any

    def __call__(self, rows: Rows) -> np.ndarray:
        return np.asarray(rows.X @ self.v)


def test_products_that_round_by_place_are_noticed():
    with pytest.raises(AssertionError):
        check_statistic(ByPlace, FEW, 3)


def test_scores_depend_on_their_record_and_its_place():
    """The one statistic that may round by place: in that place it is the same whatever the other records hold."""
    rng = np.random.default_rng(5)
    X, y = rng.uniform(-1, 1, (TABLE, 3)), rng.uniform(-1, 1, TABLE)
    model = tacit.DPRidge(epsilon=1.0, delta=1e-5, feature_bounds=(-1, 1), target_bounds=(-2, 2)).fit(X, y)
    score = STATISTICS["Score"](model, "squared_error")
    here = score(Rows(X, y))
    for i in range(0, TABLE, 7):
        there = rng.choice([1e-300, 1e300, -1.0, 0.0], X.shape)
        there[i] = X[i]
        assert score(Rows(there, y))[i] == here[i]


# -- row maps ---------------------------------------------------------------------------------------------------------


def check_map(name: str, records: int, seed: int) -> int:
    rng, done = np.random.default_rng(seed), 0
    while done < records:
        one, X = ROW_MAPS[name].example(rng)
        n = X.shape[0]
        alone = np.concatenate([dense(one(some(X, np.array([i])))) for i in range(n)])
        for index, table in tables(rng, X):
            with np.errstate(all="ignore"):
                found = dense(one(table))
            assert found[: len(index)].tobytes() == np.ascontiguousarray(alone[index]).tobytes()
        done += n
    return done


def dense(X: Any) -> np.ndarray:
    return np.ascontiguousarray(X.toarray() if sparse.issparse(X) else X)


@pytest.mark.parametrize("name", MAP_NAMES)
def test_maps(name):
    check_map(name, FEW if name not in ("Deskew", "Hog") else 600, 6)


@pytest.mark.attack
@pytest.mark.parametrize("name", MAP_NAMES)
def test_maps_of_many_rows(name, record_property):
    record_property("rows", check_map(name, MANY, 7))
    record_property("seed", 7)


def test_the_suite_comes_to_everything():
    assert {"moments", "gram", "loss-gradient", "histogram", "vectors", "counted"} <= set(QUERY_NAMES)
    assert {"One", "TargetShare", "AtMost", "SlopeNorm"} <= set(STATISTIC_NAMES)
    assert {"FeatureBounds", "Hog", "RandomFourier", "Standardise"} <= set(MAP_NAMES)
