"""Settings of every test run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# The workers of pytest-xdist keep every core busy. Libraries for matrices would start a thread per core in each of
# them, and those wait for each other: an audit of 4000 small fits then takes a minute instead of ten seconds. Children
# inherit this; it must be set before NumPy or PyTorch is imported.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let products of matrices use two threads: how they cut a product then depends on the number of its rows."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(2):
        yield
