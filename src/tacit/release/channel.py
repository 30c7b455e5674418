"""The channel of one certified mechanism: draws its batches, counts its releases, adds its noise, and stops."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import BudgetExhausted, MechanismMismatch
from tacit.mechanism import (
    Adjacency,
    Arithmetic,
    CorrelatedNoise,
    FullBatch,
    Independent,
    LastIterate,
    Mechanism,
)
from tacit.noise import StreamingNoise, StreamState
from tacit.noise.rounded import rounded_normal
from tacit.noise.streams import Streams
from tacit.noise.sums import CorrelatedSums, SumState
from tacit.release.place import ReleasesInPlace, RowStore
from tacit.release.query import Bounded, Grid, Members, Sums

__all__ = ["Channel", "Checkpoint", "noise_std", "sensitivity"]

Array = NDArray[np.float64]
RECORD = "record"
"""The privacy unit of tables whose every row is a record of its own."""


@dataclass(frozen=True)
class Checkpoint:
    """What a channel needs to go on: **as secret as the data**, because it holds the noise key.

    Attributes:
        digest: of the certificate it belongs to.
        key: of the noise streams.
        seeded: whether the run was seeded (and so not private).
        step: the next step.
        release: the next release within it.
        rows: earlier rows of correlated noise; in exact arithmetic, earlier outputs.
        stream: sensitivity, size and lattice (empty in floating point) of the sums that correlated noise hides.
        history: a digest that names everything released so far.
        sums: earlier sums that correlated noise mixes in exact arithmetic.
    """

    digest: str
    key: bytes
    seeded: bool
    step: int
    release: int
    rows: NDArray[Any] | None = None
    stream: tuple[float, int, str] | None = None
    history: bytes = b""
    sums: NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        return f"Checkpoint(step={self.step}, release={self.release})"  # never the key


def sensitivity(mechanism: Mechanism, query: Bounded) -> float:
    """Δ: how far a sum of bounded contributions moves between neighbours.

    C if a record's contribution vanishes. If it is replaced: the diameter of the set of contributions (2C at most), but
    only where every step reads every record. Theorems about sampled batches compare with a batch that holds neither
    record, so there Δ is 2C whatever the diameter. A record that fails, or holds no numbers, contributes 0, and what a
    weighted record or a person contributes lies in the convex hull of what rows do and of 0: C counts where it is more
    than the diameter.

    Args:
        mechanism: what is running.
        query: what is asked.

    Returns:
        Δ.
    """
    if mechanism.adjacency is Adjacency.REPLACE_ONE and type(mechanism.sampling) is FullBatch:
        return max(query.diameter, query.bound)
    return mechanism.adjacency.sum_factor * query.bound


def noise_std(mechanism: Mechanism, query: Bounded, index: int) -> float:
    """σ = Δ/ratio of release ``index``, counted over all steps: public.

    Args:
        mechanism: what is running.
        query: what is asked.
        index: of the release.

    Returns:
        σ.

    Raises:
        MechanismMismatch: if the certificate promises infinite noise there.
    """
    ratio = mechanism.ratio[index // mechanism.releases if len(mechanism.ratio) == mechanism.steps else index]
    if ratio == 0:
        raise MechanismMismatch("a release with ratio 0 promises infinite noise: leave it out instead")
    return sensitivity(mechanism, query) / ratio


def _rounded_up(sigma: float) -> float:
    """The next float: the quotient Δ/ratio must not lose its last bit."""
    return float(np.nextafter(sigma, np.inf))


def _lattice(query: Bounded, grid: Grid, size: int) -> str:
    """A name of the units of an exact release: g, the bits of its factors, and D."""
    scales = query.scales(size)
    factors = "" if scales is None else hashlib.sha256(np.ascontiguousarray(scales).data).hexdigest()[:32]
    return f"{grid.unit.hex()}/{grid.bits}/{factors}"


class Channel(ReleasesInPlace):
    """Noisy sums over the batches of one mechanism, as certified and not one more.

    Args:
        mechanism: what was certified.
        digest: of the certificate.
        n: the number of records.
        streams: its randomness, shared with no other channel.
        replicas: independent runs at once, for audits.
        resume: a checkpoint to go on from.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        digest: str,
        n: int,
        streams: Streams,
        *,
        replicas: int = 1,
        resume: Checkpoint | None = None,
    ) -> None:
        self.mechanism, self._digest, self._streams = mechanism, digest, streams
        self.replicas = _validate.positive_int(replicas=replicas)
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._key_is_shared = resume is not None or streams.seeded
        if type(mechanism.noise) not in (Independent, CorrelatedNoise):  # a theorem of a user's own may cover others
            raise MechanismMismatch(
                f"a session draws Independent or CorrelatedNoise, and certified is {type(mechanism.noise).__name__}: "
                "draw it with your own code"
            )
        self._draw = mechanism.sampling.draw(n, self.replicas, streams)
        self._step, self._release = (resume.step, resume.release) if resume else (0, 0)
        self._correlated: StreamingNoise | None = None
        self._mixed: CorrelatedSums | None = None
        if isinstance(mechanism.noise, CorrelatedNoise):
            if mechanism.arithmetic is Arithmetic.EXACT:
                self._mixed = CorrelatedSums(mechanism.noise.bands.values)
            else:
                self._correlated = StreamingNoise(mechanism.noise.bands.values)
        rows, sums = (resume.rows, resume.sums) if resume else (None, None)
        self._rows = None if rows is None else StreamState(rows.copy(), self._step)
        self._store: RowStore | None = None
        self._sums = None if sums is None or self._rows is None else SumState(sums.copy(), self._rows)
        self._stream = resume.stream if resume else None
        self._history = resume.history if resume else b""
        self._members = self._draw(self._step) if self._step < mechanism.steps else None

    @property
    def steps_left(self) -> int:
        """How many steps are certified and not yet taken."""
        return self.mechanism.steps - self._step

    def noise_std(self, query: Bounded, index: int | None = None) -> float:
        """σ of the next release, or of release ``index``: public."""
        following = self._step * self.mechanism.releases + self._release
        return noise_std(self.mechanism, query, following if index is None else index)

    def grids(self, queries: Sequence[Bounded]) -> tuple[Grid, ...]:
        """The lattices of the next releases, one for each query: public; none in floating point."""
        if self.mechanism.arithmetic is not Arithmetic.EXACT:
            return ()
        first = self._step * self.mechanism.releases + self._release
        each = ((query, self.noise_std(query, first + i)) for i, query in enumerate(queries))
        return tuple(self._grid(query, _rounded_up(sigma)) for query, sigma in each)

    def _grid(self, query: Bounded, sigma: float) -> Grid:
        return query.grid(sigma if self._mixed is None else sigma / self._mixed.unit)

    def release(self, query: Bounded, total: Callable[[Members, Grid | None], Sums]) -> Array:
        """The next certified release: the sum over this step's members plus noise.

        Args:
            query: its bound sets the noise.
            total: from members and the grid of an exact release to the sum, (replicas, size).

        Returns:
            (replicas, size).
        """
        with self._lock:
            return self._released(query, total)

    def _released(self, query: Bounded, total: Callable[[Members, Grid | None], Sums]) -> Array:
        m = self.mechanism
        if getattr(m.view, "rounding", None) is not None:
            raise MechanismMismatch("an exact hidden chain shows no sums, not even to itself: move its state")
        here = self._current_members()
        index, sigma = self._step * m.releases + self._release, self.noise_std(query)
        grid: Grid | None = None
        if m.arithmetic is Arithmetic.EXACT:
            sigma = _rounded_up(sigma)
            grid = self._grid(query, sigma)
        with np.errstate(all="ignore"):  # a caller's errstate("raise") would tell about a record
            clean = total(here, grid)
        lattice = "" if grid is None else _lattice(query, grid, clean.shape[1])
        self._check_stream(query, clean.shape[1], lattice)
        history = self._named(clean, sigma, lattice)
        if grid is None:
            noisy = clean + self._noise(sigma, index, clean, history)
        else:
            noisy = self._on_grid(clean, query, sigma, grid, index, history)
        self._go_on(index + 1, history)
        return noisy

    def move(self, moved: Callable[[Members], NDArray[np.int64]]) -> NDArray[np.int64]:
        """The next state of an exact hidden chain: ⌊φ̂(X)/g⌉ + ⌊sZ/g⌉, in units of its lattice.

        Args:
            moved: from the members of this step to ⌊φ̂(X)/g⌉, (replicas, size).

        Returns:
            (replicas, size). A step whose s is 0 adds nothing.

        Raises:
            MechanismMismatch: if the certified chain does not move on a lattice.
        """
        with self._lock:
            view = self.mechanism.view
            if not isinstance(view, LastIterate) or view.rounding is None:
                raise MechanismMismatch("the certified mechanism is no chain on a lattice: certify it as exact")
            here, step = self._current_members(), self._step
            with np.errstate(all="ignore"):  # a caller's errstate("raise") would tell about a record
                state = moved(here)
            s = view.noise_std[step]
            history = self._named(state, s)
            if s > 0:  # g is a power of two: s/g is exact
                rng = self._streams.at("noise", step, history)
                state = state + rounded_normal(rng, s / view.rounding.unit, state.shape)
            self._go_on(step + 1, history)
            return state

    def _current_members(self) -> Members:
        self._check_owner()
        if self._members is None:
            raise BudgetExhausted(
                f"all {self.mechanism.steps} certified steps are taken: certify a longer plan to go on"
            )
        return self._members

    def _go_on(self, index: int, history: bytes) -> None:
        """All at once, and before anything is handed out: an interrupt leaves a release either made or not."""
        m = self.mechanism
        step, release = divmod(index, m.releases)
        members = self._members
        if step != self._step:
            members = self._draw(step) if step < m.steps else None
        self._step, self._release, self._members, self._history = step, release, members, history

    def _on_grid(self, clean: Sums, query: Bounded, sigma: float, grid: Grid, index: int, history: bytes) -> Array:
        """D·g·(q + ⌊σZ/(g·D)⌉): a function of the Gaussian mechanism that was certified, so nothing is added to δ.

        Sums wrap around at 2⁶⁴: (q + R) mod 2⁶⁴ is a function of q + R. Correlated noise: ``tacit.noise.sums``.

        Returns:
            (replicas, size).

        Raises:
            MechanismMismatch: if the query's sum is not one of integers.
        """
        if clean.dtype != np.int64:
            raise MechanismMismatch(
                f"{type(query).__name__} has no integer sums: use arithmetic='float', or let its total follow the grid"
            )
        rng, scales = self._streams.at("noise", index, history), query.scales(clean.shape[1])
        unit: float | Array = grid.unit if self._mixed is None else grid.unit * self._mixed.unit
        scale: float | Array = sigma / unit  # powers of two: the quotient is exact
        if scales is not None:
            unit = unit * scales
            scale = np.nextafter(sigma / unit, np.inf)
        R = rounded_normal(rng, scale, clean.shape)
        if self._mixed is None:
            return np.asarray((clean + R) * unit)
        if self._sums is None:
            self._sums = self._mixed.init(clean.size)
        r = self._mixed.mixed(self._sums, index, clean.reshape(-1)).reshape(clean.shape) + R
        return self._mixed.solved(self._sums, index, np.asarray(r * unit, np.float64).reshape(-1)).reshape(clean.shape)

    def take_all(
        self, query: Bounded, sizes: NDArray[np.int64], content: Callable[[bytes], bytes]
    ) -> tuple[Sums, Grid | None]:
        """The noise of all remaining releases at once, for a sweep in compiled code; nothing is left afterwards.

        The whole sweep is debited before a record is read. If the key can be known elsewhere (a checkpoint, a seed),
        noise is named after everything the sums can depend on besides the noise. An exact sweep has one grid, that of
        its largest σ, and integer noise ⌊σZ/g⌉.

        Args:
            query: its bound sets the noise.
            sizes: how many numbers each release has.
            content: from a secret of 32 bytes to a digest of records, settings and start.

        Returns:
            The noise of all releases, one after another, in units of the grid if there is one; and the grid.

        Raises:
            MechanismMismatch: if the mechanism samples, correlates noise, or has another number of releases, or if it
                is exact and the sweep has no integer sums.
        """
        with self._lock:
            m = self.mechanism
            self._check_owner()
            self._check_sweep(sizes)
            sigma = sensitivity(m, query) / m.ratio.to_array()[self._step :]
            if not np.isfinite(sigma).all():
                raise MechanismMismatch("a release with ratio 0 promises infinite noise: leave it out instead")
            grid = None
            if m.arithmetic is Arithmetic.EXACT:
                sigma = np.nextafter(sigma, np.inf)
                grid = query.grid(float(sigma.max()))
            first, self._step, self._members = self._step, m.steps, None
            scale = sigma if grid is None else sigma / grid.unit
            name = content(self._streams.at("fingerprint").bytes(32)) if self._key_is_shared else b""
            if grid is not None and name:  # one sum on two grids must not be hidden by multiples of the same numbers
                name = hashlib.sha256(repr(grid).encode() + scale.tobytes() + name).digest()
            rng = self._streams.at("sweep", first, name)
            scale = scale[0] if m.ratio.is_constant else np.repeat(scale, sizes)
            if grid is not None:
                return rounded_normal(rng, scale, int(sizes.sum())), grid
            noise = rng.standard_normal(int(sizes.sum()))
            noise *= scale
            return noise, None

    def _check_sweep(self, sizes: NDArray[np.int64]) -> None:
        m = self.mechanism
        if type(m.sampling) is not FullBatch or type(m.noise) is not Independent or m.releases != 1:
            raise MechanismMismatch("a sweep reads all records at each step, with fresh noise: certify it as such")
        if self.replicas != 1 or len(sizes) != self.steps_left:
            raise MechanismMismatch(
                f"the sweep makes {len(sizes)} releases, {self.steps_left} are certified and not yet made"
            )

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise MechanismMismatch(
                "this session belongs to the process that opened it: a forked copy would spend the budget again"
            )

    def _check_stream(self, query: Bounded, size: int, lattice: str) -> None:
        if self._correlated is None and self._mixed is None:
            return
        # Row t of C⁻¹Z mixes the scales of earlier rows, so one strategy hides sums of one bound and one size; and in
        # exact arithmetic a row of K·Q adds integers, which must all be in units of one grid.
        stream = (sensitivity(self.mechanism, query), size, lattice)
        self._stream = self._stream or stream
        if self._stream[:2] != stream[:2]:
            raise MechanismMismatch(
                "correlated noise hides sums of one sensitivity and size: use one mechanism for each"
            )
        if self._stream != stream:
            raise MechanismMismatch("correlated noise adds integers of one grid: use one mechanism for each query")

    def _noise(self, sigma: float, index: int, clean: Array, history: bytes) -> Array:
        """Noise named after what it hides, and after everything hidden before.

        A step that is repeated after a crash, or by a second channel resumed from one checkpoint, then either repeats
        its release to the bit or draws afresh; and once two such runs differ, they share no noise any more. (Naming a
        row of correlated noise by its own sum alone would let one run subtract what another shares with it.)

        Returns:
            As many numbers as ``clean`` has.

        Raises:
            MechanismMismatch: if earlier rows are kept beside sums in place.
        """
        rng = self._streams.at("noise", index, history)
        if self._correlated is None:
            noise = rng.standard_normal(clean.shape)
            noise *= sigma
            return noise
        if self._store is not None:
            raise MechanismMismatch("this channel releases sums in place: go on with those")
        if self._rows is None:
            self._rows = self._correlated.init(clean.size)
        self._rows.step = index  # a row that was begun and not released is made again
        return np.asarray(sigma * self._correlated.next(self._rows, rng).reshape(clean.shape))

    def _named(self, clean: Sums, sigma: float = 1.0, lattice: str = "") -> bytes:
        """A digest of all sums up to and including this one, and of their noise's scale: as secret as they are.

        Without the scale, one sum released with two different ones would be hidden by multiples of the same numbers;
        and integers mean nothing without their lattice.

        Returns:
            32 bytes.
        """
        sums = hashlib.sha256(self._history)  # three times as fast as others where processors know it
        sums.update(repr((float(sigma), clean.shape, clean.dtype.str, *([lattice] if lattice else []))).encode())
        sums.update(np.ascontiguousarray(clean).data)
        return sums.digest()

    @property
    def history(self) -> bytes:
        """A digest that names everything released so far; **as secret as the data**."""
        return self._history

    def step_rng(self) -> np.random.Generator:
        """Secret randomness of this step for what a query itself draws (dropout): the same if the step is repeated."""
        self._check_owner()
        return self._streams.at("dice", self._step, self._history)

    def checkpoint(self) -> Checkpoint:
        """Where the channel stands. Store it with mode 0600: it holds the noise key."""
        with self._lock:
            self._check_owner()
            self._key_is_shared = True
            rows = self._rows if self._sums is None else self._sums.outputs
            kept = None if rows is None else rows.rows.copy()
            return Checkpoint(
                self._digest,
                self._streams.secret_key(),
                self._streams.seeded,
                self._step,
                self._release,
                kept if self._store is None else self._store.array(),
                self._stream,
                self._history,
                None if self._sums is None else self._sums.sums.copy(),
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a channel is not copied or pickled: two copies would each spend the budget once")
