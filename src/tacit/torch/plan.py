"""One plan for a private training: batches, clipping, noise and certificate come from the same settings."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from tacit.accounting import Certificate
from tacit.errors import BudgetExhausted, InvalidInput, MechanismMismatch
from tacit.ledger.journal import Journal
from tacit.mechanism import Adjacency, Arithmetic
from tacit.torch import checkpoint as files
from tacit.torch.calling import bound_loss
from tacit.torch.gradients import PerRecordGradients, exact_chunk, is_record_local
from tacit.torch.marks import CHECKED, PUBLIC_SHAPES, RECORDS_APART, SAME_EVERYWHERE
from tacit.torch.objective import LossFunction, Objective, Parameters, RecordLoss, check_optimizer
from tacit.torch.pilot import GradientNorms
from tacit.torch.planning import spent_by
from tacit.torch.records import Records
from tacit.torch.run import Run, Start
from tacit.torch.settings import TrainingSettings
from tacit.torch.trial import try_step

__all__ = ["RECORDS_APART", "SAME_EVERYWHERE", "Batch", "TrainingPlan"]


@dataclass(frozen=True)
class Batch:
    """Token for one step's batch. Its members are secret.

    Attributes:
        step: number of the step, from 0.
    """

    step: int


class TrainingPlan(TrainingSettings):
    """Clipped per-record gradients, noise correlated across steps, and the certificate of exactly that.

        for batch in plan.batches(data):
            plan.step(model, loss_fn, batch)

    At step t each record of the group whose turn it is is read with probability B·b/n; θ moves by SGD along
    (Σ clipped gradients + σ·(C⁻¹Z)_t)/B, with B the public expected batch size.

    Formal guarantee: all parameters after every step together satisfy the certificate's (ε, δ) under ``adjacency``, and
    so does anything that the user's own optimiser or schedule computes from them.

    Assumptions: all arguments are public (also ``learning_rate``, ``clip_norm`` and ``spectrum``); model, loss and
    initial parameters do not depend on the records; a plan is run once.

    Args:
        n_records: n, the number of records (under add/remove a public guess: only rates depend on it).
        epsilon: the target ε, or None if ``noise_multiplier`` is given.
        delta: δ.
        batch_size: B, the expected batch size; what is missing of this and the next follows from the rule of
            ``defaults``: 20 epochs in 400 steps.
        epochs: how often each record is read, on average: T = ⌈epochs·n/B⌉ steps.
        steps: T, instead of epochs.
        clip_norm: C, the largest norm of the gradient that one record contributes; if missing 1, or with a pilot
            release a quarter of the median at the start.
        learning_rate: η: a number, one per step, or a function of the step; if missing by the rule of ``defaults``,
            from that median (without a pilot release, 4), the noise and the number of parameters; 0.1 with
            ``noise_multiplier``.
        momentum: β in [0, 1).
        weight_decay: λ, decoupled: θ shrinks by 1 − ηλ.
        strategy: "bandmf" (noise that cancels over steps), "dpsgd" (independent noise), "noisecurve" (optimised for the
            curvature ``spectrum``), or a ``Strategy`` or ``Optimum``.
        bands: b, the number of steps that noise is spread over; chosen for (ε, δ) if missing.
        spectrum: eigenvalues of a public Hessian, e.g. from ``hessian_spectrum``.
        noise_multiplier: σ/C, instead of epsilon.
        adjacency: the neighbouring relation.
        unit: whose data one record is.
        chunk_size: how many per-record gradients are computed at once.
        vectorised: False for models that vmap cannot batch.
        pilot: True to release a histogram of the norms of gradients at the start, for a small share of ε, from which
            missing clip and rate follow. A plan makes none by default; a trainer does if clip or rate is missing.
        ledger: a ``tacit.Ledger``, charged before any record is read.
        note: free text for the ledger.
        random_state: a seed that makes the run repeatable and *not private*.
        arithmetic: "float", or "exact": gradients are rounded toward zero to a public grid and added as integers, noise
            has exact probabilities, and C is rounded to 14 bits. Every gradient is formed, which costs time and memory;
            with ``chunk_size=1`` no gradient depends on its place in a chunk either, else that is declared.

    >>> plan = TrainingPlan(2000, epsilon=3.0, delta=1e-5, batch_size=200, epochs=5, bands=4)
    >>> plan.n_steps, plan.bands, plan.certificate.epsilon(1e-5) <= 3.0
    (50, 4, True)
    """

    _run: Run | None = None
    _turn: Batch | None = None
    _query: PerRecordGradients | None = None
    _optimizer: Optimizer | None = None
    _marks: tuple[str, ...] = ()
    _start: Start | None = None
    _bound: tuple[object, object, LossFunction | RecordLoss] | None = None

    @property
    def certificate(self) -> Certificate:
        """The certificate of the whole training, with everything that was declared.

        It also holds if the training is stopped early.
        """
        return _marked(super().certificate, self.marks)

    @property
    def marks(self) -> tuple[str, ...]:
        """What was declared so far."""
        places = self.arithmetic is Arithmetic.EXACT and self.chunk_size != 1
        return (SAME_EVERYWHERE, *self._marks) if places else self._marks

    def declare(self, mark: str) -> None:
        """Put a sentence on the certificate of the run, also after resuming.

        Sentences declared before ``batches`` are part of the ledger's entry, too.

        Args:
            mark: what a reader must know, e.g. "declared: evaluation data are public".
        """
        self._marks = tuple(dict.fromkeys((*self._marks, *((mark,) if mark not in self.marks else ()))))

    @property
    def steps_done(self) -> int:
        """Number of steps released so far."""
        return 0 if self._run is None else self._run.step

    def epsilon_so_far(self, step: int | None = None, delta: float | None = None) -> float:
        """ε of a run that had been planned to end after some of the steps: what they have spent.

        A run that is stopped because of what was seen keeps the promise of ``certificate``, not of this number: no
        theorem here covers a number of steps that is chosen along the way.

        Args:
            step: number of steps; those done so far if missing.
            delta: δ; the plan's if missing.

        Returns:
            ε, at most 0.1 % above its value on the finest grid of losses.
        """
        return spent_by(self._request, self.noise, self.steps_done if step is None else step, delta)

    @property
    def start_(self) -> Start:
        """Clip and rates of the run, and what the pilot release found.

        Raises:
            InvalidInput: before the first step.
        """
        if self._start is None:
            raise InvalidInput("clip and rates are fixed by the first step: train first")
        return self._start

    @property
    def in_sync(self) -> bool:
        """Whether the parameters have made every released step.

        False after a step was interrupted half way: ``save`` then refuses, and the run can be resumed from its last
        checkpoint.
        """
        return self._run is None or self._run.moved == self._run.step

    def __reduce__(self) -> NoReturn:
        raise TypeError("a plan is not copied or pickled: two copies would each spend the budget once")

    # -- the run --------------------------------------------------------------------------------------------

    def batches(self, data: object) -> Iterator[Batch]:
        """Iterate over the remaining batches, which the plan draws itself.

        The ledger is charged here, before any record is read. A loop that was left is continued by calling this again.

        Args:
            data: a tuple of tensors (inputs…, target), a dict of tensors, a dataset with ``len`` and ``[i]``, or
                ``Records``. The shapes of a dataset's first items are looked at before the charge, and are public.

        Returns:
            An iterator; call ``step`` with each batch before asking for the next one.

        Raises:
            BudgetExhausted: if the plan has been run to its end.
            MechanismMismatch: if the plan has begun on other data.
        """
        if self._run is None:
            self._run = Run(self, self._records(data))
        elif not self._run.records.is_same_data(data):
            raise MechanismMismatch("this plan runs on other data already: make another plan for these")
        if self._run.step >= self.n_steps:
            raise BudgetExhausted(f"all {self.n_steps} certified steps are taken: make another plan to train longer")
        return self._turns(self._run)

    def _turns(self, run: Run) -> Iterator[Batch]:
        while run.step < self.n_steps:
            self._turn = Batch(run.step)
            yield self._turn
            if run.step == self._turn.step:
                raise MechanismMismatch("the batch was not used: call plan.step(model, loss_fn, batch) in the loop")

    def _records(self, data: object) -> Records:
        records = data if isinstance(data, Records) else Records(data)
        if records.empty_like() is None and records.empty_like(look=True) is not None:  # faults of items are told here
            self.declare(PUBLIC_SHAPES)
        if self.adjacency is not Adjacency.ADD_REMOVE and len(records) != self.n_records:
            raise MechanismMismatch(f"the plan is for {self.n_records} records, the data holds {len(records)}")
        return records

    def step(
        self,
        model: nn.Module,
        loss_fn: LossFunction | RecordLoss | None,
        batch: Batch,
        *,
        optimizer: Optimizer | None = None,
    ) -> None:
        """Release the noisy sum of the batch's clipped gradients and move the parameters along it.

        Args:
            model: any module that does not mix records; parameters with ``requires_grad=False`` stay as they are.
            loss_fn: ``loss_fn(output, target)``, a ``RecordLoss``, or None for the model's own loss (its output's
                ``loss``).
            batch: from ``batches`` of this plan.
            optimizer: instead of the plan's SGD; it finds the noisy mean gradient in ``.grad``.

        Raises:
            MechanismMismatch: if the batch was not drawn by this plan, or is not the current one.
            InvalidInput: if model, loss, optimiser and records do not fit; the batch can be used again.
        """
        run = self._run
        if run is None or batch is not self._turn or run.step != batch.step:
            raise MechanismMismatch(
                "this batch was not drawn by the plan: its certificate covers its own batches only; "
                "loop over plan.batches(data) and take each batch once"
            )
        check_optimizer(optimizer, model)
        query = self._query_for(run.records, model, self.bind(model, loss_fn, run.records))
        objective = query.objective
        self._begin(run, query)
        noisy = run.release(query, exact=self.arithmetic is Arithmetic.EXACT).mul_(1.0 / self.batch_size)
        self._move(model, objective.unflatten(noisy), batch.step, optimizer)
        run.moved = batch.step + 1

    def bind(
        self, model: nn.Module, loss_fn: LossFunction | RecordLoss | None, records: Records
    ) -> LossFunction | RecordLoss:
        """The loss of records by place, the same object for the same arguments.

        Args:
            model: any module.
            loss_fn: the user's; None for the model's own.
            records: whose names it is for.

        Returns:
            A loss for ``Objective``.
        """
        if self._bound is None or self._bound[0] is not model or self._bound[1] is not loss_fn:
            self._bound = (model, loss_fn, bound_loss(model, loss_fn, records.names))
        return self._bound[2]

    def _begin(self, run: Run, query: PerRecordGradients) -> None:
        """Fix clip and rates, after the pilot release if there is one and it has not been made before."""
        if self._start is None:
            if self.has_pilot and run.median_norm is None:
                run.release_pilot(GradientNorms(query), query.objective.theta())
            found = run.median_norm
            self._start = Start(found, self.clip_for(found), self.rates_for(found, query.size))
        query.bound = self._start.clip_norm

    def _query_for(self, records: Records, model: nn.Module, loss_fn: LossFunction | RecordLoss) -> PerRecordGradients:
        """The sum of clipped gradients of this model and loss, made when they are seen for the first time."""
        query = self._query
        if query is None or query.objective.model is not model or query.objective.loss_fn is not loss_fn:
            objective, chunk, vectorised = Objective(model, loss_fn), self.chunk_size, self.vectorised
            if chunk is None and self.arithmetic is Arithmetic.EXACT:
                chunk = exact_chunk(objective.size)
            # Before the channel learns the size of the sum. A loss of its own for every step is tried on one record.
            tried = chunk if query is None or query.objective.model is not model else 1
            trial = try_step(model, loss_fn, records, chunk_size=tried, vectorised=vectorised, look=True)
            for parameter in model.parameters() if query is None else ():
                records.team.broadcast(parameter.data)  # all processes start with the leader's parameters
            query = PerRecordGradients(
                objective,
                1.0,
                chunk_size=chunk,
                vectorised=vectorised,
                fill=trial.fill,
                way=trial.way,
                expected=self.batch_size,
            )
            if not is_record_local(model, loss_fn):
                self.declare(RECORDS_APART)
            if query.way is not None and query.way.kind in CHECKED and query.way.checked:
                self.declare(CHECKED[query.way.kind])
            self._query = query
        if [n for n, p in model.named_parameters() if p.requires_grad] != query.objective.names:
            raise MechanismMismatch("the trainable parameters changed during the run: freeze them before it begins")
        return query

    def _move(self, model: nn.Module, gradient: Parameters, step: int, optimizer: Optimizer | None) -> None:
        """Post-processing: θ ← (1 − ηλ)θ, then the optimiser's step along the noisy mean gradient."""
        named = dict(model.named_parameters())
        for name, part in gradient.items():
            named[name].grad = part.to(named[name])
        if optimizer is None:
            assert self._start is not None  # set before the first release
            optimizer, rate = self._sgd(model), float(self._start.learning_rates[step])
            for group in optimizer.param_groups:
                group["lr"] = rate
            with torch.no_grad():
                for name in gradient if self.weight_decay else ():
                    named[name].mul_(1 - rate * self.weight_decay)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _sgd(self, model: nn.Module) -> Optimizer:
        """The plan's own optimiser, made again if the model's parameters were replaced."""
        trainable = [p for p in model.parameters() if p.requires_grad]
        held = [] if self._optimizer is None else self._optimizer.param_groups[0]["params"]
        if self._optimizer is None or [id(p) for p in held] != [id(p) for p in trainable]:
            self._optimizer = SGD(trainable, lr=float(self.learning_rates[0]), momentum=self.momentum)
        return self._optimizer

    # -- checkpoints ----------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], model: nn.Module, *, optimizer: Optimizer | None = None) -> None:
        """Write a checkpoint, completely or not at all, readable by its owner only. In a team the leader writes it.

        **As secret as the data**: it contains the noise key.

        Args:
            path: where to write it.
            model: the model, after the last step.
            optimizer: the optimiser that was passed to ``step``, if any.

        Raises:
            MechanismMismatch: if nothing has begun, or a step was interrupted half way.
        """
        run = self._run
        if run is None:
            raise MechanismMismatch("there is nothing to save before plan.batches(data) has begun")
        if not run.records.team.is_leader:
            return
        if not self.in_sync:
            raise MechanismMismatch("a step was interrupted half way: go on from the last checkpoint")
        saved = files.Saved(
            plan=self.digest,
            data=run.records.fingerprint(),
            channel=run.checkpoint(),
            model=model.state_dict(),
            optimizer=(optimizer or self._sgd(model)).state_dict(),
            run=run.secret,
            entry=run.entry,
            marks=self.marks,
            median_norm=run.median_norm,
        )
        run.journal = Journal(run.secret, Path(path))
        run.journal.check(run.step, saved.channel.history)  # before there is a checkpoint to go on from
        files.write(Path(path), saved)

    def restore(
        self,
        path: str | os.PathLike[str],
        model: nn.Module,
        data: object,
        *,
        optimizer: Optimizer | None = None,
    ) -> None:
        """Continue from a checkpoint: the same parameters, batches and noise as without the interruption.

        Steps that this run, or one from a copy of the checkpoint, has made since must be repeated to the bit.

        Args:
            path: the checkpoint; its journal lies beside it, and in the state directory of the user.
            model: receives the saved parameters.
            data: the same records in the same order.
            optimizer: receives the saved state, if one was passed to ``step``.

        Raises:
            MechanismMismatch: if this plan has begun already, the checkpoint belongs to other data or settings, its
                journal is missing, or the run has ended.
            InvalidInput: if the model or the optimiser does not fit the checkpoint.
        """
        if self._run is not None:
            raise MechanismMismatch("this plan has begun: make a new one with the same settings and restore into it")
        saved = files.read(Path(path))
        if saved.plan != self.digest:
            raise MechanismMismatch(
                "the checkpoint belongs to other settings (also: chunk_size, threads, PyTorch): make the plan as it was"
            )
        journal = Journal(saved.run, Path(path))
        journal.require(saved.channel.step, saved.channel.history)
        run = Run(self, self._records(data), saved)
        try:
            model.load_state_dict(saved.model)
            (optimizer or self._sgd(model)).load_state_dict(saved.optimizer)
        except (RuntimeError, ValueError, KeyError) as error:
            why = " ".join(str(error).split())[:200]
            raise InvalidInput(f"the checkpoint does not fit this model or optimizer: {why}") from None
        run.journal = journal
        self._run = run
        for mark in saved.marks:
            self.declare(mark)

    def forget(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint that is no longer needed and end its journal: no copy of it goes on."""
        if self._run is not None and self._run.records.team.is_leader:
            Path(path).unlink(missing_ok=True)
            if self._run.journal is not None:
                self._run.journal.end()


def _marked(certificate: Certificate, marks: tuple[str, ...]) -> Certificate:
    return functools.reduce(Certificate.marked, marks, certificate)
