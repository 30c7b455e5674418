"""What a server proposes to every node: public settings that decide which sums it wants, and nothing about noise.

A node calibrates its own noise to whatever was proposed, so that no setting can weaken its promise; settings that would
make arithmetic doubtful, or ask for more memory than a node wants to give, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.estimators.nmf import MISSING
from tacit.release.queries.factors import statistic_size
from tacit.solvers.nmf import STEP_SIZE, UPDATES, NMFOptions
from tacit.solvers.schedules import NoiseSchedule, Optimised, noise_variances

__all__ = ["SPLITS", "Proposal", "listed_schedule"]

SPLITS = ("horizontal", "vertical")
MAX_EPOCHS = 10_000
MAX_SUM = 1 << 24
"""Numbers of a sum, 128 MB: a node is not asked for more."""
MIN_CONTRIBUTION = 1e-3
"""The smallest C: the lengths that are compared with it are rounded to 1e-7, and a server may choose C and H."""


@described("FederatedFactors")
@dataclass(frozen=True)
class Proposal:
    """Settings that a node needs to know.

    Attributes:
        n_components: k.
        split: "horizontal" (nodes hold rows of their own) or "vertical" (columns of their own).
        epochs: releases of every node; each reads all of its rows.
        update: which sums: "residuals", "statistics" or "gradient".
        contribution_norm: C in units of the node's row_norm², at least 1e-3; a value that did well if None.
        noise_schedule: a name, or one relative variance per epoch.
        step_size: of gradients; only a figure of DP-MBCD depends on it.
        person_l2: λ on the hidden factors.
        missing: "zero" or "unobserved"; the node's own statement must agree.
        item_names: of the columns, compared with a node's own if it has any; None for "whatever they are".
    """

    n_components: int = 10
    split: str = "horizontal"
    epochs: int = 40
    update: str = "residuals"
    contribution_norm: float | None = None
    noise_schedule: str | tuple[float, ...] = "optimised"
    step_size: float = STEP_SIZE
    person_l2: float = 0.0
    missing: str = "zero"
    item_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        store = object.__setattr__
        for name in ("n_components", "epochs"):
            store(self, name, _validate.positive_int(**{name: getattr(self, name)}))
        if self.epochs > MAX_EPOCHS:
            raise InvalidInput(f"epochs must be at most {MAX_EPOCHS}, got {self.epochs}")
        _validate.one_of(SPLITS, split=self.split)
        _validate.one_of(tuple(UPDATES), update=self.update)
        _validate.one_of(MISSING, missing=self.missing)
        store(self, "step_size", _validate.positive(step_size=self.step_size))
        store(self, "person_l2", _validate.nonnegative(person_l2=self.person_l2))
        if self.contribution_norm is not None:
            C = _validate.positive(contribution_norm=self.contribution_norm)
            if C < MIN_CONTRIBUTION:
                raise InvalidInput(
                    f"contribution_norm must be at least {MIN_CONTRIBUTION:g}, got {C:g}: rounding would count"
                )
        if not isinstance(self.noise_schedule, str):
            store(self, "noise_schedule", _variances(self.noise_schedule, self.epochs))
        if self.item_names is not None:
            store(self, "item_names", self._names())

    def _names(self) -> tuple[str, ...]:
        names = self.item_names
        if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
            raise InvalidInput("item_names must be a sequence of strings, or None")
        if self.split == "vertical":
            raise InvalidInput("item_names are for split='horizontal': with 'vertical' the shared columns are people")
        return tuple(names)

    @classmethod
    def examples(cls) -> tuple[Proposal, ...]:
        """Objects for the contract tests."""
        return (cls(), cls(3, "horizontal", 2, "gradient", 0.5, (1.0, 2.0), 3.0, 0.1, "unobserved", ("a", "b")))

    @property
    def parameters(self) -> dict[str, Any]:
        """For ``DPNMF``, which plans."""
        schedule = self.noise_schedule
        options = NMFOptions(
            contribution_norm=self.contribution_norm,
            noise_schedule=schedule if isinstance(schedule, str) else _Listed(schedule),
            step_size=self.step_size if self.update == "gradient" else None,
            person_l2=self.person_l2,
        )
        return {
            "n_components": self.n_components,
            "epochs": self.epochs,
            "update": self.update,
            "missing": self.missing,
            "options": options,
        }

    def size(self, columns: int) -> int:
        """The length of a sum over rows of so many columns.

        Args:
            columns: that all nodes share.

        Returns:
            The number of its entries.

        Raises:
            InvalidInput: if it is more than a node may be asked for.
        """
        size = statistic_size(self.n_components, columns, UPDATES[self.update])
        if size > MAX_SUM:
            raise InvalidInput(f"{self.n_components} components of {columns} columns are more than a message may hold")
        return size


@dataclass(frozen=True)
class _Listed:
    """Relative variances, one per epoch, as the function that ``DPNMF`` takes."""

    values: tuple[float, ...]

    def __call__(self, epoch: int, batch: int) -> float:
        return self.values[epoch]


def _variances(values: object, epochs: int) -> tuple[float, ...]:
    out = _validate.nonnegative_array("noise_schedule", values)
    if out.shape != (epochs,) or not (out > 0).all():
        raise InvalidInput(f"noise_schedule must hold one positive variance for each of {epochs} epochs")
    return tuple(out.tolist())


def listed_schedule(schedule: NoiseSchedule, epochs: int) -> str | tuple[float, ...]:
    """A schedule as a name, or as one relative variance per epoch: functions are not sent to nodes."""
    if isinstance(schedule, str):
        return schedule
    if callable(schedule) or isinstance(schedule, Optimised):
        return tuple(noise_variances(schedule, epochs, 1)[:, 0].tolist())
    return _variances(schedule, epochs)
