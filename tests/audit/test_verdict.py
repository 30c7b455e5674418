"""Verdicts: a wrong certificate is contradicted, a right one is not, for Gaussian claims and others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import norm

from tacit.audit import audit_epsilon, audit_gdp, audit_one_run
from tacit.audit.verdict import judge_rates
from tacit.errors import InvalidInput


def test_missing_noise_is_caught_every_time(gaussian_pair, gaussian_claim) -> None:
    rng = np.random.default_rng(41)
    for _ in range(20):
        verdict = audit_gdp(*gaussian_pair(1.43 / 0.7, rng), 10_000).verdict(gaussian_claim(1.43))
        assert verdict.violated
        assert verdict.message.startswith("VIOLATED: μ ≥ 1.9") or verdict.message.startswith("VIOLATED: μ ≥ 2")
        assert verdict.message.endswith("with 95 % confidence, certificate says 1.43")
        assert verdict.observed_delta > verdict.certified_delta


def test_right_certificate_stands(gaussian_pair, gaussian_claim, too_many) -> None:
    rng = np.random.default_rng(42)
    verdicts = [audit_gdp(*gaussian_pair(1.43, rng), 1000).verdict(gaussian_claim(1.43)) for _ in range(60)]
    assert not too_many(sum(v.violated for v in verdicts), 60, 0.05)
    assert str(verdicts[0]).startswith("consistent: μ ≥ 1.")


@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.3), (0.02, 0.6), (0.6, 0.02), (1e-3, 1e-3), (0.45, 0.45)])
def test_gaussian_verdict_is_the_comparison_of_mu(alpha: float, beta: float, gaussian_claim) -> None:
    # The certificate's curve, read at all ε in both directions, is exactly its trade-off function.
    mu = float(-norm.ppf(alpha) - norm.ppf(beta))
    for factor, violated in ((0.995, True), (1.005, False)):
        assert judge_rates(alpha, beta, gaussian_claim(factor * mu), confidence=0.95, claim=None).violated == violated


def test_pure_certificate(pure_claim) -> None:
    rng = np.random.default_rng(43)
    pair = (lambda k: rng.laplace(size=k), lambda k: rng.laplace(size=k) + 1.5)
    audit = audit_epsilon(*pair, 10_000, 1e-5)
    assert audit.verdict(pure_claim(1.2)).violated
    assert audit.verdict(pure_claim(1.2)).message.startswith("VIOLATED: ε(1e-05) ≥ 1.")
    assert not audit.verdict(pure_claim(1.5)).violated
    # An audit of μ judges a certificate that has none.
    verdict = audit_gdp(*pair, 10_000).verdict(pure_claim(1.0))
    assert verdict.violated
    assert verdict.message.startswith("VIOLATED: δ(")
    assert not audit_gdp(*pair, 10_000).verdict(pure_claim(1.5)).violated


def test_rare_leak_contradicts_a_gaussian_claim(gaussian_claim) -> None:
    rng = np.random.default_rng(44)
    pair = (lambda k: rng.normal(size=k), lambda k: rng.normal(size=k) + 50 * (rng.random(k) < 0.02))
    assert audit_gdp(*pair, 10_000).verdict(gaussian_claim(0.5)).violated


def test_message_quotes_what_decided(gaussian_pair, gaussian_claim) -> None:
    @dataclass(frozen=True)
    class Stricter:
        """Quotes a large μ, but claims the curve of a small one."""

        mu: float = 3.0

        def delta(self, epsilon: float) -> float:
            return gaussian_claim(0.5).delta(epsilon)

        def epsilon(self, delta: float) -> float:
            return gaussian_claim(0.5).epsilon(delta)

    verdict = audit_gdp(*gaussian_pair(1.43, np.random.default_rng(45)), 10_000).verdict(Stricter())
    assert verdict.violated
    assert verdict.message.startswith("VIOLATED: δ(")


def test_one_run_verdict(pure_claim) -> None:
    rng = np.random.default_rng(46)
    coins = rng.random(4000) < 0.5
    told = np.where(rng.random(4000) < 1 / (1 + math.exp(-2)), coins, ~coins)
    audit = audit_one_run(told, coins, delta=0.0)
    assert audit.verdict(pure_claim(1.5)).violated
    assert audit.verdict(pure_claim(1.5)).message.startswith("VIOLATED: ε(0) ≥ 1.")
    assert not audit.verdict(pure_claim(2.0)).violated


@pytest.mark.parametrize("value", [float("nan"), -0.1, 1.5, None, "0.1"])
def test_certificate_that_makes_no_sense_is_refused(value: object, gaussian_pair) -> None:
    class Broken:
        def delta(self, epsilon: float) -> object:
            return value

        def epsilon(self, delta: float) -> object:
            return -1.0 if value == 1.5 else float("nan") if value is None else value

    pair = gaussian_pair(1.0, np.random.default_rng(47))
    with pytest.raises(InvalidInput, match=r"certificate\.delta"):
        audit_gdp(*pair, 400).verdict(Broken())
    if value != "0.1":
        with pytest.raises(InvalidInput, match=r"certificate\.epsilon"):
            audit_epsilon(*pair, 400, 1e-5).verdict(Broken())


def test_no_certificate_is_refused(gaussian_pair) -> None:
    pair = gaussian_pair(1.0, np.random.default_rng(48))
    with pytest.raises(InvalidInput, match="method delta"):
        audit_gdp(*pair, 400).verdict(object())
    with pytest.raises(InvalidInput, match="method epsilon"):
        audit_epsilon(*pair, 400, 1e-5).verdict(object())
