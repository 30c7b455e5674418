"""``tacit demo``: private logistic regression on real data, beside scikit-learn's, which is not private."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tacit.accounting import Certificate
from tacit.estimators import DPLogisticRegression
from tacit.estimators.progress import watching

__all__ = ["UPPER_BOUNDS", "Demo", "run_demo"]

UPPER_BOUNDS = {
    "radius": (30, 3, 40),
    "texture": (40, 5, 50),
    "perimeter": (200, 25, 300),
    "area": (3000, 600, 5000),
    "smoothness": (0.2, 0.05, 0.3),
    "compactness": (0.4, 0.2, 1.2),
    "concavity": (0.5, 0.4, 1.5),
    "concave points": (0.25, 0.1, 0.3),
    "symmetry": (0.4, 0.1, 0.7),
    "fractal dimension": (0.1, 0.03, 0.25),
}
"""Public upper bounds of mean, standard error and worst value; the lower ones are 0.

Round limits, written down by hand from what is published about these measurements (sizes of cell nuclei under one
magnification, ratios that are small by definition) and rounded outwards; this code computes nothing of them from the
records. In a study of your own, take them from what is known about the instrument or the question. Values outside are
clipped silently.
"""
EPSILONS = (1.0, 4.0)
SPLIT_SEED = 0
"""Which records are held out; it has nothing to do with the noise, which is fresh in each run."""


@dataclass(frozen=True)
class Demo:
    """What the demonstration found.

    Attributes:
        records: how many records the models were fitted on.
        tested: how many were held out.
        features: how many features there are.
        delta: δ.
        open_accuracy: of scikit-learn's logistic regression on the held-out records.
        constant_accuracy: of always answering the commoner class.
        private: for each ε, the accuracy and the notes of the fit.
        certificate: of the first private fit.
        together: ε of all private fits, which read the same records.
    """

    records: int
    tested: int
    features: int
    delta: float
    open_accuracy: float
    constant_accuracy: float
    private: dict[float, tuple[float, tuple[str, ...]]]
    certificate: Certificate
    together: float

    def print(self, console: Console) -> None:
        """For people.

        Args:
            console: where to.
        """
        console.print(
            Text(
                f"Breast cancer Wisconsin (scikit-learn's copy): {self.features} features, {self.records} records to "
                f"learn from, {self.tested} held out. Bounds are public and were not read off the data."
            )
        )
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
        for name in ("logistic regression", "accuracy on held-out records"):
            table.add_column(name, justify="left" if name[0] == "l" else "right")
        table.add_row("scikit-learn, not private", f"{self.open_accuracy:.3f}")
        for epsilon, (accuracy, _) in sorted(self.private.items(), reverse=True):
            table.add_row(f"tacit, ε = {epsilon:g}, δ = {self.delta:g}", f"{accuracy:.3f}")
        table.add_row("always the commoner class", f"{self.constant_accuracy:.3f}", style="dim")
        console.print(table)
        for epsilon, (_, notes) in self.private.items():
            for note in notes:
                console.print(Text(f"Note at ε = {epsilon:g}: {note}", style="dim"))
        console.print(
            Text(
                "The noise is fresh, so another run gives other numbers. Accuracies are computed openly from the "
                "held-out records, which no certificate here protects. The private models read the same records, so "
                f"together they cost ε = {self.together:.3f}; a tacit.Ledger keeps such accounts.\n",
                style="dim",
            )
        )
        console.print(Text("What the certificate of the first private model says:", style="bold"))
        console.print(Text(self.certificate.describe(self.delta) + "\n"))


def upper_bounds(names: NDArray[np.str_]) -> NDArray[np.float64]:
    """The bound of each feature, from its name ("mean radius", "radius error", "worst radius").

    Args:
        names: as scikit-learn spells them.

    Returns:
        One number per feature.
    """
    kinds = {f"mean {what}": limits[0] for what, limits in UPPER_BOUNDS.items()}
    kinds |= {f"{what} error": limits[1] for what, limits in UPPER_BOUNDS.items()}
    kinds |= {f"worst {what}": limits[2] for what, limits in UPPER_BOUNDS.items()}
    return np.array([kinds[str(name)] for name in names], np.float64)


def run_demo(progress: Callable[[int, int], None] | None = None) -> Demo:
    """Fit everything; a few seconds.

    Args:
        progress: called with (done, all).

    Returns:
        What to print.
    """
    data = load_breast_cancer()
    high = upper_bounds(data.feature_names)
    split: tuple[Any, ...] = train_test_split(
        data.data, data.target_names[data.target], test_size=0.25, random_state=SPLIT_SEED
    )
    X, X_test, y, y_test = split
    delta = float(f"{1 / len(X) ** 2:.0e}")
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, y)
    private, certificates = {}, []
    for epsilon in EPSILONS:
        model = DPLogisticRegression(
            alpha=1e-3,
            epsilon=epsilon,
            delta=delta,
            feature_bounds=(np.zeros(len(high)), high),
            classes=list(data.target_names),
        )
        with watching(model, progress):
            model.fit(X, y)
        private[epsilon] = (float(model.score(X_test, y_test)), model.notes_)
        certificates.append(model.certificate_)
    return Demo(
        records=len(X),
        tested=len(X_test),
        features=X.shape[1],
        delta=delta,
        open_accuracy=float(plain.score(X_test, y_test)),
        constant_accuracy=float(max(np.mean(y_test == label) for label in data.target_names)),
        private=private,
        certificate=certificates[0],
        together=(certificates[0] + certificates[1]).epsilon(delta),
    )
