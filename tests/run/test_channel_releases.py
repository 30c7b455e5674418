"""No more releases than certified, by threads or by forks, and no correlated noise of mixed scales."""

from __future__ import annotations

import contextlib
import os
import threading

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import MechanismMismatch, TacitError
from tacit.mechanism import Factorised, Mechanism, Schedule
from tacit.problem import Design
from tacit.run import Channel
from tacit.run.clipped_sum import VectorSum
from tacit.run.sums import SquareSum

NOWHERE = np.zeros((1, 1))


def _channel(steps=1, records=3, **more):
    return Channel(
        certify(Mechanism(adjacency="replace-one", ratio=Schedule.constant(1.0, steps), steps=steps, **more)), records
    )


def test_correlated_noise_hides_sums_of_one_sensitivity():
    """Equal bound and size, but diameters 4 and 2: σ differs between rows of C⁻¹Z, which the certificate excludes.

    Here row 2 of C·S moves by 0.9·4 + 2 where its noise is 2: ratio 2.8, certified is 1.9.
    """
    channel = _channel(2, 4, noise=Factorised.toeplitz([1.0, 0.9]))
    channel.release(VectorSum(np.ones((4, 4)), 2.0), NOWHERE)
    with pytest.raises(MechanismMismatch):
        channel.release(SquareSum(Design(np.ones((4, 4))), np.ones(4)), NOWHERE)


def test_two_threads_share_one_certified_release():
    channel, gate, out = _channel(), threading.Barrier(2, timeout=2), []

    def slow(scale):
        total = VectorSum(scale * np.eye(3), 1.0)
        plain = total.total

        def waiting(state, batch):
            found = plain(state, batch)
            with contextlib.suppress(threading.BrokenBarrierError):
                gate.wait()
            return found

        total.total = waiting
        return total

    def ask(scale):
        with contextlib.suppress(TacitError):
            out.append(channel.release(slow(scale), NOWHERE))

    threads = [threading.Thread(target=ask, args=(scale,)) for scale in (1.0, 0.5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(out) == 1, "one step is certified, two different sums were released"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_copy_of_a_channel_does_not_spend_the_budget_again():
    """Pickle and copy are refused 'because two copies would each spend the budget'; a fork makes such a copy."""
    channel, total = _channel(), VectorSum(np.eye(3), 1.0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            channel.release(total, NOWHERE)
            os.write(write, b"released")
        except BaseException:
            os.write(write, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    told = os.read(read, 100)
    channel.release(total, NOWHERE)
    assert told == b"refused", "parent and child both released; one release is certified"
