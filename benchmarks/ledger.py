"""Durable reservations per second, beside bare fsync-ed appends of the same machine."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import time

from run import parser

from tacit.accounting import certify
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Mechanism, Schedule

COUNT = 300


def main() -> None:
    parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TACIT_STATE_DIR"] = str(pathlib.Path(folder) / "state")
        certificate = certify(Mechanism(adjacency=Adjacency.REPLACE_ONE, ratio=Schedule.constant(0.01, 1), steps=1))
        with Ledger(pathlib.Path(folder) / "ledger.db", epsilon=10.0, delta=1e-6) as ledger:
            start = time.perf_counter()
            for _ in range(COUNT):
                ledger.reserve(certificate)
            seconds = (time.perf_counter() - start) / COUNT
        with (pathlib.Path(folder) / "plain").open("ab") as plain:
            start = time.perf_counter()
            for _ in range(COUNT):
                plain.write(b"x" * 200)
                plain.flush()
                os.fsync(plain.fileno())
            bare = (time.perf_counter() - start) / COUNT
    print(json.dumps({"cell": "reserve", "seconds_each": seconds, "ratio_to_a_bare_fsync": seconds / bare}))


if __name__ == "__main__":
    main()
