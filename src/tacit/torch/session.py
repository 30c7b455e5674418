"""One run of a plan: the records, the channel in front of them, and the steps of the parameters."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from tacit.accounting import Certificate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.run import Channel, Streams
from tacit.torch import checkpoint as files
from tacit.torch.distributed import Team
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.journal import Journal
from tacit.torch.objective import LossFunction, Objective, RecordLoss
from tacit.torch.records import Records, seeded
from tacit.torch.trial import check_optimizer, try_step

if TYPE_CHECKING:
    from tacit.torch.plan import TrainingPlan

__all__ = ["RECORDS_APART", "Session"]

RECORDS_APART = "declared: model and loss_fn carry nothing from record to record through globals or closures"
"""Attributes are watched; what custom code keeps elsewhere is the user's word."""


class Session:
    """What is alive while a plan runs. Only the leader of a team has a channel.

    Args:
        plan: its public numbers.
        records: the private records.
        saved: where a restored run stood.

    Attributes:
        entry: the number of the ledger's entry, None without a ledger.
        marks: what the certificate must say besides.
    """

    def __init__(self, plan: TrainingPlan, records: Records, saved: files.Saved | None = None) -> None:
        # Weak, because the plan holds the session: else records would stay in memory until cycles are collected.
        self._plan: TrainingPlan = weakref.proxy(plan)
        self._records, self._team = records, Team()
        self._fingerprint: bytes | None = None
        if self._team.size > 1:
            self._team.agree(bytes.fromhex(plan.digest), "settings")
            self._team.agree(self._data_digest(), "data")
        self._channel: Channel | None = None
        if self._team.leads:
            streams, resume = (None, saved.channel) if saved else (Streams(plan.seed), None)
            self._channel = Channel(plan.noise.certificate, len(records), streams=streams, resume=resume)
        self._moved = saved.channel.step if saved else 0
        self.entry = saved.entry if saved else None
        self.marks: tuple[str, ...] = saved.marks if saved else ()
        self._sum: tuple[nn.Module, object, Objective, PerRecordGradients] | None = None
        self._optimizer: Optimizer | None = None
        self._journal: Journal | None = None

    @classmethod
    def open(cls, plan: TrainingPlan, records: Records) -> Session:
        """A new run: the ledger is charged first."""
        entry = None
        if plan.budget is not None and Team().leads:
            entry = plan.budget.reserve(plan.certificate, plan.note)
        session = cls(plan, records)
        session.entry = entry
        return session

    @property
    def step(self) -> int:
        """The next one: as the channel counts, whatever became of the parameters."""
        return self._moved if self._channel is None else self._plan.n_steps - self._channel.steps_left

    @property
    def settled(self) -> bool:
        """Whether the parameters have made every step that the channel has released."""
        return self._moved == self.step

    @property
    def certificate(self) -> Certificate | None:
        """The channel's own, marked if its noise is seeded; None for those that follow."""
        return None if self._channel is None else self._channel.certificate

    def holds(self, data: object) -> bool:
        """Whether these are the records of this run."""
        if data is self._records or self._records.wraps(data):
            return True
        other = data if isinstance(data, Records) else Records(data)
        return len(other) == len(self._records) and other.fingerprint() == self._data_digest()

    def _data_digest(self) -> bytes:
        if self._fingerprint is None:
            self._fingerprint = self._records.fingerprint()
        return self._fingerprint

    # -- a step ---------------------------------------------------------------------------------------------

    def advance(self, model: nn.Module, loss_fn: LossFunction | RecordLoss, optimizer: Optimizer | None) -> None:
        """Release the noisy sum of clipped gradients and move the parameters along it.

        Args:
            model: its trainable parameters move.
            loss_fn: of records.
            optimizer: instead of SGD.
        """
        check_optimizer(optimizer, model)
        objective, total = self._summed(model, loss_fn)
        flat = objective.flatten(objective.trainable())
        theta = flat.to(torch.promote_types(flat.dtype, torch.float32)).cpu().numpy()
        step = self.step
        with self._dice(objective.device()):
            if self._channel is not None:
                noisy = torch.from_numpy(self._channel.release(total, theta[None])[0])
                if self._journal is not None:  # before anything is made of it
                    self._journal.check(step, self._channel.history)
            else:
                total.follow(theta)
                noisy = torch.empty(objective.size, dtype=torch.float64)
        gradient = self._team.told(noisy) / self._plan.batch_size
        self._move(model, objective, gradient, optimizer, step)
        self._moved = step + 1

    @contextlib.contextmanager
    def _dice(self, device: torch.device) -> Iterator[None]:
        """Generators seeded secretly for this step: dropout and augmentation repeat on resuming, and nowhere else.

        Secret, because theorems about sampled batches need masks that do not depend on who else is in the batch: which
        is so on average over masks that nobody knows, not for a fixed seed.
        """
        seed = torch.zeros(1, dtype=torch.int64)
        if self._channel is not None:
            seed[0] = int(self._channel.dice().integers(2**62))
        with seeded(int(self._team.told(seed)) + self._team.rank, device):
            yield

    def _summed(self, model: nn.Module, loss_fn: LossFunction | RecordLoss) -> tuple[Objective, PerRecordGradients]:
        if self._sum is None or self._sum[0] is not model or self._sum[1] is not loss_fn:
            objective, plan = Objective(model, loss_fn), self._plan
            if self._sum is None or self._sum[0] is not model:  # before the channel hears of its size
                try_step(model, loss_fn, self._records, chunk_size=plan.chunk_size, vectorised=plan.vectorised)
            total = PerRecordGradients(
                objective,
                self._records,
                plan.clip_norm,
                chunk_size=plan.chunk_size,
                vectorised=plan.vectorised,
                team=self._team,
            )
            if self._sum is None:
                for parameter in model.parameters():  # everybody starts where the leader starts
                    self._team.told(parameter.data)
            self._sum = (model, loss_fn, objective, total)
            if not total.keeps_apart and RECORDS_APART not in self.marks:
                self.marks = (*self.marks, RECORDS_APART)
        _, _, objective, total = self._sum
        if [n for n, p in model.named_parameters() if p.requires_grad] != objective.names:
            raise MechanismMismatch("the trainable parameters changed during the run: freeze them before it begins")
        return objective, total

    def _move(
        self, model: nn.Module, objective: Objective, gradient: Tensor, optimizer: Optimizer | None, step: int
    ) -> None:
        """Post-processing: θ ← (1 − ηλ)θ, then the optimiser's step along the noisy mean gradient."""
        parts, named = objective.unflatten(gradient), dict(model.named_parameters())
        for name, part in parts.items():
            named[name].grad = part.to(named[name])
        if optimizer is None:
            optimizer = self._own(model)
            rate = float(self._plan.learning_rates[step])
            for group in optimizer.param_groups:
                group["lr"] = rate
            with torch.no_grad():
                for name in parts if self._plan.weight_decay else ():
                    named[name].mul_(1 - rate * self._plan.weight_decay)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _own(self, model: nn.Module) -> Optimizer:
        """The plan's SGD, made anew if it holds other parameters than the model's."""
        trainable = [p for p in model.parameters() if p.requires_grad]
        held = [] if self._optimizer is None else self._optimizer.param_groups[0]["params"]
        if self._optimizer is None or [id(p) for p in held] != [id(p) for p in trainable]:
            self._optimizer = SGD(trainable, lr=float(self._plan.learning_rates[0]), momentum=self._plan.momentum)
        return self._optimizer

    # -- files ----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], model: nn.Module, optimizer: Optimizer | None) -> None:
        """Write a checkpoint (the leader does).

        Args:
            path: where to.
            model: as it stands.
            optimizer: one of the user's own.

        Raises:
            MechanismMismatch: in the middle of a step: the last checkpoint is the one to go on from.
        """
        if self._channel is None:
            return
        if not self.settled:
            raise MechanismMismatch("a step was interrupted half way: go on from the last checkpoint")
        saved = files.Saved(
            plan=self._plan.digest,
            data=self._data_digest(),
            channel=self._channel.checkpoint(),
            model=model.state_dict(),
            optimizer=(optimizer or self._own(model)).state_dict(),
            entry=self.entry,
            marks=self.marks,
        )
        files.write(Path(path), saved)
        self._journal = Journal(Path(path))
        self._journal.begin(self.step)

    def forget(self, path: Path) -> None:
        """Remove a checkpoint at the end: its key is of no use to anybody but an attacker."""
        if self._team.leads:
            path.unlink(missing_ok=True)
            Journal(path).remove()

    @classmethod
    def restore(
        cls,
        plan: TrainingPlan,
        records: Records,
        path: str | os.PathLike[str],
        model: nn.Module,
        optimizer: Optimizer | None,
    ) -> Session:
        """Go on from a checkpoint.

        Args:
            plan: made with the same settings.
            records: the same ones.
            path: of the checkpoint.
            model: gets the saved parameters.
            optimizer: one of the user's own gets its state.

        Returns:
            The session, at the saved step.

        Raises:
            MechanismMismatch: if the checkpoint belongs to other settings or data.
            InvalidInput: if the model or the optimiser does not fit it.
        """
        saved = files.read(Path(path))
        if saved.plan != plan.digest:
            raise MechanismMismatch(
                "the checkpoint belongs to other settings (also: chunk_size, threads, PyTorch): make the plan as it was"
            )
        session = cls(plan, records, saved)
        if session._data_digest() != saved.data:
            raise MechanismMismatch("the checkpoint belongs to other data (or another order of it): nothing was read")
        if plan.budget is not None and saved.entry is None and session._team.leads:
            session.entry = plan.budget.reserve(plan.certificate, plan.note)  # begun without this ledger
        try:
            model.load_state_dict(saved.model)
            (optimizer or session._own(model)).load_state_dict(saved.optimizer)
        except (RuntimeError, ValueError, KeyError) as error:
            why = " ".join(str(error).split())[:200]
            raise InvalidInput(f"the checkpoint does not fit this model or optimizer: {why}") from None
        session._journal = Journal(Path(path))
        return session
