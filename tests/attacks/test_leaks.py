"""Neighbours whose sums are frozen agree to the bit in everything that a fit lets out (see ``leaking.py``)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from attacking import BOUNDS, COUNTS, FAMILIES, LABELS, MARGIN, NETWORK, SHORT, TARGET, X, Y
from leaking import Frozen, surface
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from typer.testing import CliRunner

import tacit
from tacit import estimators
from tacit.cli import app
from tacit.estimators import DPQuantileScaler, load_all
from tacit.estimators.base import ESTIMATORS
from tacit.estimators.positive import DPGammaRegressor, DPPoissonRegressor

ANY = {"epsilon": 1.0, "delta": 1e-5, "random_state": 7}
HOLES = np.where(np.arange(COUNTS.size).reshape(COUNTS.shape) % 7 == 1, np.nan, COUNTS)
POSITIVE = np.abs(Y) + 0.1
TWO = np.column_stack([Y, -Y])
SPARSE = sparse.csr_array(np.where(np.abs(X) < 0.4, 0.0, X))
SEARCH = tacit.DPSelection(tacit.DPRidge(**TARGET), {"alpha": [1e-3, 1.0]}, mean_trials=2.0, **ANY)
MODELS: dict[str, tuple[Any, Any, Any]] = {
    name: (clone(family.model).set_params(**ANY), X if family.X is None else family.X, family.y)
    for name, family in FAMILIES.items()
} | {
    "lasso": (tacit.DPLasso(0.01, **TARGET, **ANY), X, Y),
    "elastic net": (tacit.DPElasticNet(0.01, **TARGET, **ANY, adjacency="zero-out"), X, Y),
    "ordinary": (tacit.DPLinearRegression(**TARGET, **ANY, adjacency="add-remove"), X, Y),
    "hinge": (tacit.DPLinearSVC(solver="coordinate", **MARGIN, **ANY), X, LABELS),
    "general": (tacit.DPGeneralizedLinear("squared", "nonnegative", "gradient", **TARGET, **ANY), X, Y),
    "counts": (DPPoissonRegressor(**BOUNDS, target_bounds=(0, 4), **ANY), X, POSITIVE),
    "gamma": (DPGammaRegressor(**BOUNDS, target_bounds=(0.05, 4), **ANY), X, POSITIVE),
    "three classes": (tacit.DPLogisticRegression(**BOUNDS, classes=[0, 1, 2], **ANY), X, LABELS),
    "constant model": (tacit.DPLogisticRegression(**MARGIN, **ANY | {"epsilon": 0.01}), X, LABELS),
    "sparse": (tacit.DPLogisticRegression(**MARGIN, **ANY), SPARSE, LABELS),
    "sparse sweep": (tacit.DPLasso(0.01, solver="coordinate", **TARGET, **ANY), SPARSE, Y),
    "single precision": (tacit.DPRidge(**TARGET, **ANY), X.astype(np.float32), Y),
    "frame": (tacit.DPRidge(**TARGET, **ANY), pd.DataFrame(X, columns=["a", "b"]), Y),
    "gates of numbers": (
        tacit.DPConvexReLURegressor(2, feature_norm=1.0, epochs=1, target_bounds=(-1, 1), **ANY),
        X,
        TWO,
    ),
    "network of numbers": (tacit.DPBlockMLPRegressor((2,), target_bounds=(-1, 1), **NETWORK, **ANY), X, Y),
    "network by moments": (
        tacit.DPBlockMLPClassifier((2,), update="statistics", classes=[0, 1], **NETWORK, **ANY),
        X,
        LABELS,
    ),
    "shown softmax": (tacit.DPSoftmaxRegression(view="all_iterates", **SHORT, **ANY), X, LABELS),
    "factors with holes": (tacit.DPNMF(2, row_norm=2.0, epochs=1, missing="unobserved", **ANY), HOLES, None),
    "both factors": (tacit.DPNMF(2, row_norm=2.0, epochs=1, release="both", **ANY), COUNTS, None),
    "scaler of a secret number": (DPQuantileScaler(**BOUNDS, **ANY, adjacency="add-remove"), X, None),
    "search": (SEARCH, X, Y),
    "pipeline": (make_pipeline(tacit.DPStandardScaler(**BOUNDS, **ANY), tacit.DPRidge(**TARGET, **ANY)), X, Y),
}
FUNCTIONS = {
    "mean": lambda x: estimators.private_mean(x, bounds=(-1, 1), **ANY),
    "variance": lambda x: estimators.private_variance(x, bounds=(-1, 1), **ANY),
    "quantiles": lambda x: estimators.private_quantiles(x, [0.5, 0.9], bounds=(-1, 1), **ANY),
}
ODD = (1e308, -1e308, 5e-324, -0.0, 0.0, 1e-300)


def records(rng: np.random.Generator, X: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """Tables in which record 0 is another one: ordinary, huge, denormal, negative zero, mixed, missing."""
    rows = X.to_numpy() if isinstance(X, pd.DataFrame) else X.toarray() if sparse.issparse(X) else X
    p, top = rows.shape[1], np.finfo(rows.dtype).max
    wanted = [rng.normal(size=p), *(np.full(p, value) for value in ODD), rng.choice(ODD, p)]
    if rows is HOLES:
        wanted.append(np.full(p, np.nan))
    if (rows[np.isfinite(rows)] >= 0).all():
        wanted = [np.abs(row) for row in wanted]  # nonnegative by schema
    for row in wanted:
        there = rows.copy()
        there[0] = np.clip(row, -top, top)
        yield _like(X, there), _other_target(rng, y)


def _like(X: Any, there: np.ndarray) -> Any:
    if isinstance(X, pd.DataFrame):
        return pd.DataFrame(there, columns=X.columns)
    return sparse.csr_array(there) if sparse.issparse(X) else there


def _other_target(rng: np.random.Generator, y: Any) -> Any:
    if y is None:
        return None
    out = y.copy()
    if y.dtype.kind == "i":
        out[0] = rng.integers(2)
    else:
        out[0] = np.abs(rng.choice([*ODD, rng.normal()])) if (y > 0).all() else rng.choice([*ODD, rng.normal()])
    return out


def scan(fit: Any, D: Any, others: Any, folder: Any) -> int:
    """Fit on D, then with D's sums on its neighbours; return how many were compared."""
    frozen, n = Frozen(), 0
    with frozen.recording():
        here = surface(lambda: fit(*D), folder)
    assert "error" not in here, here["error"]
    for other in others:
        with frozen.replaying():
            there = surface(lambda other=other: fit(*other), folder)
        assert there.keys() == here.keys()
        different = [name for name in here if here[name] != there[name]]
        assert not different, (different, [(here[name], there[name]) for name in different[:1]])
        n += 1
    return n


@pytest.mark.parametrize("name", MODELS)
def test_models(name, tmp_path):
    model, X, y = MODELS[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    assert scan(lambda X, y: clone(model).fit(X, y), (X, y), records(rng, X, y), tmp_path) >= 8


@pytest.mark.parametrize("name", [name for name, (_, _, y) in MODELS.items() if y is LABELS])
def test_labels_of_one_class(name, tmp_path):
    """On D all labels but one are the same; on D′ all."""
    model, X, _ = MODELS[name]
    y = np.zeros(X.shape[0], int)
    y[0] = 1
    assert scan(lambda X, y: clone(model).fit(X, y), (X, y), [(X, 0 * y)], tmp_path) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_statistics(name, tmp_path):
    rng = np.random.default_rng(1)
    assert scan(lambda x, y: FUNCTIONS[name](x), (X, None), records(rng, X, None), tmp_path) >= 8


def test_every_estimator_is_tried():
    load_all()
    tried = {type(model).__name__ for model, _, _ in MODELS.values()}
    assert {name for name, kind in ESTIMATORS.items() if kind.__module__.startswith("tacit.")} <= tried


def public_maps() -> dict[str, Any]:
    maps = tacit.maps
    return {
        "norms": maps.NormScaler(),
        "bounds": maps.BoundsScaler((-1, 1)),
        "fourier": maps.RandomFourier(6),
        "relu": maps.RandomRelu(5),
        "gates": maps.ReluGates(3),
        "join": maps.Join([("a", maps.NormScaler()), ("b", maps.RandomRelu(3))]),
        "words": maps.PublicOneHotEncoder([0.0, 1.0]),
    }


@pytest.mark.parametrize("name", public_maps())
def test_public_transformers_keep_nothing_of_a_table(name, tmp_path):
    rng = np.random.default_rng(2)
    part = public_maps()[name]
    assert scan(lambda X, y: clone(part).fit(X), (X, None), records(rng, X, None), tmp_path) >= 8


# -- PyTorch and the shell --------------------------------------------------------------------------------------------


def test_private_trainer(tmp_path):
    torch = pytest.importorskip("torch")
    from tacit.torch import PrivateTrainer

    def fit(X: Any, y: Any) -> Any:
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        trainer = PrivateTrainer(
            network, torch.nn.CrossEntropyLoss(), noise_multiplier=1.0, delta=1e-5, batch_size=20, epochs=1,
            strategy="dpsgd", random_state=0, progress=False,
        )  # fmt: skip
        trainer.fit((torch.tensor(X, dtype=torch.float32), torch.tensor(y)))
        state = {name: value.numpy() for name, value in network.state_dict().items()}
        return {"state": state, "certificate": str(trainer.certificate_), "digest": trainer.certificate_.digest}

    rng = np.random.default_rng(3)
    others = [(np.clip(there, -3e38, 3e38), y) for there, y in records(rng, X, LABELS)]
    others += [(np.concatenate([[[odd, odd]], X[1:]]), LABELS) for odd in (np.nan, np.inf)]
    assert scan(fit, (X, LABELS), others, tmp_path) >= 10


def test_the_shell(tmp_path, monkeypatch):
    """Messages, exit codes, and the model's file."""
    schema = {
        "features": {"a": {"bounds": [-1, 1]}, "b": {"bounds": [-1, 1], "missing": 0}},
        "target": {"classes": ["no", "yes"]},
    }
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    command = (
        "fit table.csv --target y --model logistic --epsilon 1 --delta 1e-6 --schema schema.json --seed 3 -o m.json"
    )

    def fit(first: str) -> Any:
        rows = [f"{a},{b},{'yes' if label else 'no'}" for (a, b), label in zip(X, LABELS, strict=True)]
        (tmp_path / "table.csv").write_text("\n".join(["a,b,y", first, *rows[1:], ""]))
        done = CliRunner().invoke(app, command.split(), env={"COLUMNS": "100", "TERM": "dumb"})
        model = (tmp_path / "m.json").read_bytes()
        (tmp_path / "m.json").unlink()
        return {"code": done.exit_code, "out": done.stdout, "err": done.stderr, "model": model}

    others = ["0.5,0.5,no", "1e308,-1e308,yes", "5e-324,-0.0,no", "-1,,yes", "1e-300,3,no", "0,0,no"]
    assert scan(fit, ("0.1,0.2,yes",), [(one,) for one in others], tmp_path) == 6


# -- the scan itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "leak",
    [
        lambda X, y: {"top_": float(np.abs(X).max())},
        lambda X, y: {"notes_": ("wild",) if np.abs(X).max() > 5 else ()},
        lambda X, y: {"intercept_": np.copysign(0.0, X[0, 0])},
        lambda X, y: {"_cache": X[0]},
    ],
    ids=["maximum", "note", "sign of zero", "a record"],
)
def test_the_scan_sees(leak, tmp_path):
    class Leaky(tacit.DPRidge):
        def fit(self, X, y):
            super().fit(X, y)
            self.__dict__.update(leak(X, y))
            return self

    ESTIMATORS.pop("Leaky", None)
    rng = np.random.default_rng(4)
    with pytest.raises(AssertionError):
        scan(lambda X, y: Leaky(**TARGET, **ANY).fit(X, y), (X, Y), records(rng, X, Y), tmp_path)


def test_the_scan_sees_what_raises_and_warns(tmp_path):
    def careless(X, y):
        if np.abs(X).max() > 1e300:
            raise ValueError("a value is too large")
        return tacit.DPRidge(**TARGET, **ANY).fit(X, y)

    with pytest.raises(AssertionError):
        scan(careless, (X, Y), records(np.random.default_rng(5), X, Y), tmp_path)


@pytest.mark.attack
@pytest.mark.parametrize("name", MODELS)
def test_leaks_in_thousands_of_fits(name, tmp_path, record_property):
    """5,000 fits over all families."""
    model, X, y = MODELS[name]
    rng, n = np.random.default_rng(6), 0
    while n < 5000 / len(MODELS):
        some = rng.integers(X.shape[0], size=X.shape[0])
        table = X.iloc[some] if isinstance(X, pd.DataFrame) else X[some]
        there = None if y is None else y[some]
        n += scan(lambda X, y: clone(model).fit(X, y), (table, there), records(rng, table, there), tmp_path)
    record_property("fits", n)
    record_property("seed", 6)
