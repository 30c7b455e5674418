"""A session over several owners: what a solver asks goes to every node, and noisy sums come back and are added.

The session holds no record and adds no noise: every node has its own session, which pays and adds all of its noise.
Where nodes were dropped, the sum of those that are left, which have m of n units, is multiplied by n/m.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tacit import _codec
from tacit.accounting import Certificate
from tacit.errors import MechanismMismatch
from tacit.federation.offers import Offer, total_std
from tacit.federation.questions import Ask, Words, write
from tacit.federation.team import Team
from tacit.mechanism import Mechanism
from tacit.release import Bounded, Query, Session, noise_std
from tacit.release.queries import ColumnsWithin

__all__ = ["OwnersSession"]

Array = NDArray[np.float64]


class _Shared:
    """What all views of one session share: the nodes, how far each part is, and the views they know."""

    def __init__(self, team: Team, offers: dict[int, Offer], certificate: Certificate) -> None:
        self.team, self.offers, self.certificate = team, offers, certificate
        self.units = {i: statement["units"] for i, statement in team.statements.items()}  # that the plan is made for
        self.taken = [0] * len(certificate.plan.parts)
        self.weights: dict[tuple[int, int], dict[int, float]] = {}
        self.known: set[int] = {0}
        self.views = 0

    def factors(self, nodes: Sequence[int]) -> dict[int, float]:
        """N/m for each of these nodes."""
        factor = sum(self.units.values()) / sum(self.units[i] for i in nodes)
        return dict.fromkeys(nodes, factor)


class OwnersSession(Session):
    """The session of a solver over several owners.

    Args:
        shared: nodes and counts.
        lineage: the views from the records to this one, as (number, parent, map of features, map of targets).
        first: the first part of the plan that this view counts.
    """

    def __init__(
        self, shared: _Shared, lineage: tuple[tuple[int, int, Words | None, Words | None], ...] = (), first: int = 0
    ) -> None:
        self._shared, self._lineage, self._first, self.progress = shared, lineage, first, None

    @classmethod
    def over(cls, team: Team, offers: dict[int, Offer], certificate: Certificate) -> OwnersSession:
        """A session over nodes that have begun.

        Args:
            team: of the nodes.
            offers: of those that have begun.
            certificate: of the weakest.

        Returns:
            The session; its records are seen as they are.
        """
        return cls(_Shared(team, offers, certificate))

    @property
    def certificate(self) -> Certificate:
        """The weakest node's."""
        return self._shared.certificate

    @property
    def entry(self) -> None:
        """None: ledgers are at the nodes."""
        return

    @property
    def replicas(self) -> int:
        """One."""
        return 1

    @property
    def n_records(self) -> int:
        """How many units all nodes have together."""
        return int(sum(self._shared.units.values()))

    def through(self, features: Any = None, target: Any = None, *, parts_from: int = 0) -> OwnersSession:
        """Another view: nodes are told of it with the first question that needs it."""
        lineage = self._lineage
        if features is not None or target is not None:
            self._shared.views += 1
            parent = lineage[-1][0] if lineage else 0
            maps, aims = (None if one is None else write(one) for one in (features, target))
            lineage = (*lineage, (self._shared.views, parent, maps, aims))
        return OwnersSession(self._shared, lineage, self._first + parts_from)

    def mechanism(self, part: int = 0) -> Mechanism:
        """What the weakest node has certified for a part."""
        mechanism = self.certificate.plan.parts[self._first + part]
        assert isinstance(mechanism, Mechanism)  # checked when the offers were read
        return mechanism

    def steps_left(self, part: int = 0) -> int:
        """How many steps of a part are certified and not yet taken."""
        return self.mechanism(part).steps - self._shared.taken[self._first + part]

    def noise_std(self, query: Bounded, part: int = 0, index: int | None = None) -> float:
        """σ of the sum of all nodes' noise, for the next release of a part, or for release ``index``."""
        shared, here = self._shared, self._first + part
        at = shared.taken[here] if index is None else index
        factors = shared.weights.get((here, at)) or shared.factors(shared.team.alive)
        return total_std([f * noise_std(shared.offers[i].mechanisms[here], query, at) for i, f in factors.items()])

    def grids(self, queries: Sequence[Bounded], part: int = 0) -> tuple[()]:
        """None: each node has lattices of its own."""
        return ()

    def public_rng(self, purpose: str) -> NoReturn:
        """Refused: solvers over several owners draw nothing."""
        raise MechanismMismatch(f"randomness for {purpose!r} is not shared between owners: use another solver")

    def release(self, query: Query, state: Any = None, part: int = 0) -> Array:
        """The next certified release of a part: every node's sum with all of its noise, added up.

        Args:
            query: one that nodes know.
            state: where to evaluate it, or None.
            part: of the plan.

        Returns:
            (size,).
        """
        shared, here = self._shared, self._first + part
        at, words = shared.taken[here], write(query)
        new = tuple(view for view in self._lineage if view[0] not in shared.known)
        number = self._lineage[-1][0] if self._lineage else 0
        ask = _codec.encode(Ask(here, number, words, new))
        point = None if state is None else np.asarray(state, np.float64)
        stds = {i: noise_std(shared.offers[i].mechanisms[here], query, at) for i in shared.team.alive}
        sums = shared.team.ask(point, self._size(query, point), stds, ask=ask)
        shared.known |= {view[0] for view in new}
        factors = shared.factors(list(sums))
        shared.weights[here, at] = factors
        shared.taken[here] += 1
        return np.asarray(np.sum([factors[i] * found for i, found in sums.items()], axis=0))

    def _size(self, query: Query, point: Array | None) -> int:
        """How many numbers a sum has."""
        low = getattr(query, "low", None)
        if point is not None:
            return len(point)
        if low is not None:
            return 2 * len(low)
        if isinstance(query, ColumnsWithin):
            return len(query.centre)
        if hasattr(query, "norm"):
            size = self._width() + int(query.with_target)  # type: ignore[attr-defined]
            return size * (size + 1) // 2
        return 1

    def _width(self) -> int:
        """Columns behind the maps of this view."""
        columns = next(iter(self._shared.offers.values())).statement["columns"]
        maps = [features for _, _, features, _ in self._lineage if features is not None]
        return int(columns) + sum(bool(one.fields.get("constant")) for one in maps)

    def sweep(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: compiled sweeps need records in memory."""
        raise MechanismMismatch("a sweep needs all records in memory, not at several owners: use another solver")

    def run_chain(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the server sees every sum."""
        raise MechanismMismatch("the server sees every sum, so that no chain is hidden: use view='all_iterates'")
