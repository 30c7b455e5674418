"""Three shops find common tastes, and none of them shows a customer to anybody: three processes, three certificates.

    python examples/federated_nmf.py

Each shop loads its own sales inside a process of its own, states its own ε, adds its own noise, keeps its own ledger,
and answers over gRPC with mutual TLS. This process is the server: it only ever sees noisy sums. Needs the extra
``federation``: pip install 'tacit-dp[federation]'.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import pathlib
import tempfile
from typing import Any

import numpy as np

from tacit import Ledger
from tacit.federation import TLS, FactorNode, FederatedNMF, connect, make_trial_certificates, serve_node

DELTA = 1e-6
SHOPS = {"shop0": 1.0, "shop1": 1.0, "shop2": 2.0}
KINDS = ("tea", "tool", "toy")
NAMES = [f"{kind}{i}" for kind in KINDS for i in range(8)]


def sales(shop: int) -> np.ndarray:
    """What each customer of a shop bought; a database in real life."""
    rng = np.random.default_rng(shop)
    tastes = np.kron(np.eye(3), np.ones(8)) * np.random.default_rng(9).uniform(0.3, 1.0, 24)
    return rng.poisson(rng.gamma(0.4, size=(3000, 3)) @ tastes)


def serve_shop(shop: int, name: str, epsilon: float, folder: pathlib.Path, door: Any) -> None:
    """Runs inside of the shop's process: what it states here, no other process can change."""
    ledger = Ledger(folder / f"{name}.ledger", epsilon=3.0, delta=1e-5)
    node = FactorNode(sales(shop), epsilon=epsilon, delta=DELTA, row_norm=8.0, ledger=ledger)
    with serve_node(node, "127.0.0.1:0", tls=TLS.read(folder / "certificates", name)) as server:
        door.send_bytes(server.address.encode())  # in earnest, shops publish their addresses
        door.recv_bytes()  # until the server says that it is over


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        certificates = make_trial_certificates(folder / "certificates", list(SHOPS))
        links = []
        for shop, (party, epsilon) in enumerate(SHOPS.items()):
            here, there = context.Pipe()
            process = context.Process(target=serve_shop, args=(shop, party, epsilon, folder, there))
            process.start()
            there.close()  # a process that fails says why, and its end of the pipe closes
            stack.callback(process.join, 30)
            stack.callback(here.send_bytes, b"over")
            address = here.recv_bytes().decode()
            links.append(stack.enter_context(connect(address, tls=TLS.read(certificates, "server"), node=party)))
        model = FederatedNMF(3, epochs=20, item_names=NAMES, timeout=120).fit(links)
        for party, certificate in zip(SHOPS, model.certificates_, strict=True):
            spent = Ledger(folder / f"{party}.ledger").spent()
            print(f"{party}: ε = {certificate.epsilon(DELTA):.3g} for each {certificate.unit}; {spent}")
    for i, items in enumerate(model.top_items(5)):
        print(f"taste {i}: {' '.join(items)} → {' '.join(sorted({item.rstrip('0123456789') for item in items}))}")
    print(model.certificate_.describe(DELTA))


if __name__ == "__main__":
    main()
