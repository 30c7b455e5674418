"""A trainer that runs a plan: progress, evaluation on public data, checkpoints."""

from __future__ import annotations

import copy
import functools
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Arithmetic
from tacit.noise import Optimum, Strategy
from tacit.torch.callbacks import Callback, Evaluation, Progress, progress_bar
from tacit.torch.calling import predicted
from tacit.torch.curvature import Spectrum
from tacit.torch.gradients import is_record_local
from tacit.torch.items import Collate
from tacit.torch.marks import PUBLIC_SHAPES, RECORDS_APART
from tacit.torch.objective import LossFunction, RecordLoss, check_model, check_optimizer
from tacit.torch.plan import TrainingPlan
from tacit.torch.records import Records, like_parameters
from tacit.torch.settings import LearningRate, wants_pilot
from tacit.torch.trial import try_evaluation, try_step

__all__ = ["PUBLIC_EVALUATION", "PrivateTrainer", "accuracy"]

PUBLIC_EVALUATION = "declared: evaluation data are public, or may be shown"
_READ = 512  # evaluation records read at once
Metric = Callable[[Tensor, Tensor], Tensor | float]
Metrics = Mapping[str, Metric]


def accuracy(output: Tensor, target: Tensor) -> float:
    """The share of records whose largest output is their target."""
    return float((output.argmax(dim=1) == target).double().mean())


class PrivateTrainer:
    """Trains a PyTorch model under differential privacy, with a certificate.

    Formal guarantee: that of ``TrainingPlan``: all parameters after every step satisfy ``certificate_``.

    Assumptions: those of ``TrainingPlan``; and ``evaluate_on`` is public, or the user has decided that its metrics may
    be seen.

    Args:
        model: any module that does not mix records (no BatchNorm); it is trained in place.
        loss_fn: ``loss_fn(output, target)``, e.g. ``nn.CrossEntropyLoss()``, or a ``RecordLoss``; None takes the
            model's own loss, the ``loss`` (attribute or key) of its output.
        epsilon: the target ε, or None if ``noise_multiplier`` is given.
        delta: δ; below 1/n.
        batch_size: expected batch size; 20 epochs in 400 steps if nothing is given (``defaults``).
        epochs: how often each record is read, on average.
        steps: number of steps, instead of epochs.
        clip_norm: the largest norm of the gradient that one record contributes; found by a pilot release if missing.
        learning_rate: a number, one per step, or a function of the step; by a documented rule if missing.
        momentum: in [0, 1).
        weight_decay: decoupled: parameters shrink by 1 − learning_rate·weight_decay at every step.
        optimizer: a function from parameters to a torch optimiser, instead of SGD with the settings above.
        scheduler: a function from that optimiser to a torch scheduler, which makes a step after each step.
        strategy: "bandmf", "dpsgd", "noisecurve", a ``Strategy`` or an ``Optimum``.
        bands: number of steps that noise is spread over; chosen for (ε, δ) if missing.
        spectrum: eigenvalues of a public Hessian, for "noisecurve".
        noise_multiplier: noise over clip_norm, instead of epsilon.
        adjacency: the neighbouring relation.
        n_records: n, needed under add/remove only (a public guess); otherwise it is the length of the data.
        unit: whose data one record is.
        chunk_size: how many per-record gradients are computed at once.
        vectorised: False for models that vmap cannot batch.
        pilot: whether to release a histogram of the norms of gradients at the start, for a small share of ε, from which
            missing clip and rate follow; if missing, where one of them is missing.
        checkpoint: a file to resume from if the run is interrupted: **as secret as the data** (it contains the noise
            key). Its journal lies beside it, and in the state directory of the user.
        checkpoint_every: number of steps between checkpoints; one epoch if missing.
        ledger: a ``tacit.Ledger``, charged before any record is read.
        note: free text for the ledger.
        random_state: a seed that makes the run repeatable and *not private*.
        arithmetic: "float", or "exact" (``TrainingPlan``).
        progress: show a progress bar on stderr; None shows it if stderr is a terminal.

    >>> import torch
    >>> X = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    >>> y = (X[:, 0] > 0).long()
    >>> model = torch.nn.Linear(5, 2)
    >>> trainer = PrivateTrainer(
    ...     model, torch.nn.CrossEntropyLoss(), epsilon=4.0, delta=1e-4, batch_size=80, epochs=4, bands=2
    ... )
    >>> trainer.fit((X, y)).certificate_.epsilon(1e-4) <= 4.0
    True
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction | RecordLoss | None = None,
        *,
        epsilon: float | None = None,
        delta: float,
        batch_size: int | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        clip_norm: float | None = None,
        learning_rate: LearningRate | None = None,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        optimizer: Callable[[Iterator[nn.Parameter]], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], Any] | None = None,
        strategy: str | Strategy | Optimum = "bandmf",
        bands: int | None = None,
        spectrum: ArrayLike | Spectrum | None = None,
        noise_multiplier: float | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        n_records: int | None = None,
        unit: str = "record",
        chunk_size: int | None = None,
        vectorised: bool = True,
        pilot: bool | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        ledger: Ledger | None = None,
        note: str = "",
        random_state: int | None = None,
        arithmetic: Arithmetic | str = Arithmetic.FLOAT,
        progress: bool | None = None,
    ) -> None:
        check_model(model)
        if optimizer is not None and not callable(optimizer):
            raise InvalidInput("optimizer must be a function of the parameters, e.g. lambda p: torch.optim.Adam(p)")
        if scheduler is not None and (optimizer is None or not callable(scheduler)):
            raise InvalidInput(
                "scheduler must be a function of the optimizer, given with optimizer=: for the plan's own SGD pass "
                "learning_rate= as a function of the step"
            )
        if isinstance(loss_fn, type):
            raise InvalidInput(f"loss_fn is the class {loss_fn.__name__}: make one of it, e.g. {loss_fn.__name__}()")
        if loss_fn is not None and not (callable(loss_fn) or isinstance(loss_fn, RecordLoss)):
            raise InvalidInput("loss_fn must be callable as loss_fn(output, target), or a RecordLoss")
        self.model, self.loss_fn = model, loss_fn
        self._plan_for = functools.partial(
            TrainingPlan,
            epsilon=epsilon,
            delta=delta,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            clip_norm=clip_norm,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            strategy=strategy,
            bands=bands,
            spectrum=spectrum,
            noise_multiplier=noise_multiplier,
            adjacency=adjacency,
            unit=unit,
            chunk_size=chunk_size,
            vectorised=vectorised,
            pilot=wants_pilot(pilot, epsilon, clip_norm, learning_rate if optimizer is None else 1.0),
            ledger=ledger,
            note=note,
            random_state=random_state,
            arithmetic=arithmetic,
        )
        self._make_optimizer, self._make_scheduler = optimizer, scheduler
        self._adjacency, self._n = adjacency, n_records
        self._path = None if checkpoint is None else Path(checkpoint)
        self._every = None if checkpoint_every is None else _validate.positive_int(checkpoint_every=checkpoint_every)
        self._progress = sys.stderr.isatty() if progress is None else progress
        self.plan_: TrainingPlan | None = None
        self._begun: list[TrainingPlan] = []
        self.history_: list[Evaluation] = []

    @property
    def certificate_(self) -> Certificate:
        """The certificate of everything this trainer has begun: two fits of one model cost twice.

        Raises:
            InvalidInput: if nothing has been trained.
        """
        if not self._begun:
            raise InvalidInput("the trainer has no certificate yet: call fit (or make_plan(n) to see it before)")
        first, *more = (plan.certificate for plan in self._begun)
        return functools.reduce(operator.add, more, first)

    def make_plan(self, n_records: int) -> TrainingPlan:
        """The plan that ``fit`` would run: its certificate can be read before anything is spent.

        Args:
            n_records: number of records.

        Returns:
            A new plan.
        """
        return self._plan_for(n_records)

    def fit(
        self,
        data: object,
        *,
        evaluate_on: object = None,
        metrics: Metrics | None = None,
        callbacks: Sequence[Callback] = (),
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        resume: bool = False,
    ) -> PrivateTrainer:
        """Train to the end of the plan.

        Args:
            data: private: a tuple of tensors (inputs…, target), a dict of tensors (a tokenizer's output; the model is
                called with its entries by name), or a dataset with ``len`` and ``[i]`` of tuples, dicts or dataclasses
                (a list of these is one). Model and loss are tried on zeros of the records' shapes before anything is
                charged; the shapes of a dataset's first items are public. A record that fails later counts as zero.
            evaluate_on: public data of the same form; evaluated after each epoch.
            metrics: functions of (output, target) by name; accuracy if the target holds integers. The output is its
                ``logits`` if it has some.
            callbacks: functions of ``Progress``, called after every step; training stops when one returns True
                (``EarlyStopping``). They see public numbers only.
            collate_fn: makes a batch of a list of items of a dataset; called with one item at a time.
            num_workers: how many processes read the items of a dataset.
            resume: continue from ``checkpoint``, which must exist: a run that has ended removes its own.

        Returns:
            The trainer.

        Raises:
            InvalidInput: if arguments do not fit together, or there is no checkpoint to resume from.
            MechanismMismatch: if the checkpoint belongs to other data or settings.
        """
        self._check_file(resume)
        how: dict[str, Any] = {"collate_fn": collate_fn, "num_workers": num_workers}
        records = data if isinstance(data, Records) else Records(data, **how)
        shown = evaluate_on if isinstance(evaluate_on, Records) or evaluate_on is None else Records(evaluate_on, **how)
        plan, optimizer = self.make_plan(self._size(records)), self._new_optimizer()
        scheduler = self._new_scheduler(optimizer)
        if not (isinstance(callbacks, Sequence) and all(map(callable, callbacks))):
            raise InvalidInput("callbacks must be a list of functions of the progress: callbacks=[function]")
        metrics = self._try(plan, records, shown, metrics)
        self.plan_, self.history_ = plan, []
        if records.empty_like() is None:
            plan.declare(PUBLIC_SHAPES)
        if not is_record_local(self.model, plan.bind(self.model, self.loss_fn, records)):
            plan.declare(RECORDS_APART)
        if shown is not None:
            plan.declare(PUBLIC_EVALUATION)
        if resume and self._path is not None:
            plan.restore(self._path, self.model, records, optimizer=optimizer)
            if self._begun and self._begun[-1].steps_done < self._begun[-1].n_steps:
                self._begun.pop()  # the restored plan continues this run
            _caught_up(scheduler, optimizer, plan.steps_done)
        self._run(plan, records, optimizer, scheduler, shown, metrics, callbacks)
        if self._path is not None:
            plan.forget(self._path)
        return self

    def _check_file(self, resume: bool) -> None:
        """Require ``resume=True`` exactly when a checkpoint exists, so that no run is repeated by accident."""
        if self._path is None:
            if resume:
                raise InvalidInput("resume needs a checkpoint file: pass checkpoint= to the trainer")
        elif resume and not self._path.exists():
            raise InvalidInput(
                f"there is no checkpoint {str(self._path)!r} to go on from (a run that has ended removes its own): "
                "check the name, or leave out resume to begin a run, which spends its budget"
            )
        elif not resume and self._path.exists():
            raise MechanismMismatch(
                f"{str(self._path)!r} holds an unfinished run: fit(..., resume=True) goes on with it; "
                "remove it to start again (and to spend the budget again)"
            )

    def _try(self, plan: TrainingPlan, records: Records, shown: Records | None, metrics: Metrics | None) -> Metrics:
        """Try everything that can fail on made-up records, before anything is charged; returns the metrics to show."""
        if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
            raise InvalidInput("metrics must be a dict of functions of (output, target): metrics={name: function}")
        records.empty_like(look=True)  # before the loss is bound, because a dataset's names are not known yet
        try_step(
            self.model,
            plan.bind(self.model, self.loss_fn, records),
            records,
            chunk_size=plan.chunk_size,
            vectorised=plan.vectorised,
            mode=_set_training,
            look=True,
        )
        if shown is None:
            return metrics or {}
        try_evaluation(self.model, self.loss_fn, shown, accuracy if metrics is None else None)
        return {"accuracy": accuracy} if metrics is None else metrics

    def _size(self, records: Records) -> int:
        if Adjacency.parse(self._adjacency) is not Adjacency.ADD_REMOVE:
            if self._n is not None and self._n != len(records):
                raise InvalidInput(f"n_records is {self._n}, the data holds {len(records)}: leave it out")
            return len(records)
        if self._n is None:
            raise InvalidInput(
                "under add/remove the number of records is private: pass n_records, a public guess of it"
            )
        return self._n

    def _new_optimizer(self) -> Optimizer | None:
        if self._make_optimizer is None:
            return None
        optimizer = self._make_optimizer(p for p in self.model.parameters() if p.requires_grad)
        check_optimizer(optimizer, self.model)
        return optimizer

    def _new_scheduler(self, optimizer: Optimizer | None) -> Any:
        if self._make_scheduler is None or optimizer is None:
            return None
        scheduler = self._make_scheduler(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau) or not callable(getattr(scheduler, "step", None)):
            raise InvalidInput(
                "scheduler must make torch schedulers whose step() takes no argument, e.g. lambda o: "
                "torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=100)"
            )
        return scheduler

    def _run(
        self,
        plan: TrainingPlan,
        records: Records,
        optimizer: Optimizer | None,
        scheduler: Any,
        shown: Records | None,
        metrics: Metrics,
        callbacks: Sequence[Callback],
    ) -> None:
        epoch = max(1, round(plan.n_records / plan.batch_size))
        every = self._every or epoch
        batches = plan.batches(records) if plan.steps_done < plan.n_steps else iter(())
        self._begun.append(plan)
        _set_training(self.model)
        try:
            with progress_bar(self._progress and records.team.is_leader, plan.n_steps) as update:
                for batch in batches:
                    plan.step(self.model, self.loss_fn, batch, optimizer=optimizer)
                    if scheduler is not None:
                        scheduler.step()
                    done, found = batch.step + 1, None
                    if self._path is not None and done % every == 0 and done < plan.n_steps:
                        plan.save(self._path, self.model, optimizer=optimizer)
                    if shown is not None and (done % epoch == 0 or done == plan.n_steps):
                        found = Evaluation(done, done / epoch, self._evaluate(shown, metrics))
                        self.history_.append(found)
                    update(done, self.history_)
                    if self._stops(Progress(plan, done, plan.n_steps, found), callbacks, records):
                        break
        except KeyboardInterrupt:
            if self._path is not None and plan.steps_done and plan.in_sync:
                plan.save(self._path, self.model, optimizer=optimizer)
            raise
        finally:
            self.model.eval()

    @staticmethod
    def _stops(progress: Progress, callbacks: Sequence[Callback], records: Records) -> bool:
        """Whether a callback of the leader wants to stop; every callback is called."""
        if not callbacks:
            return False
        answers = [callback(progress) is True for callback in callbacks]
        return bool(records.team.broadcast(torch.tensor([any(answers)])))

    def _evaluate(self, shown: Records, metrics: Metrics) -> dict[str, float]:
        """Means of the metrics over records, chunk by chunk, in evaluation mode."""
        like = next(self.model.parameters())
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        totals: dict[str, float] = {}
        with torch.no_grad():
            for first in range(0, len(shown), _READ):
                chunk = shown.take(range(first, min(first + _READ, len(shown))))
                parts = like_parameters(chunk, like)
                output, target = predicted(self.model, self.loss_fn, shown.names, parts)
                for name, metric in metrics.items():
                    totals[name] = totals.get(name, 0.0) + float(metric(output, target)) * len(target)
        for module, training in modes:
            module.training = training
        return {name: value / len(shown) for name, value in totals.items()}


def _caught_up(scheduler: Any, optimizer: Optimizer | None, steps: int) -> None:
    """Bring a new scheduler to where it was after some steps, for an optimiser whose state was restored."""
    if scheduler is None or optimizer is None:
        return
    state = copy.deepcopy(optimizer.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = group.get("initial_lr", group["lr"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not seen the optimiser's steps
        for _ in range(steps):
            scheduler.step()
    optimizer.load_state_dict(state)


def _set_training(model: nn.Module) -> None:
    """Training mode, except for batch normalisation that the user has frozen by ``.eval()``."""
    frozen = [module for module in model.modules() if isinstance(module, _BatchNorm) and not module.training]
    if not model.training:
        model.train()
    for module in frozen:
        module.eval()
