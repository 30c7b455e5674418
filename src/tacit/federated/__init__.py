"""Factorisation over nodes that keep their rows: each sends noisy sums under a certificate of its own.

``proposal`` (what a server asks for), ``node`` (what an owner of rows answers), ``server`` (what becomes of the sums),
``model`` (what comes out), ``wire`` (messages as bytes), ``links`` (how they travel), ``local`` (on one machine).
"""

from tacit.federated.links import Link, LinkLost, connect, link_pair, listen
from tacit.federated.local import local_nodes, threaded_nodes
from tacit.federated.model import FederatedModel
from tacit.federated.node import FactorNode
from tacit.federated.server import FederatedNMF
from tacit.federated.wire import FederationError

__all__ = [
    "FactorNode",
    "FederatedModel",
    "FederatedNMF",
    "FederationError",
    "Link",
    "LinkLost",
    "connect",
    "link_pair",
    "listen",
    "local_nodes",
    "threaded_nodes",
]
