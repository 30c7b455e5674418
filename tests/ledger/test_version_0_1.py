"""Ledgers of version 0.1 open, and every entry counts what it counted.

``data/tacit-0.1.ledger`` was written by version 0.1 (commit 8cd76c7): one entry for each kind of plan that it could
certify, with what it said about each in ``data/tacit-0.1.json``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tacit.accounting import Certificate, certify
from tacit.errors import InvalidInput, LedgerCorrupt
from tacit.ledger import Ledger
from tacit.mechanism import Mechanism

DATA = Path(__file__).parent / "data"
SAID = json.loads((DATA / "tacit-0.1.json").read_text())
GONE = ("objective perturbation", "a figure of a paper beside it")
"""Kinds of plans that later versions no longer certify: their entries count all the same."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    for name in ("tacit-0.1.ledger", "tacit-0.1.ledger.anchor"):
        shutil.copy(DATA / name, tmp_path / name)
    return Ledger(tmp_path / "tacit-0.1.ledger")


def test_every_entry_is_counted(ledger: Ledger) -> None:
    assert ledger.verify() == len(SAID["entries"]) == 17
    for entry, said in zip(ledger.entries(), SAID["entries"], strict=True):
        fields = ("note", "kind", "mu", "epsilon", "delta", "digest")
        assert {name: getattr(entry, name) for name in fields} == {name: said[name] for name in fields}
    spent = ledger.spent()
    for name, value in SAID["spent"].items():
        assert getattr(spent, name) == pytest.approx(value, rel=1e-9)


def test_it_goes_on_where_version_0_1_stopped(ledger: Ledger) -> None:
    more = certify(Mechanism(adjacency="replace-one", ratio=0.3, steps=1))
    assert ledger.reserve(more) == 18
    assert ledger.spent().mu == pytest.approx((SAID["spent"]["mu"] ** 2 + 0.09) ** 0.5, rel=1e-12)
    assert ledger.verify() == 18


def test_a_missing_entry_is_still_noticed(ledger: Ledger) -> None:
    import sqlite3

    with sqlite3.connect(ledger.path) as connection:
        connection.execute("DELETE FROM entries WHERE id = 17")
    with pytest.raises(LedgerCorrupt):
        Ledger(ledger.path)


@pytest.mark.parametrize("said", SAID["entries"], ids=[said["note"] for said in SAID["entries"]])
def test_the_certificate_of_an_entry_is_read_back_with_its_digest_and_its_numbers(ledger: Ledger, said: dict) -> None:
    (entry,) = (entry for entry in ledger.entries() if entry.note == said["note"])
    if said["note"] in GONE:
        with pytest.raises(InvalidInput, match="not a certificate"):
            Certificate.from_json(entry.certificate)
        return
    certificate = Certificate.from_json(entry.certificate)
    assert certificate.digest == entry.digest == said["digest"]
    assert certificate.view == said["view"]
    assert [theorem.id for theorem in certificate.theorems] == said["theorems"]
    for delta, epsilon in said["epsilon_at"].items():
        assert certificate.epsilon(float(delta)) == pytest.approx(epsilon, rel=1e-9)
    if entry.mu is not None:
        assert certificate.mu == pytest.approx(entry.mu, rel=1e-9)
    else:
        assert certificate.epsilon(entry.delta) == pytest.approx(entry.epsilon, rel=1e-9)
    assert certificate.to_dict()["plan"] == json.loads(entry.certificate)["plan"]
