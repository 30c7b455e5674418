"""Factorisation over owners that keep their records: each sends noisy sums under a certificate of its own.

``proposal`` (what a server asks for) and ``node`` (what an owner of rows answers) know nothing of transport; ``server``
(what becomes of the sums) and ``model`` (what comes out); ``wire`` (messages as bytes), ``links`` (how they travel),
``serving`` (a node on a link), ``local`` (nodes on one machine).
"""

from tacit.federation.errors import FederationError, LinkLost
from tacit.federation.links import Link, link_pair
from tacit.federation.local import local_nodes, threaded_nodes
from tacit.federation.model import FederatedModel
from tacit.federation.node import FactorNode
from tacit.federation.proposal import Proposal
from tacit.federation.server import FederatedNMF
from tacit.federation.serving import serve

__all__ = [
    "FactorNode",
    "FederatedModel",
    "FederatedNMF",
    "FederationError",
    "Link",
    "LinkLost",
    "Proposal",
    "link_pair",
    "local_nodes",
    "serve",
    "threaded_nodes",
]
