from __future__ import annotations

import json
import math
import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_helpers import Relation, Stub

from tacit.accounting import certify, gdp_epsilon, gdp_mu
from tacit.errors import BudgetExhausted, InvalidInput, LedgerError
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Mechanism, Poisson


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


def test_a_reservation_is_on_disk_when_it_returns(path):
    with Ledger(path, 1.0, 1e-5) as ledger:
        assert ledger.reserve(Stub(0.1), "first run") == 1
        assert ledger.reserve(Stub(0.2)) == 2
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert raw.execute("SELECT id, mu, note FROM entries").fetchall() == [(1, 0.1, "first run"), (2, 0.2, "")]
    raw.close()


def test_entries_keep_everything(path):
    note = "Ünïcode\nline\x00nul 🙂"
    certificate = Stub(0.1, adjacency=Relation.REPLACE_ONE, unit="user")
    with Ledger(path, 1.0, 1e-5) as ledger:
        ledger.reserve(certificate, note)
    (entry,) = Ledger(path).entries()
    assert (entry.id, entry.kind, entry.mu, entry.epsilon, entry.delta) == (1, "gaussian", 0.1, None, None)
    assert (entry.adjacency, entry.unit, entry.digest) == ("REPLACE_ONE", "user", certificate.digest)
    assert (entry.note, json.loads(entry.certificate)["unit"]) == (note, "user")
    assert "\n" not in str(entry)
    assert "μ = 0.1" in str(entry)


def test_summaries(path):
    with Ledger(path, 1.0, 1e-5) as ledger:
        limit = gdp_mu(1.0, 1e-5)
        start = ledger.remaining()
        assert (start.epsilon, start.mu, start.basic_epsilon, start.basic_delta) == (1.0, limit, 1.0, 1e-5)
        assert (ledger.spent().epsilon, ledger.spent().mu, ledger.spent().entries) == (0.0, 0.0, 0)
        for _ in range(4):
            ledger.reserve(Stub(0.1))
        spent, left = ledger.spent(), ledger.remaining()
        assert spent.mu == pytest.approx(0.2, rel=1e-15)
        assert spent.epsilon == pytest.approx(gdp_epsilon(0.2, 1e-5), rel=1e-12)
        assert spent.delta == 1e-5
        assert left.mu == pytest.approx(math.sqrt(limit**2 - 0.04), rel=1e-12)
        assert left.epsilon == pytest.approx(1 - spent.epsilon, rel=1e-12)
        assert (left.basic_epsilon, left.basic_delta) == (0.0, 0.0)
        assert str(spent).startswith("spent: ε = ")
        assert "4 entries" in str(spent)
        assert str(left).startswith("remaining: ε = ")
        assert repr(ledger) == f"Ledger({str(path)!r}, epsilon=1.0, delta=1e-05)"


def test_a_refusal_says_what_is_asked_and_left_and_writes_nothing(path):
    with Ledger(path, 1.0, 1e-5) as ledger:
        ledger.reserve(Stub(0.2))
        before = ledger.entries()
        with pytest.raises(BudgetExhausted, match=r"asks for μ = 0\.2 and μ = 0\.178.* remains.*more noise") as info:
            ledger.reserve(Stub(0.2))
        assert "\n" not in str(info.value)
        assert ledger.entries() == before
        ledger.reserve(Stub(0.1))  # a smaller one still fits
        ledger.reserve(Stub(0.0))  # and a free one always does


def test_a_full_ledger_admits_only_free_runs(path):
    with Ledger(path, 1.0, 1e-5) as ledger:
        ledger.reserve(Stub(ledger.remaining().mu))
        assert ledger.spent().epsilon <= 1.0
        assert ledger.remaining().epsilon == pytest.approx(0, abs=1e-9)
        ledger.reserve(Stub(0.0))
        with pytest.raises(BudgetExhausted):
            ledger.reserve(Stub(1e-5))


@pytest.mark.parametrize("certificate", [Stub(math.inf), Stub(1e300), Stub(epsilon=math.inf)])
def test_charges_that_fit_nowhere(path, certificate):
    with Ledger(path, 1e6, 0.5) as ledger:
        with pytest.raises(BudgetExhausted, match="asks for"):
            ledger.reserve(certificate)
        assert ledger.verify() == 0
        assert ledger.adjacency is None  # a refused run decides nothing
        assert ledger.remaining().basic_epsilon == 1e6


def test_delta_is_asked_of_the_certificate_as_charged(path):
    certificate = Stub(epsilon=0.1)
    with Ledger(path, 1.0, 1e-5) as ledger:
        ledger.reserve(certificate)
        ledger.reserve(certificate)
        ledger.reserve(certificate, delta=1e-7)
        assert [entry.delta for entry in ledger.entries()] == [5e-6, 2.5e-6, 1e-7]
        assert certificate.asked == [5e-6, 2.5e-6, 1e-7]
        assert ledger.spent().basic_delta == pytest.approx(7.6e-6, rel=1e-12)


@pytest.mark.parametrize("fixed", [{}, {"adjacency": Relation.ADD_REMOVE, "unit": "record"}])
def test_relations_and_units_never_mix(path, fixed):
    with Ledger(path, 1.0, 1e-5, **fixed) as ledger:
        if not fixed:
            ledger.reserve(Stub(0.01))
        for other in (Stub(0.01, adjacency=Relation.REPLACE_ONE), Stub(0.01, unit="user")):
            with pytest.raises(LedgerError, match="never compose; use another ledger"):
                ledger.reserve(other)
        ledger.reserve(Stub(0.01))
        assert (ledger.adjacency, ledger.unit) == ("ADD_REMOVE", "record")
    again = Ledger(path, adjacency="add-remove", unit="record")
    with pytest.raises(LedgerError, match="never compose"):
        again.reserve(Stub(0.01, unit="user"))


def test_the_projects_own_relations_are_understood(path):
    with Ledger(path, 1.0, 1e-5, adjacency=Adjacency.REPLACE_ONE) as ledger:
        ledger.reserve(Stub(0.1, adjacency=Adjacency.REPLACE_ONE))
    assert Ledger(path, adjacency="replace-one").adjacency == "REPLACE_ONE"


def test_real_certificates_are_charged_as_they_promise(path):
    gaussian = certify(Mechanism(adjacency="replace-one", ratio=0.05, steps=4))
    sampled = certify(Mechanism(adjacency="replace-one", ratio=0.2, steps=4, sampling=Poisson(0.01)))
    assert gaussian.mu == pytest.approx(0.1)
    assert sampled.mu is None
    with Ledger(path, 1.0, 1e-5, basic_share=0.5) as ledger:
        ledger.reserve(gaussian)
        ledger.reserve(sampled, delta=1e-6)
        one, two = ledger.entries()
    assert (one.kind, one.mu, one.adjacency, one.digest) == ("gaussian", gaussian.mu, "REPLACE_ONE", gaussian.digest)
    assert (two.kind, two.epsilon, two.certificate) == ("basic", sampled.epsilon(1e-6), sampled.to_json())


def test_opening_again_needs_only_the_path(path):
    Ledger(path, 1.0, 1e-5, basic_share=0.5, unit="user").close()
    ledger = Ledger(path)
    assert (ledger.epsilon, ledger.delta, ledger.basic_share, ledger.unit) == (1.0, 1e-5, 0.5, "user")
    Ledger(path, 1.0, 1e-5, basic_share=0.5, unit="user")  # the same terms are fine


@pytest.mark.parametrize(
    "other",
    [
        {"epsilon": 2.0},
        {"delta": 1e-6},
        {"epsilon": 1.0, "delta": 2e-5},
        {"basic_share": 0.5},
        {"basic_share": 0.0},
        {"unit": "user"},
        {"adjacency": Relation.REPLACE_ONE},
    ],
)
def test_other_terms_are_refused(path, other):
    with Ledger(path, 1.0, 1e-5) as ledger:
        ledger.reserve(Stub(0.1))
    with pytest.raises(LedgerError, match=r"open it with Ledger\(path\) alone, or choose another path"):
        Ledger(path, **other)
    assert Ledger(path).verify() == 1


def test_a_second_object_sees_the_first_ones_entries_at_once(path):
    one, two = Ledger(path, 1.0, 1e-5), Ledger(path)
    limit = one.remaining().mu
    one.reserve(Stub(0.9 * limit))
    with pytest.raises(BudgetExhausted):
        two.reserve(Stub(0.9 * limit))
    assert two.spent() == one.spent()


def test_a_charge_that_no_longer_fits_is_worked_out_again(path):
    # While the certificate computes ε, somebody else takes most of the δ: the charge must follow.
    ledger = Ledger(path, 1.0, 1e-5, basic_share=1.0)

    def slow(delta):
        if delta == 5e-6:
            Ledger(path).reserve(Stub(epsilon=0.1), delta=8e-6)
        return 0.1

    ledger.reserve(Stub(epsilon=slow))
    charged = [entry.delta for entry in ledger.entries()]
    assert charged == [8e-6, pytest.approx(1e-6, rel=1e-9)]


def test_the_kind_is_decided_by_who_commits_first(path):
    ledger = Ledger(path, 1.0, 1e-5)

    def slow(delta):
        if Ledger(path).verify() == 0:
            Ledger(path).reserve(Stub(0.1))
        return 0.1

    with pytest.raises(LedgerError, match="Gaussian only"):
        ledger.reserve(Stub(epsilon=slow))
    assert ledger.verify() == 1


def test_the_relation_is_decided_by_who_commits_first(path):
    ledger = Ledger(path, 1.0, 1e-5)

    def slow(delta):
        if Ledger(path).verify() == 0:
            Ledger(path).reserve(Stub(epsilon=0.1, unit="user"))
        return 0.1

    with pytest.raises(LedgerError, match="never compose"):
        ledger.reserve(Stub(epsilon=slow, unit="record"))
    assert ledger.verify() == 1


@settings(
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    share=st.sampled_from([None, 0.0, 0.3, 1.0]),
    runs=st.lists(st.tuples(st.booleans(), st.floats(0, 0.7)), max_size=12),
)
def test_any_history_reads_back_and_stays_within_the_limits(tmp_path_factory, share, runs):
    path = tmp_path_factory.mktemp("history") / "ledger"
    ledger = Ledger(path, 1.0, 1e-5, basic_share=share)
    granted = []
    for gaussian, size in runs:
        try:
            ledger.reserve(Stub(size * 0.27, epsilon=size) if gaussian else Stub(epsilon=size))
        except (BudgetExhausted, LedgerError):
            continue
        granted.append(size)
    again = Ledger(path)
    assert again.entries() == ledger.entries()
    assert len(granted) == len(again.entries())
    assert again.spent().epsilon <= 1 + 1e-9
    assert again.spent().basic_delta <= 1e-5 * (1 + 1e-9)
    spent, left = again.spent(), again.remaining()
    assert spent.epsilon + left.epsilon == pytest.approx(1.0, rel=1e-9)


def test_no_certificate_no_entry(path):
    ledger = Ledger(path, 1.0, 1e-5)

    class Missing(Stub):
        to_json = None

    wrong = [
        None,
        0.3,
        "certificate",
        Missing(0.1),
        Stub(math.nan),
        Stub(-0.1),
        Stub("0.1"),
        Stub(True),
        Stub(0.1, unit=""),
        Stub(0.1, unit=3),
        Stub(0.1, adjacency="add-remove"),
        Stub(epsilon=math.nan),
        Stub(epsilon=-1.0),
        Stub(epsilon="1"),
    ]
    bad_digest = Stub(0.1)
    bad_digest.digest = "not hex"
    for certificate in [*wrong, bad_digest]:
        with pytest.raises(InvalidInput) as info:
            ledger.reserve(certificate)
        assert "\n" not in str(info.value)
    for note in (3, None, b"x", "\ud800"):
        with pytest.raises(InvalidInput, match="note"):
            ledger.reserve(Stub(0.1), note)
    for delta in (-1e-9, 1.5, math.nan, "1e-5", True):
        with pytest.raises(InvalidInput, match="delta"):
            ledger.reserve(Stub(0.1), delta=delta)
    assert ledger.verify() == 0
    ledger.reserve(Stub(-0.0))
    assert ledger.verify() == 1


@pytest.mark.parametrize("mu", [5e-324, 1e-200, 1e-160, 0.1 + 2**-55, 1 / 3])
def test_every_float_survives_storage(path, mu):
    with Ledger(path, 10.0, 1e-5) as ledger:
        ledger.reserve(Stub(mu))
    (entry,) = Ledger(path).entries()
    assert entry.mu == mu
    assert Ledger(path).spent().mu == pytest.approx(mu, rel=1e-12) or mu < 1e-160
