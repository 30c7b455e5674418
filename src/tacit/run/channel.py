"""The channel: the one door to the records. It owns batches, counts and noise, and stops at the certified number."""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import BudgetExhausted, MechanismMismatch
from tacit.factorisation import StreamingNoise, StreamState
from tacit.mechanism import Adjacency, CorrelatedNoise, FullBatch, Independent, Mechanism
from tacit.run.clipped_sum import REGISTRY, Bounded, ClippedSum
from tacit.run.randomness import SEEDED, Streams
from tacit.run.sweep import SWEEPS, Sweep

__all__ = ["Channel", "Checkpoint"]

Array = NDArray[np.float64]
State = TypeVar("State")


@dataclass(frozen=True)
class Checkpoint:
    """What a channel needs to go on: **as secret as the data**, because it holds the noise key.

    Attributes:
        digest: of the certificate it belongs to.
        key: of the noise streams.
        seeded: whether the run was seeded (and so not private).
        step: the next step.
        release: the next release within it.
        rows: what correlated noise keeps of its earlier rows.
        stream: sensitivity and size that correlated noise was drawn for.
        history: names everything that was released so far.
    """

    digest: str
    key: bytes
    seeded: bool
    step: int
    release: int
    rows: Array | None = None
    stream: tuple[float, int] | None = None
    history: bytes = b""

    def __repr__(self) -> str:
        return f"Checkpoint(step={self.step}, release={self.release})"  # never the key


def noise_std(mechanism: Mechanism, total: Bounded, release: int) -> float:
    """σ = Δ/ratio of the release-th release."""
    per_step = len(mechanism.ratio) == mechanism.steps
    ratio = mechanism.ratio[release // mechanism.releases if per_step else release]
    if ratio == 0:
        raise MechanismMismatch("a release with ratio 0 promises infinite noise: leave it out instead")
    return sensitivity(mechanism, total) / ratio


def sensitivity(mechanism: Mechanism, total: Bounded) -> float:
    """Δ: how far a sum of bounded contributions moves between neighbours.

    C if a record's contribution vanishes. If it is replaced: the diameter of the set of contributions (2C at most), but
    only where every step reads every record. Theorems about sampled batches compare with a batch that holds neither
    record, so there Δ is 2C whatever the diameter.

    Args:
        mechanism: what is running.
        total: the sum.

    Returns:
        Δ.
    """
    if mechanism.adjacency is Adjacency.REPLACE_ONE and type(mechanism.sampling) is FullBatch:
        return total.diameter
    return mechanism.adjacency.sum_factor * total.bound


class Channel:
    """Noisy sums over batches, as certified and not one more.

    Args:
        certificate: of the plan that is running.
        records: how many records the sums hold.
        streams: where randomness comes from (fresh and private by default).
        part: which mechanism of the plan this channel serves.
        replicas: independent runs at once (audits); users have one.
        resume: a checkpoint to go on from.
    """

    def __init__(
        self,
        certificate: Certificate,
        records: int,
        *,
        streams: Streams | None = None,
        part: int = 0,
        replicas: int = 1,
        resume: Checkpoint | None = None,
    ) -> None:
        mechanism = certificate.plan.parts[part]
        if not isinstance(mechanism, Mechanism):
            raise MechanismMismatch("a channel serves a mechanism; run each candidate of a selection by itself")
        if type(mechanism.noise) not in (Independent, CorrelatedNoise):  # a theorem of a user's own may cover others
            raise MechanismMismatch(
                f"a channel draws Independent or CorrelatedNoise, and certified is {type(mechanism.noise).__name__}: "
                "draw it with your own code"
            )
        if resume is not None:
            self._streams = _resumed(certificate, resume)
        else:  # a family of its own: two channels never share noise or batches, whatever they share otherwise
            self._streams = (streams or Streams()).child(f"{certificate.digest}/{part}")
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._key_is_shared = resume is not None or self._streams.seeded
        self.mechanism = mechanism
        self.certificate = certificate.marked(SEEDED) if self._streams.seeded else certificate
        self._digest = certificate.digest
        self._replicas = _validate.positive_int(replicas=replicas)
        self._records = records
        self._draw = mechanism.sampling.draw(records, self._replicas, self._streams)
        self._step, self._release = (resume.step, resume.release) if resume else (0, 0)
        noise = mechanism.noise
        self._correlated = StreamingNoise(noise.bands.values) if isinstance(noise, CorrelatedNoise) else None
        rows = resume.rows if resume else None
        self._rows = None if rows is None else StreamState(rows.copy(), self._step)
        self._stream = resume.stream if resume else None
        self._history = resume.history if resume else b""
        self._batch = self._draw(self._step) if self._step < mechanism.steps else None

    @property
    def steps_left(self) -> int:
        """How many steps are certified and not yet taken."""
        return self.mechanism.steps - self._step

    def release(self, total: ClippedSum, state: Array) -> Array:
        """The next certified release: the sum over this step's batch plus noise.

        Args:
            total: a registered sum.
            state: where to evaluate it, one row per replica; a function of earlier releases and public data only.

        Returns:
            (replicas, size).

        Raises:
            BudgetExhausted: if every certified release has been made.
        """
        with self._lock:
            return self._released(total, state)

    def _released(self, total: ClippedSum, state: Array) -> Array:
        m = self.mechanism
        self._check_owner()
        if self._batch is None:
            raise BudgetExhausted(f"all {m.steps} certified steps are taken: certify a longer plan to go on")
        self._check(total, state)
        index = self._step * m.releases + self._release
        sigma = noise_std(m, total, index)
        with np.errstate(all="ignore"):  # somebody's "raise" would tell about a record
            clean = total.total(state, self._batch)
        history = self._named(clean, sigma)
        noise = self._noise(sigma, index, clean, history)
        step, release = divmod(index + 1, m.releases)
        batch = self._batch if step == self._step else (self._draw(step) if step < m.steps else None)
        # All at once, and before anything is handed out: an interrupt leaves a release either made or not.
        self._step, self._release, self._batch, self._history = step, release, batch, history
        return clean + noise

    def sweep(self, sweep: Sweep, state: State) -> State:
        """All certified releases at once, in compiled code.

        The whole sweep is debited before a record is read. Its noise is drawn in bulk; if anybody else can have the key
        (a checkpoint, a seed), it is named after everything the sums can depend on besides the noise: the records, the
        public settings and the start.

        Args:
            sweep: a registered sweep of as many releases as the mechanism still has.
            state: where it starts; a function of earlier releases and public data only.

        Returns:
            Where it ends.

        Raises:
            MechanismMismatch: if the sweep is not registered, or not as long as certified.
        """
        with self._lock:
            return self._swept(sweep, state)

    def _swept(self, sweep: Sweep, state: State) -> State:
        m = self.mechanism
        self._check_owner()
        if type(sweep) not in SWEEPS.values():
            raise MechanismMismatch(f"{type(sweep).__name__} is not a registered sweep: decorate it")
        if type(m.sampling) is not FullBatch or type(m.noise) is not Independent or m.releases != 1:
            raise MechanismMismatch("a sweep reads all records at each step, with fresh noise: certify it as such")
        if sweep.records != self._records or self._replicas != 1 or len(sweep.sizes) != self.steps_left:
            raise MechanismMismatch(
                f"the sweep makes {len(sweep.sizes)} releases over {sweep.records} records, certified are "
                f"{self.steps_left} over {self._records}"
            )
        first, self._step, self._batch = self._step, m.steps, None
        sigma = sensitivity(m, sweep) / m.ratio.to_array()[first:]
        if not np.isfinite(sigma).all():
            raise MechanismMismatch("a release with ratio 0 promises infinite noise: leave it out instead")
        # A key that only this channel ever had names noise once, and there is nothing to tell apart.
        content = sweep.fingerprint(state) if self._key_is_shared else b""
        rng = self._streams.at("sweep", first, content)
        noise = rng.standard_normal(int(sweep.sizes.sum()))
        noise *= sigma[0] if m.ratio.is_constant else np.repeat(sigma, sweep.sizes)
        end: State = sweep.run(state, noise)
        return end

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise MechanismMismatch(
                "this channel belongs to the process that opened it: a forked copy would spend the budget again"
            )

    def _check(self, total: ClippedSum, state: Array) -> None:
        if type(total) not in REGISTRY.values():
            raise MechanismMismatch(f"{type(total).__name__} is not a registered sum: decorate it with @register(name)")
        if np.ndim(state) < 1 or len(state) != self._replicas:
            raise MechanismMismatch(
                f"the state must have one row per replica ({self._replicas}), got {np.shape(state)}"
            )
        if total.records != self._records:
            raise MechanismMismatch(f"the sum holds {total.records} records, the channel draws from {self._records}")
        if isinstance(self.mechanism.noise, CorrelatedNoise):
            # Row t of C⁻¹Z mixes the scales of earlier rows, so one strategy hides sums of one bound and one size.
            stream = (sensitivity(self.mechanism, total), total.size)
            self._stream = self._stream or stream
            if self._stream != stream:
                raise MechanismMismatch(
                    "correlated noise hides sums of one sensitivity and size: use one mechanism for each"
                )

    def _noise(self, sigma: float, index: int, clean: Array, history: bytes) -> Array:
        """Noise named after what it hides, and after everything hidden before.

        A step that is repeated after a crash, or by a second channel resumed from one checkpoint, then either repeats
        its release to the bit or draws afresh; and once two such runs differ, they share no noise any more. (Naming a
        row of correlated noise by its own sum alone would let one run subtract what another shares with it.)

        Returns:
            As many numbers as ``clean`` has.
        """
        rng = self._streams.at("noise", index, history)
        if self._correlated is None:
            noise = rng.standard_normal(clean.shape)
            noise *= sigma
            return noise
        if self._rows is None:
            self._rows = self._correlated.init(clean.size)
        self._rows.step = index  # a row that was begun and not released is made again
        return np.asarray(sigma * self._correlated.next(self._rows, rng).reshape(clean.shape))

    def _named(self, clean: Array, sigma: float = 1.0) -> bytes:
        """A digest of all sums up to and including this one, and of their noise's scale: as secret as they are.

        Without the scale, one sum released with two different ones would be hidden by multiples of the same numbers.

        Returns:
            32 bytes.
        """
        sums = hashlib.sha256(self._history)  # three times as fast as others where processors know it
        sums.update(repr((float(sigma), clean.shape, clean.dtype.str)).encode())
        sums.update(np.ascontiguousarray(clean).data)
        return sums.digest()

    @property
    def history(self) -> bytes:
        """Names everything that was released so far; **as secret as the data**."""
        return self._history

    def dice(self) -> np.random.Generator:
        """Secret randomness of this step for what a sum itself draws (dropout): the same if the step is repeated."""
        self._check_owner()
        return self._streams.at("dice", self._step, self._history)

    def checkpoint(self) -> Checkpoint:
        """Where the channel stands. Store it with mode 0600: it holds the noise key."""
        with self._lock:
            return self._standing()

    def _standing(self) -> Checkpoint:
        self._check_owner()
        self._key_is_shared = True
        return Checkpoint(
            self._digest,
            self._streams.secret_key(),
            self._streams.seeded,
            self._step,
            self._release,
            None if self._rows is None else self._rows.rows.copy(),
            self._stream,
            self._history,
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a channel is not copied or pickled: two copies would each spend the budget once")


def _resumed(certificate: Certificate, checkpoint: Checkpoint) -> Streams:
    if checkpoint.digest != certificate.digest:
        raise MechanismMismatch("the checkpoint belongs to another certificate: resume with the plan it was made with")
    streams = Streams(key=checkpoint.key)
    streams.seeded = checkpoint.seeded
    return streams
