"""A session counts, marks, pays first, and resumes without reusing noise."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import BudgetExhausted, MechanismMismatch
from tacit.ledger import Ledger
from tacit.mechanism import CorrelatedNoise, Mechanism, Plan, Selection, Trials
from tacit.records import InMemory
from tacit.release import SEEDED, open_session
from tacit.release.queries import GramSum, VectorSum

TABLE = np.random.default_rng(0).normal(size=(6, 2))


def mechanism(**change) -> Mechanism:
    return Mechanism(**{"adjacency": "zero-out", "ratio": 0.5, "steps": 4, **change})


def test_not_one_release_more_than_certified(opened):
    session = opened(certify(mechanism(steps=2, releases=3)), TABLE)
    for _ in range(6):
        session.release(VectorSum(1.0))
    with pytest.raises(BudgetExhausted, match="certify a longer plan"):
        session.release(VectorSum(1.0))


def test_only_registered_queries_are_served(opened):
    class Foreign(VectorSum):
        pass

    session = opened(certify(mechanism()), TABLE)
    with pytest.raises(MechanismMismatch, match="not a registered query"):
        session.release(Foreign(1.0))
    assert session.steps_left() == 4


def test_a_state_has_one_row_per_replica(opened):
    """With more rows than replicas, one row of noise would hide all of them."""
    session = opened(certify(mechanism()), TABLE, replicas=3)
    for state in (np.zeros((2, 2)), np.zeros((0, 2))):
        with pytest.raises(MechanismMismatch, match="one row per replica"):
            session.release(VectorSum(1.0), state)
    assert session.release(VectorSum(1.0), np.zeros((3, 2))).shape == (3, 2)


def test_a_selection_is_not_run(opened):
    plan = Selection(base=(mechanism(),), trials=Trials(5))
    with pytest.raises(MechanismMismatch, match="each candidate"):
        opened(certify(plan), TABLE).release(VectorSum(1.0))


def test_parts_are_counted_by_themselves_and_from_any_one_on(opened):
    session = opened(certify(Plan.of(mechanism(steps=1), mechanism(steps=2))), TABLE)
    later = session.through(parts_from=1)
    later.release(VectorSum(1.0))
    assert (session.steps_left(0), session.steps_left(1), later.steps_left()) == (1, 1, 1)
    session.release(VectorSum(1.0), part=1)
    with pytest.raises(BudgetExhausted):
        later.release(VectorSum(1.0))


# -- marks, ledger, seeds ---------------------------------------------------------------------------------------


def test_a_seed_repeats_and_marks(opened):
    a, b = (opened(certify(mechanism()), TABLE, random_state=1) for _ in range(2))
    assert np.array_equal(a.release(VectorSum(1.0)), b.release(VectorSum(1.0)))
    assert a.certificate.marks == (SEEDED,)
    assert SEEDED in str(a.certificate)
    assert a.certificate.from_json(a.certificate.to_json()).marks == (SEEDED,)
    assert opened(certify(mechanism()), TABLE).certificate.marks == ()


def test_the_ledger_holds_every_mark_of_the_certificate(opened, tmp_path):
    with Ledger(tmp_path / "l.db", epsilon=99.0, delta=1e-6) as ledger:
        session = opened(
            certify(mechanism()), TABLE, ledger=ledger, random_state=3, marks=("declared: a word",), note="mine"
        )
        (entry,) = ledger.entries()
        assert tuple(entry.marks) == session.certificate.marks == ("declared: a word", SEEDED)
        assert entry.digest == session.certificate.digest
        assert (entry.note, session.entry) == ("mine", entry.id)


def test_the_budget_is_reserved_before_any_record_is_read(opened, tmp_path, monkeypatch):
    certificate = certify(mechanism())
    with Ledger(tmp_path / "l.db", epsilon=1.2 * certificate.epsilon(1e-6), delta=1e-6) as ledger:
        opened(certificate, TABLE, ledger=ledger).release(VectorSum(1.0))
        monkeypatch.setattr(InMemory, "parts", lambda self: pytest.fail("a record was read"))
        with pytest.raises(BudgetExhausted):
            opened(certificate, TABLE, ledger=ledger)
        assert len(ledger.entries()) == 1


def test_replicas_are_marked_and_not_paid_for(opened, tmp_path):
    certificate = certify(mechanism())
    assert any("5 replicas" in mark for mark in opened(certificate, TABLE, replicas=5).certificate.marks)
    with Ledger(tmp_path / "l.db", epsilon=99.0, delta=1e-6) as ledger:
        with pytest.raises(MechanismMismatch, match="a ledger pays for one run"):
            opened(certificate, TABLE, replicas=5, ledger=ledger)
        assert ledger.entries() == ()


def test_a_warning_about_a_record_is_silenced_whatever_the_caller_has_set():
    huge = np.array([[1e308, 1e308], [1e308, -1e308]])
    with np.errstate(all="raise"), open_session(certify(mechanism()), InMemory(huge)) as session:
        assert np.isfinite(session.release(GramSum(1.0))).all()


def test_a_closed_session_releases_nothing():
    with open_session(certify(mechanism()), InMemory(TABLE)) as session:
        session.release(VectorSum(1.0))
    with pytest.raises(MechanismMismatch, match="closed"):
        session.release(VectorSum(1.0))


# -- resume -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [None, CorrelatedNoise.toeplitz([1.0, 0.6, 0.3])])
@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_resume_repeats_nothing_and_changes_nothing(opened, noise, stop):
    certificate = certify(mechanism() if noise is None else mechanism(noise=noise))
    whole = opened(certificate, TABLE)
    start = whole.checkpoint()
    expected = [whole.release(VectorSum(1.0)) for _ in range(4)]

    first = opened(certificate, TABLE, resume=start)
    got = [first.release(VectorSum(1.0)) for _ in range(stop)]
    second = opened(certificate, TABLE, resume=first.checkpoint())
    got += [second.release(VectorSum(1.0)) for _ in range(4 - stop)]
    assert np.array_equal(np.stack(got), np.stack(expected))
    with pytest.raises(BudgetExhausted):
        second.release(VectorSum(1.0))
    assert len({row.tobytes() for row in expected}) == 4


def test_resume_refuses_another_certificate(opened):
    point = opened(certify(mechanism()), TABLE).checkpoint()
    with pytest.raises(MechanismMismatch, match="another certificate"):
        opened(certify(mechanism(ratio=0.1)), TABLE, resume=point)


def test_resume_is_not_charged_again(opened, tmp_path):
    with Ledger(tmp_path / "l.db", epsilon=99.0, delta=1e-6) as ledger:
        first = opened(certify(mechanism()), TABLE, ledger=ledger)
        opened(certify(mechanism()), TABLE, ledger=ledger, resume=first.checkpoint(), entry=first.entry)
        assert len(ledger.entries()) == 1
        opened(certify(mechanism()), TABLE, ledger=ledger, resume=first.checkpoint())  # begun without this ledger
        assert len(ledger.entries()) == 2


def test_a_seeded_session_is_marked_also_when_resumed(opened):
    session = opened(certify(mechanism()), TABLE, random_state=3)
    assert opened(certify(mechanism()), TABLE, resume=session.checkpoint()).certificate.marks == (SEEDED,)


def test_a_checkpoint_does_not_print_its_key(opened):
    point = opened(certify(mechanism()), TABLE).checkpoint()
    assert point.key.hex() not in repr(point)
    assert str(point.key) not in repr(point)


def test_sessions_are_not_copied(opened):
    session = opened(certify(mechanism()), TABLE)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="not copied"):
            attempt(session)
        with pytest.raises(TypeError, match="not copied"):
            attempt(session._channel(0))


# -- a plan that follows from its first release -----------------------------------------------------------------


def test_a_session_goes_on_under_a_cheaper_plan_only(opened):
    count, rest = mechanism(steps=1), mechanism(steps=1, ratio=0.4)
    session = opened(certify(Plan.of(count, rest)), TABLE, random_state=1, marks=("declared: x",))
    session.release(VectorSum(1.0))
    cheaper = certify(Plan.of(count, mechanism(steps=2, ratio=0.2)))
    after = session.narrowed(cheaper)
    assert after.certificate.marks == ("declared: x", SEEDED)
    assert after.certificate.plan == cheaper.plan
    assert after.steps_left() == 2
    for wrong in (Plan.of(count, mechanism(steps=1, ratio=0.5)), Plan.of(mechanism(steps=2), rest)):
        with pytest.raises(MechanismMismatch, match="more than what was reserved"):
            session.narrowed(certify(wrong))
