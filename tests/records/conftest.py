"""A cluster for the tests of records: two workers of Dask in this process."""

from __future__ import annotations

from collections.abc import Iterator

import distributed
import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[distributed.Client]:
    """Connected once, for all tests that ask for it."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client
