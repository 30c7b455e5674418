"""A trainer over a plan: progress, evaluation on public data, checkpoints."""

from __future__ import annotations

import functools
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import Adjacency
from tacit.torch.distributed import Team
from tacit.torch.objective import LossFunction, RecordLoss, check_model
from tacit.torch.plan import TrainingPlan
from tacit.torch.records import Records
from tacit.torch.trial import check_optimizer, try_evaluation, try_step

__all__ = ["Evaluation", "PrivateTrainer", "accuracy"]

PUBLIC_EVALUATION = "declared: evaluation data are public, or may be shown"
_READ = 512
Metric = Callable[[Tensor, Tensor], Tensor | float]
Ticks = Callable[[int, str], None]


def accuracy(output: Tensor, target: Tensor) -> float:
    """The share of records whose largest output is their target."""
    return float((output.argmax(dim=1) == target).double().mean())


@dataclass(frozen=True)
class Evaluation:
    """What the model does on public data after a step.

    Attributes:
        step: how many steps were taken.
        epoch: how often each record had been read by then, on average.
        metrics: by name.
    """

    step: int
    epoch: float
    metrics: dict[str, float] = field(default_factory=dict)


class PrivateTrainer:
    """Trains a PyTorch model under differential privacy, with a certificate.

    Formal guarantee: that of ``TrainingPlan``: all parameters after every step satisfy ``certificate_``.

    Assumptions: as there; and ``evaluate_on`` is public, or you have decided that its metrics may be seen.

    Args:
        model: any module that does not mix records (no BatchNorm); it is trained in place.
        loss_fn: ``loss_fn(output, target)``, e.g. ``nn.CrossEntropyLoss()``, or a ``RecordLoss``.
        epsilon: the target ε, or None if ``noise_multiplier`` is given.
        delta: δ; below 1/n.
        batch_size: expected batch size.
        epochs: how often each record is read, on average.
        optimizer: a function from parameters to a torch optimiser; SGD with the plan's rate and momentum if missing.
        checkpoint: a file to go on from if the run is interrupted: **as secret as the data** (it holds the noise key).
        checkpoint_every: steps between writes; once an epoch if missing.
        n_records: n, needed under add/remove only; else it is the length of the data.
        progress: a bar on stderr: True, False, or None for "if somebody is watching".
        **plan: anything else that ``TrainingPlan`` takes: clip_norm, learning_rate, momentum, weight_decay, strategy,
            bands, spectrum, noise_multiplier, adjacency, unit, chunk_size, vectorised, seed, budget, note.

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
        loss_fn: LossFunction | RecordLoss,
        *,
        epsilon: float | None = None,
        delta: float,
        batch_size: int,
        epochs: float,
        optimizer: Callable[[Iterator[nn.Parameter]], Optimizer] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        n_records: int | None = None,
        progress: bool | None = None,
        **plan: Any,
    ) -> None:
        check_model(model)
        if optimizer is not None and not callable(optimizer):
            raise InvalidInput("optimizer must be a function of the parameters, e.g. lambda p: torch.optim.Adam(p)")
        self.model, self.loss_fn = model, loss_fn
        self._settings = {"epsilon": epsilon, "delta": delta, "batch_size": batch_size, "epochs": epochs, **plan}
        self._make_optimizer = optimizer
        self._path = None if checkpoint is None else Path(checkpoint)
        self._every = None if checkpoint_every is None else _validate.positive_int(checkpoint_every=checkpoint_every)
        self._n = n_records
        self._progress = sys.stderr.isatty() if progress is None else progress
        self.plan_: TrainingPlan | None = None
        self._begun: list[TrainingPlan] = []
        self.history_: list[Evaluation] = []

    @property
    def certificate_(self) -> Certificate:
        """Of everything this trainer has begun: two fits of one model cost twice.

        Raises:
            InvalidInput: if nothing has been trained.
        """
        if not self._begun:
            raise InvalidInput("the trainer has no certificate yet: call fit (or make_plan(n) to see it before)")
        first, *more = (plan.certificate for plan in self._begun)
        return functools.reduce(operator.add, more, first)

    def make_plan(self, n_records: int) -> TrainingPlan:
        """The plan that ``fit`` would run on so many records: look at its certificate before spending anything.

        Args:
            n_records: how many.

        Returns:
            A plan of its own.

        Raises:
            InvalidInput: if an argument is unknown or out of range.
        """
        try:
            return TrainingPlan(n_records, **self._settings)
        except TypeError as error:
            raise InvalidInput(str(error).replace("TrainingPlan.__init__()", "PrivateTrainer")) from None

    def fit(
        self,
        data: object,
        *,
        evaluate_on: object = None,
        metrics: Mapping[str, Metric] | None = None,
        resume: bool = False,
    ) -> PrivateTrainer:
        """Train to the end of the plan.

        Args:
            data: private: a tuple of tensors (inputs…, target), or a dataset with ``len`` and ``[i]`` (a list of tuples
                is one). Model and loss are tried on zeros of the tensors' shapes before anything is charged; a dataset
                is not read before.
            evaluate_on: public data of the same form; evaluated after each epoch.
            metrics: functions of (output, target); accuracy if the target holds integers.
            resume: go on from ``checkpoint``, which must exist: a run that has ended removes its own.

        Returns:
            The trainer.

        Raises:
            InvalidInput: if arguments do not fit together, or there is no checkpoint to go on from.
            MechanismMismatch: if the checkpoint belongs to other data or settings.
        """
        self._check_file(resume)
        records = Records(data)
        shown = None if evaluate_on is None else Records(evaluate_on)
        plan, optimizer = self.make_plan(self._size(records)), self._own_optimizer()
        metrics = self._tried(plan, records, shown, metrics)
        self.plan_, self.history_ = plan, []
        if resume and self._path is not None:
            plan.restore(self._path, self.model, records, optimizer=optimizer)
            if self._begun and self._begun[-1].steps_done < self._begun[-1].n_steps:
                self._begun.pop()  # the same run goes on
        self._run(plan, records, optimizer, shown, metrics)
        if self._path is not None:
            plan.forget(self._path)
        return self

    def _check_file(self, resume: bool) -> None:
        """A run is begun where there is no checkpoint, and gone on with where there is one: never by mistake."""
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

    def _tried(
        self, plan: TrainingPlan, records: Records, shown: Records | None, metrics: Mapping[str, Metric] | None
    ) -> Mapping[str, Metric]:
        """The metrics to show, after whatever can fail was tried on made-up records: nothing is charged yet."""
        if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
            raise InvalidInput("metrics must be a dict of functions of (output, target): metrics={name: function}")
        how: dict[str, Any] = {"chunk_size": plan.chunk_size, "vectorised": plan.vectorised}
        try_step(self.model, self.loss_fn, records, **how, mode=_train)
        if shown is None:
            return metrics or {}
        try_evaluation(self.model, shown, accuracy if metrics is None else None)
        return {"accuracy": accuracy} if metrics is None else metrics

    def _size(self, records: Records) -> int:
        if Adjacency.parse(self._settings.get("adjacency", Adjacency.ZERO_OUT)) is not Adjacency.ADD_REMOVE:
            if self._n is not None and self._n != len(records):
                raise InvalidInput(f"n_records is {self._n}, the data holds {len(records)}: leave it out")
            return len(records)
        if self._n is None:
            raise InvalidInput(
                "under add/remove the number of records is private: pass n_records, a public guess of it"
            )
        return self._n

    def _own_optimizer(self) -> Optimizer | None:
        if self._make_optimizer is None:
            return None
        optimizer = self._make_optimizer(p for p in self.model.parameters() if p.requires_grad)
        check_optimizer(optimizer, self.model)
        return optimizer

    def _run(
        self,
        plan: TrainingPlan,
        records: Records,
        optimizer: Optimizer | None,
        shown: Records | None,
        metrics: Mapping[str, Metric],
    ) -> None:
        epoch = max(1, round(plan.n_records / plan.batch_size))
        every = self._every or epoch
        turns = plan.batches(records) if plan.steps_done < plan.n_steps else iter(())
        self._begun.append(plan)
        _train(self.model)
        try:
            with _bar(self._progress and Team().leads, plan.n_steps) as tick:
                for batch in turns:
                    plan.step(self.model, self.loss_fn, batch, optimizer=optimizer)
                    done = batch.step + 1
                    shows = shown is not None and (done % epoch == 0 or done == plan.n_steps)
                    if shows:
                        plan.declare(PUBLIC_EVALUATION)
                    if self._path is not None and done % every == 0 and done < plan.n_steps:
                        plan.save(self._path, self.model, optimizer=optimizer)
                    if shown is not None and shows:
                        self.history_.append(Evaluation(done, done / epoch, self._evaluate(shown, metrics)))
                    tick(done, _words(self.history_))
        except KeyboardInterrupt:
            if self._path is not None and plan.steps_done and plan.settled:
                plan.save(self._path, self.model, optimizer=optimizer)
            raise
        finally:
            self.model.eval()

    def _evaluate(self, shown: Records, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Means over records, chunk by chunk, in evaluation mode."""
        like = next(self.model.parameters())
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        totals: dict[str, float] = {}
        with torch.no_grad():
            for first in range(0, len(shown), _READ):
                index = range(first, min(first + _READ, len(shown)))
                parts = [p.to(like) if p.is_floating_point() else p.to(like.device) for p in shown.take(index)]
                output, target = self.model(*parts[:-1]), parts[-1]
                for name, metric in metrics.items():
                    totals[name] = totals.get(name, 0.0) + float(metric(output, target)) * len(target)
        for module, training in modes:
            module.training = training
        return {name: value / len(shown) for name, value in totals.items()}


def _train(model: nn.Module) -> None:
    """Training mode, but for what is frozen on purpose: layers that normalise over a batch stay in evaluation."""
    frozen = [module for module in model.modules() if isinstance(module, _BatchNorm) and not module.training]
    if not model.training:
        model.train()
    for module in frozen:
        module.eval()


def _words(history: list[Evaluation]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in history[-1].metrics.items()) if history else ""


@contextmanager
def _bar(watched: bool, steps: int) -> Iterator[Ticks]:
    """Steps only: what the records do to the model is not shown."""
    if not watched:
        yield lambda done, words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("private training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=steps, words="")
        yield lambda done, words: progress.update(task, completed=done, words=words)
