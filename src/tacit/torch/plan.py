"""One plan for a private training: batches, clipping, noise and certificate come from the same numbers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.optim import Optimizer

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import BudgetExhausted, InvalidInput, MechanismMismatch
from tacit.factorisation import Optimum, Strategy
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency
from tacit.run import SEEDED
from tacit.torch.noise_plan import LearningRate, learning_rates, plan_noise
from tacit.torch.objective import LossFunction, RecordLoss
from tacit.torch.records import Records
from tacit.torch.session import Session

__all__ = ["Batch", "TrainingPlan"]


@dataclass(frozen=True)
class Batch:
    """A turn to read the batch of one step; who is in it stays inside.

    Attributes:
        step: its number, from 0.
    """

    step: int


class TrainingPlan:
    """Clipped per-record gradients, noise correlated across steps, and the certificate of exactly that.

        for batch in plan.batches(data):
            plan.step(model, loss_fn, batch)

    At step t each record of the group on turn is read with probability B·b/n; θ moves by SGD along
    (Σ clipped gradients + σ·(C⁻¹Z)_t)/B, with B the public expected batch size.

    Formal guarantee: all parameters after every step together satisfy the certificate's (ε, δ) under ``adjacency``;
    what an optimiser or schedule of your own makes of them does, too.

    Assumptions: everything passed here is public (also ``learning_rate``, ``clip_norm`` and ``spectrum``); model, loss
    and start of the parameters do not depend on the records; a plan is run once.

    Args:
        n_records: n, the number of records (under add/remove a public guess: only rates depend on it).
        epsilon: the target ε, or None if ``noise_multiplier`` is given.
        delta: δ.
        batch_size: B, expected.
        epochs: how often each record is read, on average: T = ⌈epochs·n/B⌉ steps.
        steps: T instead of epochs.
        clip_norm: C, the longest gradient that one record may contribute.
        learning_rate: η: a number, one per step, or a function of the step.
        momentum: β in [0, 1).
        weight_decay: λ, decoupled: θ shrinks by 1 − ηλ.
        strategy: "bandmf" (noise that cancels over steps), "dpsgd" (independent noise), "noisecurve" (made for the
            curvature ``spectrum``), or a strategy of your own.
        bands: b, how many steps noise is spread over; chosen for the budget if missing.
        spectrum: eigenvalues of a public Hessian, e.g. from ``hessian_spectrum``.
        noise_multiplier: σ/C instead of epsilon.
        adjacency: the neighbouring relation.
        unit: whose data one record is.
        chunk_size: how many per-record gradients are held at once.
        vectorised: False for models that vmap cannot batch.
        seed: makes the run repeatable and *not private*.
        budget: a ledger, charged before any record is read.
        note: for the ledger.

    >>> plan = TrainingPlan(2000, epsilon=3.0, delta=1e-5, batch_size=200, epochs=5, bands=4)
    >>> plan.n_steps, plan.bands, plan.certificate.epsilon(1e-5) <= 3.0
    (50, 4, True)
    """

    def __init__(
        self,
        n_records: int,
        *,
        epsilon: float | None = None,
        delta: float,
        batch_size: int,
        epochs: float | None = None,
        steps: int | None = None,
        clip_norm: float = 1.0,
        learning_rate: LearningRate = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        strategy: str | Strategy | Optimum = "bandmf",
        bands: int | None = None,
        spectrum: ArrayLike | object | None = None,
        noise_multiplier: float | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        unit: str = "record",
        chunk_size: int | None = None,
        vectorised: bool = True,
        seed: int | None = None,
        budget: Ledger | None = None,
        note: str = "",
    ) -> None:
        self.n_records, self.batch_size = _sizes(n_records, batch_size)
        self.n_steps = _steps(self.n_records, self.batch_size, epochs, steps)
        self.adjacency = Adjacency.parse(adjacency)
        self.clip_norm = _validate.positive(clip_norm=clip_norm)
        self.learning_rates = learning_rates(learning_rate, self.n_steps)
        self.momentum = _validate.nonnegative(momentum=momentum)
        self.weight_decay = _validate.nonnegative(weight_decay=weight_decay)
        if self.momentum >= 1:
            raise InvalidInput(f"momentum must be below 1, got {momentum}: the steps would never settle")
        self.chunk_size = None if chunk_size is None else _validate.positive_int(chunk_size=chunk_size)
        self.vectorised, self.seed, self.budget, self.note = vectorised, seed, budget, note
        self.noise = plan_noise(
            strategy,
            epsilon=None if epsilon is None else _validate.positive(epsilon=epsilon),
            noise_multiplier=noise_multiplier,
            delta=_validate.delta(delta),
            n=self.n_records,
            batch_size=self.batch_size,
            steps=self.n_steps,
            adjacency=self.adjacency,
            unit=unit,
            bands=None if bands is None else _validate.positive_int(bands=bands),
            rates=self.learning_rates,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            eigenvalues=getattr(spectrum, "eigenvalues", spectrum),  # type: ignore[arg-type]
        )
        self.learning_rates.flags.writeable = False
        self._session: Session | None = None
        self._turn: Batch | None = None
        self._sealed = True

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, "_sealed", False) and not name.startswith("_"):
            raise AttributeError(f"a plan cannot be changed ({name}): its certificate belongs to it; make another one")
        super().__setattr__(name, value)

    # -- public facts ---------------------------------------------------------------------------------------

    @property
    def certificate(self) -> Certificate:
        """Of the whole training, also if it is stopped early; marked if seeded, and with what was declared."""
        certificate = None if self._session is None else self._session.certificate
        if certificate is None:
            certificate = self.noise.certificate
            certificate = certificate if self.seed is None else certificate.marked(SEEDED)
        for mark in () if self._session is None else self._session.marks:
            certificate = certificate.marked(mark)
        return certificate

    def declare(self, mark: str) -> None:
        """Put a sentence on the certificate of the run, also after resuming.

        Args:
            mark: what a reader must know, e.g. "declared: evaluation data are public".
        """
        if self._session is not None and mark not in self._session.marks:
            self._session.marks = (*self._session.marks, mark)

    @property
    def noise_multiplier(self) -> float:
        """σ/C."""
        return self.noise.noise_multiplier

    @property
    def bands(self) -> int:
        """b: 1 for independent noise."""
        return self.noise.bands

    @property
    def steps_done(self) -> int:
        """How many steps have been taken."""
        return 0 if self._session is None else self._session.step

    @property
    def settled(self) -> bool:
        """False if a step was interrupted half way: ``save`` then refuses; go on from the last checkpoint."""
        return self._session is None or self._session.settled

    @property
    def digest(self) -> str:
        """Names the public configuration, and what the last bits of a sum depend on: checkpoints are held to it."""
        words = (self.noise.certificate.digest, self.n_records, self.batch_size, self.clip_norm, self.momentum)
        bits = (self.chunk_size, self.vectorised, torch.get_num_threads(), torch.__version__, self.seed is not None)
        text = f"{words}{bits}{self.weight_decay}{self.learning_rates.tobytes().hex()}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        return (
            f"TrainingPlan(n_steps={self.n_steps}, batch_size={self.batch_size}, bands={self.bands}, "
            f"noise_multiplier={self.noise_multiplier:.4g}, adjacency={self.adjacency.value})"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a plan is not copied or pickled: two copies would each spend the budget once")

    # -- the run --------------------------------------------------------------------------------------------

    def batches(self, data: object) -> Iterator[Batch]:
        """The batches of every step that is left, drawn by the plan itself.

        The ledger is charged here, before any record is read. Leaving the loop and asking again goes on where it
        stopped.

        Args:
            data: a tuple of tensors (inputs…, target), or a dataset with ``len`` and ``[i]``.

        Returns:
            An iterator; take the step of each batch before asking for the next one.

        Raises:
            BudgetExhausted: if the plan has been run to its end.
            MechanismMismatch: if the plan runs on other data already.
        """
        if self._session is None:
            self._session = Session.open(self, self._records(data))
        elif not self._session.holds(data):
            raise MechanismMismatch("this plan runs on other data already: make another plan for these")
        if self._session.step >= self.n_steps:
            raise BudgetExhausted(f"all {self.n_steps} certified steps are taken: make another plan to train longer")
        return self._turns(self._session)

    def _turns(self, session: Session) -> Iterator[Batch]:
        while session.step < self.n_steps:
            self._turn = Batch(session.step)
            yield self._turn
            if session.step == self._turn.step:
                raise MechanismMismatch("the batch was not used: call plan.step(model, loss_fn, batch) in the loop")

    def step(
        self, model: nn.Module, loss_fn: LossFunction | RecordLoss, batch: Batch, *, optimizer: Optimizer | None = None
    ) -> None:
        """Read the batch, add the noise, move the parameters.

        Args:
            model: any module that does not mix records; parameters with ``requires_grad=False`` stay as they are.
            loss_fn: ``loss_fn(output, target)``, or a ``RecordLoss``.
            batch: from ``batches`` of this plan.
            optimizer: instead of the plan's SGD; it finds the noisy mean gradient in ``.grad``.

        Raises:
            MechanismMismatch: if the batch was not drawn by this plan, or is not the one on turn.
            InvalidInput: if model, loss, optimiser and records do not fit; the batch can be used again.
        """
        if batch is not self._turn or self._session is None or self._session.step != batch.step:
            raise MechanismMismatch(
                "this batch was not drawn by the plan: its certificate covers its own batches only; "
                "loop over plan.batches(data) and take each batch once"
            )
        self._session.advance(model, loss_fn, optimizer)

    # -- stopping and going on ------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], model: nn.Module, *, optimizer: Optimizer | None = None) -> None:
        """Write a checkpoint, whole or not at all, readable by its owner only.

        **As secret as the data**: it holds the noise key.

        Args:
            path: where to.
            model: as it stands.
            optimizer: if one of your own is used.

        Raises:
            MechanismMismatch: if nothing has begun.
        """
        if self._session is None:
            raise MechanismMismatch("there is nothing to save before plan.batches(data) has begun")
        self._session.save(path, model, optimizer)

    def restore(
        self,
        path: str | os.PathLike[str],
        model: nn.Module,
        data: object,
        *,
        optimizer: Optimizer | None = None,
    ) -> None:
        """Go on from a checkpoint: the same parameters, batches and noise as if nothing had happened.

        Args:
            path: of the checkpoint.
            model: gets the saved parameters.
            data: the same records in the same order.
            optimizer: gets the saved state, if one of your own is used.

        Raises:
            MechanismMismatch: if this plan has begun already, or the checkpoint is of other data or settings.
        """
        if self._session is not None:
            raise MechanismMismatch("this plan has begun: make a new one with the same settings and restore into it")
        self._session = Session.restore(self, self._records(data), path, model, optimizer)

    def forget(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint that is no longer needed, and what belongs to it."""
        if self._session is not None:
            self._session.forget(Path(path))

    def _records(self, data: object) -> Records:
        records = data if isinstance(data, Records) else Records(data)
        if self.adjacency is not Adjacency.ADD_REMOVE and len(records) != self.n_records:
            raise MechanismMismatch(f"the plan is for {self.n_records} records, the data holds {len(records)}")
        return records


def _sizes(n_records: int, batch_size: int) -> tuple[int, int]:
    n, B = _validate.positive_int(n_records=n_records), _validate.positive_int(batch_size=batch_size)
    if n < B:
        raise InvalidInput(f"batch_size {B} exceeds the {n} records: lower it")
    return n, B


def _steps(n: int, batch_size: int, epochs: float | None, steps: int | None) -> int:
    if (epochs is None) == (steps is None):
        raise InvalidInput("give either epochs or steps")
    if steps is not None:
        return _validate.positive_int(steps=steps)
    return max(1, int(np.ceil(round(_validate.positive(epochs=epochs) * n / batch_size, 9))))
