"""What every estimator gets by being defined: a name in files, in the shell and in the catalogue.

scikit-learn's checks are in ``test_sklearn_contract.py``, round trips through files in ``test_files.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from contracts import defined, made, told
from sklearn.base import ClassifierMixin
from typer.testing import CliRunner

from tacit import load_model
from tacit.cli import app
from tacit.estimators import load_all
from tacit.estimators.base import ESTIMATORS, PrivateEstimator
from tacit.estimators.linear import LinearModel
from tacit.tables.fitting import shell_models

load_all()
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("cls", [cls for cls in defined(PrivateEstimator) if cls.__name__.startswith("DP")])
def test_every_estimator_registers_and_says_what_its_family_needs(cls):
    told(
        ESTIMATORS.get(cls.__name__) is cls,
        f"{cls.__name__} has no __init__ of its own, so that it is not registered: write one with all its parameters, "
        "each stored under its name (scikit-learn's rule)",
    )
    wanted = {"_read": PrivateEstimator, "_shape": PrivateEstimator, "_planned": PrivateEstimator}
    wanted |= {"_fitted": PrivateEstimator}
    if issubclass(cls, LinearModel):
        wanted |= {"_targets": LinearModel}
        stated = cls._loss is not LinearModel._loss or hasattr(cls, "default_loss")
        told(stated, f"{cls.__name__} states no loss: write default_loss = Squared(), or _loss(self)")
    missing = [name for name, base in wanted.items() if getattr(cls, name) is getattr(base, name)]
    told(not missing, f"{cls.__name__} does not define {', '.join(missing)}: write it as its base describes")
    if cls.__module__ not in ("tacit.estimators.nmf", "tacit.estimators.convex_relu"):  # which are listed by hand
        model = made(cls, cls.example, "example(cls) must return an estimator to try")
        told(type(model) is cls, f"example() of {cls.__name__} makes a {type(model).__name__}: return cls(...)")


@pytest.mark.parametrize("name", shell_models())
def test_every_model_of_the_shell_fits_and_predicts(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cls, rng = shell_models()[name], np.random.default_rng(0)
    x = rng.uniform(0, 1, 200)
    labels = issubclass(cls, ClassifierMixin)
    y = np.where(x > 0.5, "yes", "no") if labels else 1 + x.round(3)
    Path("data.csv").write_text("x,y\n" + "".join(f"{a:.4f},{b}\n" for a, b in zip(x, y, strict=True)))
    target = {"classes": ["no", "yes"]} if labels else {"bounds": [1, 2]}
    Path("schema.json").write_text(json.dumps({"features": {"x": {"bounds": [0, 1]}}, "target": target}))
    fit = ["fit", "data.csv", "--target", "y", "--model", name, "--epsilon", "5", "--delta", "1e-6"]
    done = CliRunner().invoke(app, [*fit, "--schema", "schema.json", "-o", "model.json"], env={"COLUMNS": "200"})
    told(done.exit_code == 0, f"tacit fit --model {name} ends with: {done.output.strip()}")
    assert type(load_model("model.json")) is cls
    done = CliRunner().invoke(app, ["predict", "model.json", "data.csv"])
    assert done.exit_code == 0
    assert len(done.output.splitlines()) == 201


def test_whatever_is_defined_has_a_row_in_the_catalogue():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "catalogue.py"), "--check"], capture_output=True, text=True, check=False
    )
    told(done.returncode == 0, done.stderr.strip())
