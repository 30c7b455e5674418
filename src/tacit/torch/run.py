"""One run of a training plan over private records: its session, its pilot release and its journal."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import MechanismMismatch
from tacit.ledger.journal import Journal
from tacit.release import Checkpoint, Session, open_session
from tacit.torch import checkpoint as files
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.pilot import GradientNorms, median_norm
from tacit.torch.records import Records, seeded

if TYPE_CHECKING:
    from tacit.torch.plan import TrainingPlan

__all__ = ["Run", "Start"]


@dataclass(frozen=True, eq=False)
class Start:
    """What a run fixed at its first step: public.

    Attributes:
        median_norm: of the gradients at the start, as the pilot release found it; None without one.
        clip_norm: C.
        learning_rates: η of every step.
    """

    median_norm: float | None
    clip_norm: float
    learning_rates: NDArray[np.float64]


class Run:
    """One run over private records, in one process or a team.

    In a team only the leader has a session; the other processes contribute to each sum and receive the result.

    Args:
        plan: the certified settings; not kept.
        records: the private records.
        saved: the checkpoint to resume from.

    Attributes:
        records: as above.
        secret: under which the journal is kept.
        journal: what was released, None before the first checkpoint.
        moved: number of steps that the parameters have made.
        median_norm: what the pilot release found, None before it or without one.
    """

    def __init__(self, plan: TrainingPlan, records: Records, saved: files.Saved | None = None) -> None:
        team = records.team
        self.records, self._steps = records, plan.n_steps
        self.journal: Journal | None = None
        self.secret = secrets.token_bytes(32) if saved is None else saved.run
        self.moved = self._released = 0 if saved is None else saved.channel.step
        if saved is not None and records.fingerprint() != saved.data:
            raise MechanismMismatch("the checkpoint belongs to other data (or another order of it): nothing was read")
        self.median_norm = None if saved is None else saved.median_norm
        self._session: Session | None = None
        if team.is_leader:  # the ledger is charged before a record is read
            self._session = open_session(
                plan.noise.certificate,
                records,
                ledger=plan.ledger,
                random_state=None if saved is not None else plan.random_state,
                marks=plan.marks if saved is None else saved.marks,
                note=plan.note,
                resume=None if saved is None else saved.channel,
                entry=None if saved is None else saved.entry,
            )
        if team.size > 1:
            team.agree(bytes.fromhex(plan.digest), "settings")
            team.agree(records.fingerprint(), "data")

    @property
    def entry(self) -> int | None:
        """Number of the ledger's entry, None without a ledger, or in a process that follows."""
        return None if self._session is None else self._session.entry

    @property
    def step(self) -> int:
        """Number of releases made, as counted by the session."""
        if self._session is None:
            return self._released
        return self._steps - self._session.steps_left()

    def release_pilot(self, query: GradientNorms, theta: NDArray[Any]) -> None:
        """Release the norms of gradients at the start: before the first step, once.

        Args:
            query: counts records by their norm.
            theta: the initial parameters.

        Raises:
            MechanismMismatch: if it was released, or the run was resumed.
        """
        if self.median_norm is not None or self.step:
            raise MechanismMismatch("the pilot release is made once, before the first step: make another plan")
        found = torch.zeros(1, dtype=torch.float64)
        with self._step_rng(query.device):
            if self._session is None:
                query.contribute(self.records, theta)
            else:
                sigma = self._session.noise_std(query, part=1)
                found[0] = median_norm(self._session.release(query, theta, part=1), sigma)
        self.median_norm = float(self.records.team.broadcast(found))

    def release(self, query: PerRecordGradients, *, exact: bool) -> Tensor:
        """The noisy sum over the batch of the next step, the same in every process."""
        step = self.step
        with self._step_rng(query.objective.device()):
            noisy = self._exact_sum(query) if exact else self._sum_in_place(query)
            if self._session is not None and self.journal is not None:  # before anything is computed from the release
                self.journal.check(step + 1, self._session.history())
        self._released = step + 1
        return self.records.team.broadcast(noisy)

    def _sum_in_place(self, query: PerRecordGradients) -> Tensor:
        place = query.place()
        if self._session is None:
            query.add_up(self.records, place.at, np.empty(0, np.intp), place.sums)
        else:
            self._session.release_in_place(query, place)
        return place.sums

    def _exact_sum(self, query: PerRecordGradients) -> Tensor:
        theta = query.objective.theta()
        if self._session is None:
            query.contribute(self.records, theta)
            return torch.empty(query.size, dtype=torch.float64)
        return torch.from_numpy(self._session.release(query, theta))

    @contextmanager
    def _step_rng(self, device: torch.device) -> Iterator[None]:
        """Seed the global generators secretly for this step, so that dropout and augmentation repeat on resuming.

        The seed is secret because theorems about sampled batches need masks that do not depend on the other members of
        the batch. This holds on average over unknown masks, not for a known seed.
        """
        team, seed = self.records.team, torch.zeros(1, dtype=torch.int64)
        if self._session is not None:
            seed[0] = int(self._session.step_rng().integers(2**62))
        with seeded(int(team.broadcast(seed)) + team.rank, device):
            yield

    def checkpoint(self) -> Checkpoint:
        """Position and key of the leader's session: **as secret as the data**."""
        assert self._session is not None
        return self._session.checkpoint()
