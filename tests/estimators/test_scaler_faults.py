"""Faults of version 0.1: seeds unknown to the ledger, any ε, halves of two models after an interrupt."""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import pandas as pd
import pytest

from tacit.errors import InvalidInput
from tacit.estimators import DPQuantileScaler, DPStandardScaler, private_mean, private_quantiles, private_variance
from tacit.inputs.parameters import MAX_EPSILON
from tacit.release import SEEDED

X = np.random.default_rng(0).uniform(-1, 1, (50, 2))
RELATIONS = ("replace-one", "zero-out", "add-remove")


def deal(**change):
    return {"epsilon": 0.5, "delta": 1e-5, **change}


RUNS = {
    "standard": lambda **k: DPStandardScaler(**deal(**k), feature_bounds=(-1, 1)).fit(X).certificate_,
    "quantile": lambda **k: DPQuantileScaler(**deal(**k), feature_bounds=(-1, 1)).fit(X).certificate_,
    "mean": lambda **k: private_mean(X, (-1, 1), **deal(**k))[1],
    "variance": lambda **k: private_variance(X, (-1, 1), **deal(**k))[1],
    "quantiles": lambda **k: private_quantiles(X, 0.5, (-1, 1), **deal(**k))[1],
}


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("name", RUNS)
def test_the_ledger_holds_the_very_certificate(name, seed, adjacency, ledger):
    budget = ledger(5.0)
    certificate = RUNS[name](ledger=budget, random_state=seed, adjacency=adjacency)
    (entry,) = budget.entries()
    assert json.loads(entry.certificate)["marks"] == ([] if seed is None else [SEEDED])
    assert entry.digest == certificate.digest


@pytest.mark.parametrize("name", RUNS)
def test_an_epsilon_that_promises_nothing_is_refused(name):
    with pytest.raises(InvalidInput, match="epsilon must be at most"):
        RUNS[name](epsilon=10 * MAX_EPSILON)


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("kind", [DPStandardScaler, DPQuantileScaler])
def test_the_plan_is_known_before_a_record_is_read(kind, adjacency):
    scaler = kind(**deal(adjacency=adjacency), feature_bounds=(-1, 1))
    planned = scaler.planned_certificate(50, 2)
    assert not any(name.endswith("_") for name in vars(scaler))  # planning leaves nothing behind
    assert scaler.fit(X).certificate_ == planned
    assert scaler.fit(X[:10]).certificate_ == planned  # whatever n


def interrupted(run, line: int) -> int | None:
    """Run, with an interrupt at the given line of ours (0 for none); the number of lines if it came to its end."""
    seen = 0

    def trace(frame, event, arg):
        nonlocal seen
        if not any(room in frame.f_code.co_filename for room in ("/tacit/estimators/", "/tacit/inputs/")):
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(before)
    return seen


@pytest.mark.parametrize("kind", [DPStandardScaler, DPQuantileScaler])
def test_an_interrupted_refit_leaves_the_old_scaler_or_the_new_one(kind):
    def state(model):
        return {name: repr(value) for name, value in vars(model).items()}

    old = kind(5.0, 1e-5, (-1, 1), random_state=0).fit(X)
    wider = pd.DataFrame(np.random.default_rng(1).uniform(-1, 1, (30, 3)), columns=list("abc"))
    new = copy.deepcopy(old).fit(wider)
    assert state(old) != state(new)
    lines = interrupted(lambda: copy.deepcopy(old).fit(wider), 0)
    assert lines > 50
    for line in range(1, lines + 1):
        model = copy.deepcopy(old)
        assert interrupted(lambda model=model: model.fit(wider), line) is None
        assert state(model) in (state(old), state(new)), f"interrupted at line {line}"
