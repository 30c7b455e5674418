"""The server: it proposes, adds up what the nodes send, and updates H. It never meets a row.

    Σ_i s_i·noisy_i,  s_i = (U_i/U)²          noise: √(Σ s_i²σ_i²)          people: Σ n_i

All of it is post-processing of releases that are covered before they leave their nodes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _codec, _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput, TacitError
from tacit.estimators.nmf import DPNMF
from tacit.federation.errors import FederationError, LinkLost
from tacit.federation.links import LINK, Link, members, waiting_time
from tacit.federation.model import FederatedModel, weakest_mark
from tacit.federation.proposal import Proposal, listed_schedule
from tacit.federation.wire import Message, decode, encode, one_line
from tacit.mechanism import AllIterates, FullBatch, Independent, Mechanism, Plan
from tacit.problem.blocks import Block, Position
from tacit.release import Bounded, noise_std
from tacit.solvers.nmf import STEP_SIZE, NMFOptions, item_block

__all__ = ["FederatedNMF"]

Array = NDArray[np.float64]
MAX_ROWS = 1 << 53
MAX_MARKS = 10
MAX_ENTRY = 1e60
"""Entries of sums, noise included, that can be added and squared."""


@dataclass(frozen=True, eq=False)
class _Offer:
    """What a node says about itself: all public."""

    units: int
    columns: int
    row_norm: float
    certificate: Certificate

    @property
    def mechanism(self) -> Mechanism:
        (part,) = self.certificate.plan.parts
        assert isinstance(part, Mechanism)  # checked when it was read
        return part

    @property
    def delta(self) -> float:
        return float(self.certificate.to_dict()["claim"]["delta"])

    @property
    def mu(self) -> float:
        """Decides who is weakest, at every δ: releases of everybody in every batch are Gaussian."""
        mu = self.certificate.mu
        return math.inf if mu is None else mu


class _BlockBound(Bounded):
    """What decides the noise of a sum."""

    def __init__(self, block: Block) -> None:
        self.bound, self._reach = block.bound, block.reach

    @property
    def diameter(self) -> float:
        return self._reach


class FederatedNMF:
    """Non-negative factorisation over nodes that keep their rows: M ≈ WH, with H found from their noisy sums.

    At each of ``epochs`` steps every node gets H, and answers with the sum of its people's clipped contributions plus
    all of its own noise. The server needs no trust for privacy: everything that it sees is covered by the certificate
    of the node that sent it, which the node makes, and pays for, itself. Noise cannot be shared between nodes, because
    the server sees each sum by itself: p nodes with one ε have √p times the noise of one table with everybody.

    Sums come in units of each node's row_norm² and are added in units of the largest. Nodes must state one relation
    and one unit; their ε, δ and row_norm may differ.

    Args:
        n_components: k.
        split: "horizontal" (nodes hold rows of their own: people) or "vertical" (columns of their own: items).
        epochs: steps; each reads every row of every node.
        update: "residuals", "statistics" or "gradient", as in ``DPNMF``.
        options: as in ``DPNMF``, without ``person_share``; penalties are in units of the largest row_norm², a
            contribution_norm is at least 1e-3. A noise schedule may also be a list of variances, one per epoch;
            functions are evaluated here, and numbers are sent.
        missing: "zero" or "unobserved"; nodes must have stated the same.
        item_names: of the columns: nodes that know theirs refuse others; names for ``top_items``.
        init_seed: public, for the start.
        timeout: seconds to wait for an answer of a node; None for ever.

    Raises:
        InvalidInput: if a setting is out of range.

    >>> from tacit.federation import FactorNode, threaded_nodes
    >>> rng = np.random.default_rng(0)
    >>> nodes = [FactorNode(rng.poisson(1.0, (400, 6)), epsilon=e, delta=1e-6, row_norm=6.0) for e in (1.0, 2.0)]
    >>> with threaded_nodes(nodes) as links:
    ...     model = FederatedNMF(2, epochs=5).fit(links)
    >>> [round(c.epsilon(1e-6), 3) for c in model.certificates_], round(model.certificate_.epsilon(1e-6), 3)
    ([1.0, 2.0], 2.0)
    """

    def __init__(
        self,
        n_components: int = 10,
        *,
        split: str = "horizontal",
        epochs: int = 40,
        update: str = "residuals",
        options: NMFOptions | None = None,
        missing: str = "zero",
        item_names: Sequence[str] | None = None,
        init_seed: int = 0,
        timeout: float | None = 600.0,
    ) -> None:
        stated = NMFOptions() if options is None else options
        schedule = listed_schedule(stated.noise_schedule, _validate.positive_int(epochs=epochs))
        self.proposal = Proposal(
            n_components=n_components,
            split=split,
            epochs=epochs,
            update=update,
            contribution_norm=stated.contribution_norm,
            noise_schedule=schedule,
            step_size=STEP_SIZE if stated.step_size is None else stated.step_size,
            person_l2=stated.person_l2,
            missing=missing,
            item_names=_names(item_names),
        )
        sent = self.proposal.parameters
        own = replace(stated, noise_schedule=sent["options"].noise_schedule)
        self._parameters: dict[str, Any] = {**sent, "options": own, "init_seed": init_seed}
        self._wait = waiting_time(timeout)
        probe = DPNMF(**self._parameters, epsilon=1.0, delta=0.5, row_norm=1.0)
        probe.planned_certificate(2, 2)  # refuse here what would be refused after nodes were asked

    def fit(self, links: Sequence[Link]) -> FederatedModel:
        """Propose, and if all nodes agree, run.

        Args:
            links: to the nodes, one each.

        Returns:
            The model, with the certificates of the nodes.

        Raises:
            FederationError: if a node refused, was lost or did not keep to the protocol. The message says which, and
                what is spent; nodes are told to stop.
            InvalidInput: if there is no link, something else than links, or one of them twice.
        """
        run = _Run(members("links", links, LINK, "a link to a node"), self.proposal, self._wait)
        try:
            offers = run.offers()
            model = self._model(offers)
            model.components_ = run.factors(self._block(offers), offers)
        except BaseException as error:
            run.stop(one_line(error) if isinstance(error, TacitError) else "the server failed")
            raise
        return model

    def _block(self, offers: list[_Offer]) -> Block:
        """The public description of H for all nodes together."""
        asked, stated = self.proposal, self._parameters
        people, columns = sum(offer.units for offer in offers), offers[0].columns
        seed = stated["init_seed"]
        return item_block(asked.n_components, columns, asked.update, stated["options"], people=people, seed=seed)[0]

    def _model(self, offers: list[_Offer]) -> FederatedModel:
        """All but its factors; refuses nodes that do not belong together, before any of them has begun."""
        stated: dict[str, list[Any]] = {
            "columns": [offer.columns for offer in offers],
            "adjacency": [offer.certificate.adjacency.value for offer in offers],
            "unit": [offer.certificate.unit for offer in offers],
        }
        for name, found in stated.items():
            if len(set(found)) > 1:
                words = ", ".join(map(str, found))
                raise FederationError(f"nodes differ in {name} ({words}): agree on one; nothing was spent")
        weakest = max(offers, key=lambda offer: offer.mu)
        certificate = weakest.certificate
        for mark in dict.fromkeys(mark for offer in offers for mark in offer.certificate.marks):
            if mark not in certificate.marks:
                certificate = certificate.marked(mark)  # a seed at any node concerns everybody who reads this
        certificate = certificate.marked(weakest_mark(len(offers), certificate.unit))
        model = FederatedModel(
            **self._parameters,
            epsilon=weakest.certificate.epsilon(weakest.delta),
            delta=weakest.delta,
            adjacency=certificate.adjacency.value,
            row_norm=max(offer.row_norm for offer in offers),
        )
        model.certificate_, model.certificates_ = certificate, tuple(offer.certificate for offer in offers)
        model.split_, model.n_features_in_ = self.proposal.split, offers[0].columns
        model.item_names_ = self.proposal.item_names
        return model


def _names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise InvalidInput("item_names must be a sequence of strings, got one string")
    return None if names is None else tuple(names)


class _Run:
    """One federation on the wire."""

    def __init__(self, links: list[Link], proposal: Proposal, wait: float | None) -> None:
        self._links, self._proposal, self._wait = links, proposal, wait
        self._begun, self._step = False, 0

    def offers(self) -> list[_Offer]:
        self._tell_all(encode("propose", **self._proposal.written()))
        return [self._offer(i, message) for i, message in self._hear_all("offer")]

    def _offer(self, i: int, message: Message) -> _Offer:
        said = message.fields
        try:
            units, columns = (_validate.positive_int(**{name: said.get(name)}) for name in ("units", "columns"))
            row_norm = _validate.positive(row_norm=said.get("row_norm"))
            if max(units, columns) > MAX_ROWS or not 1e-100 <= row_norm <= 1e100:
                raise InvalidInput("out of range")
            self._proposal.size(columns)
            names = self._proposal.item_names
            if names is not None and len(names) != columns:
                raise InvalidInput(f"it has {columns} columns, item_names are {len(names)}")
            return _Offer(units, columns, row_norm, _certificate(said.get("certificate"), self._proposal.epochs))
        except TacitError as error:
            raise self._failed(i, f"made an offer that is none ({one_line(error)})") from None

    def factors(self, block: Block, offers: list[_Offer]) -> Array:
        """All steps."""
        top = max(offer.row_norm for offer in offers)
        scales = [(offer.row_norm / top) ** 2 for offer in offers]
        bound, expected = _BlockBound(block), float(sum(offer.units for offer in offers))
        self._begin()
        H, steps = block.start, self._proposal.epochs
        for step in range(steps):
            self._step = step
            self._tell_all(encode("step", H, step=step))
            noisy = np.zeros(block.release_size)
            for i, message in self._hear_all("sum"):
                noisy += scales[i] * self._sum(i, message, step, block.release_size)
            stds = [s * noise_std(offer.mechanism, bound, step) for s, offer in zip(scales, offers, strict=True)]
            at = Position(step, 0, 1, step, steps, expected, math.hypot(*stds), {block.name: H})
            H = np.asarray(block.update(H, noisy, at), np.float64)
        for link in self._links:
            with contextlib.suppress(TacitError):
                link.send(encode("end"))
        return np.array(H)

    def _begin(self) -> None:
        """One after another: if one cannot, those after it have spent nothing."""
        self._begun = True
        for i, link in enumerate(self._links):
            self._send(i, link, encode("begin"))
            self._hear(i, "ready")

    def _sum(self, i: int, message: Message, step: int, size: int) -> Array:
        found = message.array
        right = message.fields.get("step") == step and found is not None and found.shape == (size,)
        if not right or found is None or not (np.abs(found) < MAX_ENTRY).all():  # nor NaN
            raise self._failed(i, "sent something else than the sum of this step")
        return found

    # -- telling and hearing -------------------------------------------------------------------------------------

    def _tell_all(self, message: bytes) -> None:
        for i, link in enumerate(self._links):
            self._send(i, link, message)

    def _hear_all(self, kind: str) -> Iterator[tuple[int, Message]]:
        for i in range(len(self._links)):
            yield i, self._hear(i, kind)

    def _send(self, i: int, link: Link, message: bytes) -> None:
        try:
            link.send(message)
        except LinkLost as lost:
            raise self._lost(i, lost) from None

    def _hear(self, i: int, kind: str) -> Message:
        try:
            message = decode(self._links[i].receive(self._wait))
        except LinkLost as lost:
            raise self._lost(i, lost) from None
        except FederationError as error:
            raise self._failed(i, f"sent what is {error}") from None
        if message.kind == "refused":
            raise self._failed(i, f"refused: {one_line(message.fields.get('reason', 'no reason given'))}")
        if message.kind != kind:
            raise self._failed(i, f"sent {one_line(message.kind)!r} where {kind!r} was expected")
        return message

    @property
    def _standing(self) -> str:
        if not self._begun:
            return "nothing was spent: mend it and call fit again"
        return (
            f"at step {self._step} of {self._proposal.epochs}, so that no model was made: what nodes have reserved "
            "stays spent, and a new fit is a new reservation at every node"
        )

    def _failed(self, i: int, what: str) -> FederationError:
        return FederationError(f"node {i} of {len(self._links)} {what}; {self._standing}")

    def _lost(self, i: int, lost: LinkLost) -> LinkLost:
        return LinkLost(f"node {i} of {len(self._links)} was lost ({lost}), see its own log; {self._standing}")

    def stop(self, reason: str) -> None:
        """Nodes need not wait for what will not come."""
        for link in self._links:
            with contextlib.suppress(TacitError, OSError):
                link.send(encode("stop", reason=reason))


def _certificate(text: object, steps: int) -> Certificate:
    """A certificate from anybody: looked at before it is computed, so that it cannot ask for much work.

    Returns:
        The certificate, certified again.

    Raises:
        InvalidInput: if it is none of the run that was proposed.
    """
    try:
        data = _codec.parse(text) if isinstance(text, str) else None
        plan = _codec.decode(data["plan"], limit=10 * steps + 1000) if isinstance(data, dict) else None
    except (KeyError, InvalidInput):
        plan = None
    part = plan.parts[0] if isinstance(plan, Plan) and len(plan) == 1 else None
    simple = (
        isinstance(part, Mechanism)
        and part.steps == steps
        and part.releases == 1
        and isinstance(part.sampling, FullBatch)
        and isinstance(part.noise, Independent)
        and isinstance(part.view, AllIterates)
    )
    if not simple:
        raise InvalidInput("its certificate is not one of the proposed run")
    assert isinstance(text, str)
    certificate = Certificate.from_json(text)
    if len(certificate.marks) > MAX_MARKS:
        raise InvalidInput("its certificate has too many marks")
    return certificate
