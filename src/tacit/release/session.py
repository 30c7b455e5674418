"""Sessions: one certified run over one set of records; ``open_session`` alone marks, reserves and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import Certificate
from tacit.errors import MechanismMismatch
from tacit.ledger import Ledger
from tacit.maps import RowMap
from tacit.mechanism import Adjacency, AllIterates, Arithmetic, LastIterate, Mechanism
from tacit.noise.streams import SEEDED, Streams
from tacit.records import MAX_ROWS, Records, Rows, TargetMap
from tacit.release.chain import Chain, GradientChain, in_ball
from tacit.release.channel import RECORD, Channel, Checkpoint
from tacit.release.choice import CHOICES, Choice
from tacit.release.place import Place
from tacit.release.query import QUERIES, Bounded, Grid, Members, Query, Sums
from tacit.release.run import Run
from tacit.release.sweep import Sweep

__all__ = ["Progress", "Session", "marked_certificate", "open_session"]

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
Asked = TypeVar("Asked", bound=Query | tuple[Query, ...])


class Source(Protocol):
    """What a session needs of records: their number, and sums over them (``tacit.records.Records``)."""

    @property
    def n(self) -> int:
        """How many there are; secret under add/remove."""

    def total(self, query: Any, state: Any, members: Members, grid: Any) -> Sums:
        """A query's sum over the members."""


class Session:
    """The only interface to the records: draws batches, counts releases, adds noise, refuses what is not certified.

    ``through`` gives another view of the same session: the records seen through a public map, and the parts of the plan
    counted from another one on. With one replica (always, except in audits) states and sums have no leading axis.

    Attributes:
        progress: called with (steps done, steps) by long work, or None.
    """

    def __init__(self, run: Run, records: Source, first: int = 0, progress: Progress | None = None) -> None:
        self._run, self._records, self._first, self.progress = run, records, first, progress

    @property
    def certificate(self) -> Certificate:
        """The certificate of the whole plan, with its marks."""
        return self._run.certificate

    @property
    def entry(self) -> int | None:
        """The number of the ledger's entry, None without a ledger."""
        return self._run.entry

    def through(
        self, features: RowMap | None = None, target: TargetMap | None = None, *, parts_from: int = 0
    ) -> Session:
        """Another view: records through more maps, parts counted from ``parts_from``."""
        records = self._records
        if features is not None or target is not None:
            if not isinstance(records, Records):
                raise MechanismMismatch(f"{type(records).__name__} cannot be seen through a row map")
            records = records.through(features, target)
        return Session(self._run, records, self._first + parts_from, self.progress)

    @property
    def replicas(self) -> int:
        """How many independent runs there are at once: 1, except in audits."""
        return self._run.replicas

    @property
    def n_records(self) -> int | None:
        """How many records there are; None where the relation keeps that secret."""
        return None if self.certificate.adjacency is Adjacency.ADD_REMOVE else self._run.n

    def mechanism(self, part: int = 0) -> Mechanism:
        """What was certified for a part."""
        return self._channel(part).mechanism

    def steps_left(self, part: int = 0) -> int:
        """How many steps of a part are certified and not yet taken."""
        return self._run.any_channel(self._first + part).steps_left

    def noise_std(self, query: Bounded, part: int = 0, index: int | None = None) -> float:
        """σ of the next release of a part, or of release ``index``: public."""
        return self._channel(part).noise_std(query, index)

    def grids(self, queries: Sequence[Bounded], part: int = 0) -> tuple[Grid, ...]:
        """The lattices of the next releases of a part, one for each query: public; none in floating point."""
        return self._channel(part).grids(queries)

    def public_rng(self, purpose: str) -> np.random.Generator:
        """Randomness that need not be secret (which coordinates to update)."""
        return self._run.streams.child(purpose).at("public")

    def release(self, query: Query, state: Any = None, part: int = 0) -> Array:
        """The next certified release of a part: the query's sum over the step's members, plus noise.

        Args:
            query: registered.
            state: where to evaluate it, a function of earlier releases and public data; one per replica in audits.
            part: of the plan.

        Returns:
            (size,), or (replicas, size) in audits.

        Raises:
            MechanismMismatch: if the query is not registered, the part is a hidden chain, or the state does not have
                one row per replica.
        """
        if not isinstance(self.mechanism(part).view, AllIterates):
            raise MechanismMismatch("the certificate hides what this part releases on its way: run it by run_chain")
        return self._release(query, state, part)

    def release_in_place(self, query: Query, place: Place, part: int = 0) -> None:
        """The next certified release of a part, in a sum that stays where it is computed.

        Args:
            query: registered; it adds contributions to the place.
            place: zeros at first, afterwards the release; if anything is raised, it must not be used.
            part: of the plan.

        Raises:
            MechanismMismatch: as by ``release``; or if the mechanism is exact.
        """
        if not isinstance(self.mechanism(part).view, AllIterates):
            raise MechanismMismatch("the certificate hides what this part releases on its way: run it by run_chain")
        _check_registered(query)
        records: Any = self._records
        self._channel(part).release_in_place(query, place, lambda members: records.add_up(query, place, members))

    def _release(self, query: Query, state: Any, part: int) -> Array:
        _check_registered(query)
        one, replicas = self._run.replicas == 1, self._run.replicas
        at = np.zeros((replicas, 1)) if state is None else np.asarray(state)[None] if one else np.asarray(state)
        if len(at) != replicas:
            raise MechanismMismatch(f"the state must have one row per replica ({replicas}), got shape {at.shape}")
        out = self._channel(part).release(query, lambda members, grid: self._total(query, at, members, grid))
        return np.asarray(out[0]) if one else out

    def select(self, choice: Choice, state: Array, part: int = 0) -> int:
        """The next certified noisy choice of a part: which candidate scored best, with noise, over all records.

        Args:
            choice: registered; how candidates are scored.
            state: (size,), where to score them, a function of earlier releases and public data.
            part: of the plan, a ``NoisyMax``.

        Returns:
            The number of a candidate.

        Raises:
            MechanismMismatch: if the choice is not registered, or the part releases sums.
        """
        if CHOICES.get(getattr(choice, "name", "")) is not type(choice):
            raise MechanismMismatch(f"{type(choice).__name__} is not a registered choice: give it a name of its own")
        at, channel = np.asarray(state, np.float64), self._run.choices(self._first + part)
        return channel.select(choice, at, lambda members, grid: self._records.total(choice, at[None], members, grid))

    def sweep(self, sweep: Sweep, start: Array, part: int = 0) -> Array:
        """All releases of a part at once, in compiled code: only over records in memory.

        Args:
            sweep: a registered sweep of as many releases as the part still has.
            start: public (or released) coefficients.
            part: of the plan.

        Returns:
            The coefficients at its end.
        """
        _check_registered(sweep)
        with np.errstate(all="ignore"):  # a warning, or a caller's errstate("raise"), would tell about a record
            rows, channel = self._whole(sweep), self._channel(part)
            if rows.shares is not None:
                rows = rows.weighted(rows.shares.weight)
            if rows.lost is not None:
                rows = rows.weighted(np.where(rows.lost, 0.0, 1.0 if rows.weights is None else rows.weights))
            state = sweep.start(rows, start)
            noise, grid = channel.take_all(sweep, sweep.sizes, lambda key: sweep.fingerprint(rows, state, key))
            return sweep.released(sweep.run(rows, state, noise, grid))

    def run_chain(self, chain: Chain[Asked], query: Asked, start: Array, part: int = 0) -> Array:
        """Run a hidden chain to its end and return the last iterate, and nothing else.

        This loop owns the state, so a step can neither average iterates nor carry momentum; ``chain.check`` is asked
        before any record is read.

        Args:
            chain: the map of one step.
            query: registered; what each step asks. A tuple holds one for each release of a step.
            start: a public point; one row per replica in audits.
            part: of the plan; none of its steps may have been taken.

        Returns:
            The last iterate, one row per replica in audits.

        Raises:
            MechanismMismatch: if the certificate does not describe this chain.
        """
        channel = self._channel(part)
        mechanism = channel.mechanism
        if isinstance(mechanism.view, AllIterates):
            raise MechanismMismatch("the certificate is for all iterates: release each, or certify the last iterate")
        chain.check(mechanism, query, self._run.n)
        if channel.steps_left != mechanism.steps:
            raise MechanismMismatch("a hidden chain takes all its steps in one go: certify a part for each chain")
        if mechanism.arithmetic is Arithmetic.EXACT:
            return self._run_on_lattice(chain, query, start, channel)
        asked: tuple[Query, ...] = query if isinstance(query, tuple) else (query,) * mechanism.releases
        theta = np.asarray(start, np.float64).copy()
        for k in range(mechanism.steps):
            for release, one in enumerate(asked):
                x = chain.query_state(theta, k, release)
                theta = chain.advance(x, self._release(one, x, part), k, release)
            self.tick(k + 1, mechanism.steps)
        return chain.query_state(theta, mechanism.steps, 0)

    def _run_on_lattice(self, chain: Any, query: Any, start: Array, channel: Channel) -> Array:
        """X ← g(⌊φ̂(X)/g⌉ + ⌊sZ/g⌉): sums are in floating point, and noise with exact probabilities is on the state.

        One seed gives the same bits for the same records in the same order and chunks; other orders round sums in
        another way (the certificate covers them all).

        Returns:
            The last state, projected.

        Raises:
            MechanismMismatch: if the rounding of this chain or these features is not known, or the size differs.
        """
        view = channel.mechanism.view
        assert isinstance(view, LastIterate)
        assert view.rounding is not None  # so was certified
        if type(chain) is not GradientChain:
            raise MechanismMismatch(
                f"the rounding of {type(chain).__name__} is not known, which an exact hidden chain needs: use "
                "arithmetic='float'"
            )
        _check_registered(query)
        if isinstance(self._records, Records) and self._records.by_person and chain.rows_per_record < MAX_ROWS:
            raise MechanismMismatch("rows belong to persons, but the chain's rounding is that of one row a record")
        g, chain, at = view.rounding.unit, chain.within(view.rounding.radius), np.asarray(start, np.float64)
        if at.shape[-1:] != view.rounding.sizes:
            raise MechanismMismatch(f"certified for {view.rounding.sizes[0]} coordinates, the start has {at.shape}")
        if isinstance(self._records, Records):
            query.check_precision(self._records.first())
        state = np.rint(np.atleast_2d(in_ball(at, chain.radius)) / g).astype(np.int64)
        steps = channel.mechanism.steps
        for k in range(steps):
            x = chain.query_state(state * g, k, 0)

            def moved(members: Members, x: Array = x, k: int = k) -> NDArray[np.int64]:
                sums = self._total(query, x, members, None)
                return np.asarray(np.rint(chain.advance(x, sums, k, 0) / g), np.int64)

            state = channel.move(moved)
            self.tick(k + 1, steps)
        last = chain.query_state(state * g, steps, 0)
        return last if at.ndim > 1 else np.asarray(last[0])

    def tick(self, done: int, steps: int) -> None:
        """Report progress: step counts only, which are public."""
        if self.progress is not None:
            self.progress(done, steps)

    def checkpoint(self, part: int = 0) -> Checkpoint:
        """Where a part stands. Store it with mode 0600: it holds the noise key."""
        return self._channel(part).checkpoint()

    def history(self, part: int = 0) -> bytes:
        """A digest that names everything a part has released so far; **as secret as the data**."""
        return self._channel(part).history

    def step_rng(self, part: int = 0) -> np.random.Generator:
        """Secret randomness of this step for what a query itself draws (dropout): the same if the step is repeated."""
        return self._channel(part).step_rng()

    def narrowed(self, certificate: Certificate) -> Session:
        """Go on under a certificate of a smaller plan, known only after the first part was released.

        Under add/remove the number of records is released first, and the rest of the plan follows from it. What was
        reserved is that part and a Gaussian mechanism that dominates any rest.

        Args:
            certificate: of the first part and the rest.

        Returns:
            A session that has released the first part.

        Raises:
            MechanismMismatch: if the plan has another first part, or its rest costs more than was reserved.
        """
        before, after = self.certificate, certificate
        for mark in before.marks:
            after = after.marked(mark)
        same = before.plan.parts[0] == after.plan.parts[0] and before.adjacency is after.adjacency
        if not same or before.mu is None or after.mu is None or not after.mu <= before.mu:
            raise MechanismMismatch("the plan costs more than what was reserved for it; please report this")
        old = self._run
        run = Run(after, certificate.digest, old.n, old.streams, old.replicas)
        run._channels[0], run.entry = self._run.channel(0), self._run.entry
        return Session(run, self._records, 1, self.progress)

    # -- private ----------------------------------------------------------------------------------------------

    def _channel(self, part: int) -> Channel:
        return self._run.channel(self._first + part)

    def _total(self, query: Query, state: Array, members: Members, grid: Grid | None) -> Sums:
        return self._records.total(query, state, members, grid)

    def _whole(self, sweep: Sweep) -> Rows:
        rows = self._records.whole() if isinstance(self._records, Records) else None
        if rows is None:
            raise MechanismMismatch(f"{type(sweep).__name__} needs all records in memory: use another solver")
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._run.closed = True

    def __reduce__(self) -> NoReturn:
        raise TypeError("a session is not copied or pickled: two copies would each spend the budget once")


def _check_registered(query: Bounded) -> None:
    if QUERIES.get(getattr(query, "name", "")) is not type(query):
        raise MechanismMismatch(f"{type(query).__name__} is not a registered query: decorate it with @register(name)")


def marked_certificate(certificate: Certificate, marks: Iterable[str], *, seeded: bool) -> Certificate:
    """The certificate that a session with these marks will have: for whoever must show it before the session opens."""
    for mark in (*marks, *((SEEDED,) if seeded else ())):
        certificate = certificate.marked(mark)
    return certificate


def open_session(
    certificate: Certificate,
    records: Source,
    *,
    ledger: Ledger | None = None,
    random_state: int | None = None,
    marks: Iterable[str] = (),
    note: str = "",
    delta: float | None = None,
    progress: Progress | None = None,
    replicas: int = 1,
    resume: Checkpoint | None = None,
    entry: int | None = None,
) -> Session:
    """Mark the certificate, reserve it, key the noise: in this order, here and nowhere else. No record is read before.

    Args:
        certificate: of the plan that will run.
        records: where the rows are.
        ledger: reserves the certificate, or None.
        random_state: makes the run repeatable, and marks its certificate "not private: seeded".
        marks: what the certificate must say besides.
        note: for the ledger.
        delta: at which the ledger reserves a certificate that is not Gaussian.
        progress: called with (steps done, steps) by long work.
        replicas: independent runs at once, for audits of made-up records; the certificate is marked.
        resume: a checkpoint to go on from.
        entry: the number under which the ledger holds a resumed run; without one it is charged now.

    Returns:
        The session; as a context manager it refuses releases after its block.

    Raises:
        MechanismMismatch: if replicas would be charged to a ledger, the checkpoint belongs to another plan, or rows
            belong to persons and the certificate is about rows.
    """
    streams = Streams(random_state) if resume is None else Streams(key=resume.key)
    streams.seeded = streams.seeded if resume is None else resume.seeded
    audit = (f"not private: {replicas} replicas of one run, for an audit",) if replicas != 1 else ()
    if audit and ledger is not None:
        raise MechanismMismatch("replicas are for audits of made-up records: a ledger pays for one run")
    digest = certificate.digest  # of the plan itself: marks may be added to a run that is resumed
    if resume is not None and resume.digest != digest:
        raise MechanismMismatch("the checkpoint belongs to another certificate: resume with the plan it was made with")
    by_person = isinstance(records, Records) and records.by_person
    if by_person and certificate.unit == RECORD:
        raise MechanismMismatch("these rows belong to persons, the certificate is about single rows: certify persons")
    certificate = marked_certificate(certificate, (*marks, *audit), seeded=streams.seeded)
    run = Run(certificate, digest, records.n, streams, replicas, resume)
    run.entry = entry
    if ledger is not None and entry is None:
        run.entry = ledger.reserve(certificate, note, **({} if delta is None else {"delta": delta}))
    if isinstance(records, Records):
        records.key(streams.at("persons"))
    return Session(run, records, progress=progress)
