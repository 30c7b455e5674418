from __future__ import annotations

import copy
import json
import math
import pickle
import threading

import pytest
from ledger_helpers import Stub, finish, start

from tacit.errors import BudgetExhausted, LedgerError
from tacit.ledger import Ledger


def test_eight_processes_share_one_budget_exactly(tmp_path):
    path, capacity = tmp_path / "ledger", 900
    with Ledger(path, 1.0, 1e-5) as ledger:
        limit = ledger.remaining().mu
        children = [start("reserve_many", path, repr(limit / math.sqrt(capacity)), 150) for _ in range(8)]
        granted = [number for child in children for number in json.loads(finish(child))]
        assert sorted(granted) == list(range(1, capacity + 1))  # 900 of 1200, each number granted once
        assert len(ledger.entries()) == capacity
        assert ledger.spent().mu == pytest.approx(limit, rel=1e-12)
        assert ledger.remaining().mu == pytest.approx(0, abs=limit * 1e-6)


def test_threads_share_one_budget_exactly(tmp_path):
    with Ledger(tmp_path / "ledger", 1.0, 1e-5) as ledger:
        mu = ledger.remaining().mu / 10
        granted, refused = [], []

        def work():
            for _ in range(20):
                try:
                    granted.append(ledger.reserve(Stub(mu)))
                except BudgetExhausted as error:
                    refused.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(granted) == list(range(1, 101))
        assert len(refused) == 60
        assert ledger.verify() == 100


def test_forked_children_and_threads_share_one_budget(tmp_path):
    path = tmp_path / "ledger"
    Ledger(path, 1.0, 1e-5).close()
    report = json.loads(finish(start("fork_under_threads", path)))
    assert report["failed"] == []
    assert report["threads"] > 0
    assert Ledger(path).verify() == report["threads"] + report["children"]


def test_two_creators_get_one_ledger(tmp_path):
    path, made, errors = tmp_path / "ledger", [], []

    def create(epsilon):
        try:
            made.append(Ledger(path, epsilon, 1e-5))
        except LedgerError as error:
            errors.append(error)

    threads = [threading.Thread(target=create, args=(1.0 + i % 2,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(errors) == 4  # one budget won; the others were told so
    assert len({ledger.epsilon for ledger in made}) == 1
    assert {entry.name for entry in tmp_path.iterdir()} == {"ledger", "ledger.anchor"}


def test_copies_and_clones_are_the_same_object(tmp_path):
    ledger = Ledger(tmp_path / "ledger", 1.0, 1e-5)
    assert copy.copy(ledger) is ledger
    assert copy.deepcopy({"nested": [ledger]})["nested"][0] is ledger
    assert ledger.__sklearn_clone__() is ledger


def test_pickle_holds_the_path_and_shares_the_budget(tmp_path):
    ledger = Ledger(tmp_path / "ledger", 1.0, 1e-5)
    blob = pickle.dumps(ledger)
    again = pickle.loads(blob)
    again.reserve(Stub(0.1))
    ledger.reserve(Stub(0.1))
    assert again.spent() == ledger.spent()
    assert again.spent().entries == 2
    (tmp_path / "ledger").unlink()
    with pytest.raises(LedgerError, match="gone"):
        pickle.loads(blob)


def test_closing_ends_the_object_not_the_ledger(tmp_path):
    path = tmp_path / "ledger"
    with Ledger(path, 1.0, 1e-5) as ledger:
        ledger.reserve(Stub(0.1))
    ledger.close()
    with pytest.raises(LedgerError, match="is closed: open it again"):
        ledger.reserve(Stub(0.1))
    assert Ledger(path).spent().entries == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ledger", "ledger.anchor"]


def test_another_working_directory_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = Ledger("ledger", 1.0, 1e-5)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ledger.reserve(Stub(0.1))
    assert Ledger(tmp_path / "ledger").verify() == 1
