"""The server of a factorisation: it proposes, adds up what the nodes send, and updates H. It never meets a row.

    Σ_i s_i·noisy_i,  s_i = (U_i/U)²          noise: √(Σ s_i²σ_i²)          people: Σ n_i

All of it is post-processing of releases that are covered before they leave their nodes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.estimators.nmf import DPNMF
from tacit.federation.journal import Journal
from tacit.federation.links import Link
from tacit.federation.model import FederatedModel
from tacit.federation.offers import Offer, agreed, read_certificate, read_terms, total_std, weakest
from tacit.federation.proposal import Proposal, listed_schedule
from tacit.federation.team import Rule, Team
from tacit.mechanism import AllIterates, FullBatch, Independent, Mechanism, Plan
from tacit.problem.blocks import Block, Position
from tacit.release import Bounded, noise_std
from tacit.solvers.nmf import STEP_SIZE, NMFOptions, item_block

__all__ = ["FederatedNMF"]

Array = NDArray[np.float64]


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
        on_loss: what to do when a node is lost, refuses or does not keep to the protocol: "stop", or "drop" it and go
            on with the others.
        min_nodes: with how many nodes to go on at least, for on_loss="drop".
        timeout: seconds to wait for an answer of a node, with all attempts to reach it again.

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
        on_loss: str = "stop",
        min_nodes: int | None = None,
        timeout: float = 600.0,
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
        self._rule = Rule(on_loss, min_nodes, timeout)
        probe = DPNMF(**self._parameters, epsilon=1.0, delta=0.5, row_norm=1.0)
        probe.planned_certificate(2, 2)  # refuse here what would be refused after nodes were asked

    def fit(
        self, links: Sequence[Link], *, journal: str | os.PathLike[str] | None = None, resume: bool = False
    ) -> FederatedModel:
        """Propose, and if all nodes agree, run.

        Args:
            links: to the nodes, one each.
            journal: a file that keeps what nodes answered, so that a run that stopped can be gone on with; removed at
                the end of the run.
            resume: whether to go on with the run in the journal.

        Returns:
            The model, with the certificates of the nodes.

        Raises:
            FederationError: if a node refused, was lost or did not keep to the protocol. The message says which, and
                what is spent.
            InvalidInput: if there is no link, something else than links, or one of them twice.
        """
        team = Team(links, self._rule, None if journal is None else Journal(journal, resume))
        try:
            offers = team.agree(_Factors(self.proposal))
            block = self._block(offers)
            team.begin()
            H = _run(team, block, offers, self.proposal.epochs)
        except BaseException:
            team.stop()
            raise
        team.end()
        return self._model(H, [offers[i] for i in team.begun], team)

    def _block(self, offers: dict[int, Offer]) -> Block:
        """The public description of H for all nodes together."""
        asked, stated = self.proposal, self._parameters
        people = sum(offer.statement["units"] for offer in offers.values())
        columns = next(iter(offers.values())).statement["columns"]
        seed = stated["init_seed"]
        return item_block(asked.n_components, columns, asked.update, stated["options"], people=people, seed=seed)[0]

    def _model(self, H: Array, offers: list[Offer], team: Team) -> FederatedModel:
        found, certificate = weakest(offers)
        delta = found.statement["delta"]
        model = FederatedModel(
            **self._parameters,
            epsilon=found.certificate.epsilon(delta),
            delta=delta,
            adjacency=certificate.adjacency.value,
            row_norm=max(offer.statement["row_norm"] for offer in offers),
        )
        model.components_ = H
        model.certificate_, model.certificates_ = certificate, tuple(offer.certificate for offer in offers)
        model.split_, model.n_features_in_ = self.proposal.split, H.shape[1]
        model.item_names_, model.notes_ = self.proposal.item_names, tuple(team.dropped.values())
        return model


def _names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise InvalidInput("item_names must be a sequence of strings, got one string")
    return None if names is None else tuple(names)


class _Factors:
    """A factorisation as the task of a team.

    Args:
        proposal: that every node gets.
    """

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal

    def statement(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What a node says, with the norm of its rows."""
        terms, asked = read_terms(fields, "factors"), self._proposal
        row_norm = _validate.positive(row_norm=fields.get("row_norm"))
        if not 1e-100 <= row_norm <= 1e100:
            raise InvalidInput("out of range")
        asked.size(terms["columns"])
        names = asked.item_names
        if names is not None and len(names) != terms["columns"]:
            raise InvalidInput(f"it has {terms['columns']} columns, item_names are {len(names)}")
        return {**terms, "row_norm": row_norm}

    def proposal(self, statements: dict[int, dict[str, Any]]) -> Proposal:
        """The same for all, if they belong together."""
        agreed(statements, ("columns", "adjacency", "unit"))
        return self._proposal

    def offer(self, statement: dict[str, Any], text: object, proposal: Any) -> Offer:
        """A certificate of as many full batches with fresh noise as were proposed."""
        certificate = read_certificate(text, lambda plan: _simple(plan, self._proposal.epochs))
        if certificate.adjacency.value != statement["adjacency"] or certificate.unit != statement["unit"]:
            raise InvalidInput("its certificate is not the promise that it stated")
        return Offer(statement, certificate)


def _simple(plan: Plan, steps: int) -> bool:
    part = plan.parts[0]
    return (
        len(plan) == 1
        and isinstance(part, Mechanism)
        and part.steps == steps
        and part.releases == 1
        and isinstance(part.sampling, FullBatch)
        and isinstance(part.noise, Independent)
        and isinstance(part.view, AllIterates)
    )


def _run(team: Team, block: Block, offers: dict[int, Offer], steps: int) -> Array:
    """All steps; a step counts the people, and the noise, of the nodes that answered it."""
    top = max(offers[i].statement["row_norm"] for i in team.alive)
    scales = {i: (offer.statement["row_norm"] / top) ** 2 for i, offer in offers.items()}
    bound, H = _BlockBound(block), block.start
    for step in range(steps):
        stds = {i: noise_std(offers[i].mechanisms[0], bound, step) for i in team.alive}
        sums = team.ask(H, block.release_size, stds)
        noisy = np.sum([scales[i] * found for i, found in sums.items()], axis=0)
        people = float(sum(offers[i].statement["units"] for i in sums))
        std = total_std([scales[i] * stds[i] for i in sums])
        at = Position(step, 0, 1, step, steps, people, std, {block.name: H})
        H = np.asarray(block.update(H, noisy, at), np.float64)
    return np.array(H)
