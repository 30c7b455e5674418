"""ε of every family equals that of version 0.1 for the same settings.

``version_0_1.json`` was written by version 0.1 itself: for each case its parameters, the shape of the table, and what
its certificate said.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.estimators import base, load_all

CASES = json.loads((Path(__file__).parent / "version_0_1.json").read_text())
SINCE = {"target mean", "location"}
"""What metric descent releases besides since 0.2: the first where x < 30, the second from there on."""
CLASS_MEANS = ["class share", "moments", "lower quartile", "upper quartile", "class means"]
load_all()


def _name(case: dict) -> str:
    p = case["parameters"]
    told = [str(p[key]) for key in ("solver", "view", "release", "update", "sampling", "adjacency") if key in p]
    return "-".join([case["estimator"], str(case["n"]), *told, str(len(p.get("classes", [])))])


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_the_promise_is_that_of_version_0_1(case):
    parameters = {name: tuple(v) if name.endswith("bounds") else v for name, v in case["parameters"].items()}
    model = base.ESTIMATORS[case["estimator"]](**parameters)
    certificate = model.planned_certificate(case["n"], case["p"])
    epsilon = certificate.epsilon(parameters["delta"])
    assert epsilon <= case["epsilon"] * (1 + 1e-9)  # calibration may stop a millionth below its target, never above
    assert epsilon == pytest.approx(case["epsilon"], rel=2e-6)
    assert certificate.mu == (None if case["mu"] is None else pytest.approx(case["mu"], rel=2e-6))
    assert certificate.view == case["view"]
    unit = certificate.unit  # version 0.1 called a row of DPNMF a person
    labels = [part.label for part in certificate.plan.parts]
    if "class means" in labels:  # where x = nμ/p is below 8 (docs/linear_models.md)
        heads = max(case["parts"].count("metric descent"), case["parts"].count("noisy mean"))
        assert labels in (CLASS_MEANS * heads, [CLASS_MEANS[0], CLASS_MEANS[-1]] * heads)
    else:
        then = [label.replace("person", unit) for label in case["parts"]]
        assert [label for label in labels if label not in SINCE] == then
    assert list(certificate.marks) == [mark.replace("person", unit) for mark in case["marks"]]


def test_every_family_of_version_0_1_is_compared():
    assert {case["estimator"] for case in CASES} <= set(base.ESTIMATORS)
    assert len({case["estimator"] for case in CASES}) == 12
