"""Models over owners that keep their records: each sends noisy sums under a certificate of its own.

``proposal`` (what a server asks for), ``questions`` (in which words) and ``node``, ``factors``, ``linear_node`` (what
an owner of rows answers) know nothing of transport; ``team`` (the nodes of a run, and what becomes of lost ones),
``journal``, ``session``, ``server`` and ``linear`` (what becomes of the sums); ``wire`` (messages as bytes), ``desk``
(a node's side of them), ``links`` and ``local`` (inside of one process), ``transport`` and ``tls`` (between machines).
"""

from tacit.federation.errors import FederationError, LinkLost
from tacit.federation.factors import FactorNode
from tacit.federation.linear import FederatedLinear
from tacit.federation.linear_node import LinearNode
from tacit.federation.links import Link
from tacit.federation.local import threaded_nodes
from tacit.federation.model import FederatedModel
from tacit.federation.proposal import Proposal
from tacit.federation.server import FederatedNMF
from tacit.federation.tls import TLS, make_trial_certificates
from tacit.federation.transport import NodeServer, connect, serve_node

__all__ = [
    "TLS",
    "FactorNode",
    "FederatedLinear",
    "FederatedModel",
    "FederatedNMF",
    "FederationError",
    "LinearNode",
    "Link",
    "LinkLost",
    "NodeServer",
    "Proposal",
    "connect",
    "make_trial_certificates",
    "serve_node",
    "threaded_nodes",
]
