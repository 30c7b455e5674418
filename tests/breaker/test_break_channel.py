"""Counterexamples to claim 2: more releases than certified, and correlated noise of mixed scales."""

import contextlib
import os
import threading

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import MechanismMismatch, TacitError
from tacit.mechanism import CorrelatedNoise, Mechanism, Schedule
from tacit.records import InMemory
from tacit.release import open_session
from tacit.release.queries import SquareSum, VectorSum


def _session(table, steps=1, **more):
    m = Mechanism(adjacency="replace-one", ratio=Schedule.constant(1.0, steps), steps=steps, **more)
    return open_session(certify(m), InMemory(table))


def test_correlated_noise_hides_sums_of_one_sensitivity():
    """Equal bound and size, but diameters 4 and 2: σ differs between rows of C⁻¹Z, which the certificate excludes.

    Here row 2 of C·S moves by 0.9·4 + 2 where its noise is 2: ratio 2.8, certified is 1.9.
    """
    session = _session(np.ones((4, 4)), 2, noise=CorrelatedNoise.toeplitz([1.0, 0.9]))
    session.release(VectorSum(2.0))
    with pytest.raises(MechanismMismatch):
        session.release(SquareSum(np.ones(4)))


def test_two_threads_share_one_certified_release(monkeypatch):
    session, gate, out = _session(np.eye(3)), threading.Barrier(2, timeout=2), []
    plain = VectorSum.total

    def waiting(self, rows, state, members, grid):
        found = plain(self, rows, state, members, grid)
        with contextlib.suppress(threading.BrokenBarrierError):
            gate.wait()
        return found

    monkeypatch.setattr(VectorSum, "total", waiting)

    def ask(bound):
        with contextlib.suppress(TacitError):
            out.append(session.release(VectorSum(bound)))

    threads = [threading.Thread(target=ask, args=(scale,)) for scale in (1.0, 0.5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(out) == 1, "one step is certified, two different sums were released"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_copy_of_a_session_does_not_spend_the_budget_again():
    """Pickle and copy are refused 'because two copies would each spend the budget'; a fork makes such a copy."""
    session = _session(np.eye(3))
    assert session.steps_left() == 1  # its channel is open
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            session.release(VectorSum(1.0))
            os.write(write, b"released")
        except BaseException:
            os.write(write, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    told = os.read(read, 100)
    session.release(VectorSum(1.0))
    assert told == b"refused", "parent and child both released; one release is certified"
