"""Three shops find common tastes, and none of them shows a customer to anybody: three processes, three certificates.

    python examples/federated_nmf.py

Each shop loads its own sales inside a process of its own, states its own ε, adds its own noise, keeps its own ledger.
This process is the server: it only ever sees noisy sums.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from functools import partial

import numpy as np

from tacit import Ledger
from tacit.federation import FactorNode, FederatedNMF, local_nodes

DELTA = 1e-6
KINDS = ("tea", "tool", "toy")
NAMES = [f"{kind}{i}" for kind in KINDS for i in range(8)]


def sales(shop: int) -> np.ndarray:
    """What each customer of a shop bought; a database in real life."""
    rng = np.random.default_rng(shop)
    tastes = np.kron(np.eye(3), np.ones(8)) * np.random.default_rng(9).uniform(0.3, 1.0, 24)
    return rng.poisson(rng.gamma(0.4, size=(3000, 3)) @ tastes)


def shop_node(shop: int, epsilon: float, folder: pathlib.Path) -> FactorNode:
    """Runs inside of the shop's process: what it states here, no other process can change."""
    ledger = Ledger(folder / f"shop{shop}.ledger", epsilon=3.0, delta=1e-5)
    return FactorNode(partial(sales, shop), epsilon=epsilon, delta=DELTA, row_norm=8.0, ledger=ledger)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        makers = [partial(shop_node, shop, epsilon, folder) for shop, epsilon in enumerate((1.0, 1.0, 2.0))]
        with local_nodes(makers) as links:
            model = FederatedNMF(3, epochs=20, item_names=NAMES, timeout=120).fit(links)
        for shop, certificate in enumerate(model.certificates_):
            spent = Ledger(folder / f"shop{shop}.ledger").spent()
            print(f"node {shop}: ε = {certificate.epsilon(DELTA):.3g} for each {certificate.unit}; {spent}")
    for i, items in enumerate(model.top_items(5)):
        print(f"taste {i}: {' '.join(items)} → {' '.join(sorted({item.rstrip('0123456789') for item in items}))}")
    print(model.certificate_.describe(DELTA))


if __name__ == "__main__":
    main()
