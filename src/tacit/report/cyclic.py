"""Noise, steps and ridge that a promise needs, side by side: ``tacit plan`` without ``--sigma``.

Three plans of ``tacit.plan_cyclic`` for one (ε, δ), n, b and number of epochs: fixed batches with balanced and with
constant steps, of which only the final model is shown, and Poisson batches, of which every iterate may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit.accounting import Assumption, Gap, Theorem
from tacit.accounting.poisson import PoissonGaussian
from tacit.errors import InvalidInput, TacitError
from tacit.mechanism import Evidence, batch_count
from tacit.report.methods import MAX_CHAIN, MAX_POISSON_STEPS, contraction_notes
from tacit.report.plan import MAX_POISSON_TARGET, Refusal
from tacit.report.settings import CyclicSettings, Settings
from tacit.solvers.hidden import CertifiedNumbers, plan_cyclic

__all__ = ["CyclicCurve", "CyclicReport", "CyclicRow", "make_cyclic"]

TITLES = {"balanced": "balanced steps", "constant": "constant steps", "poisson": "Poisson batches"}
"""The plans, in the order of the table."""


@dataclass(frozen=True, eq=False)
class CyclicRow:
    """One plan.

    Attributes:
        letter: names it in the text below the table.
        id: "balanced", "constant" or "poisson".
        plan: the numbers and their certificate.
        epsilon: at the δ of the settings.
        assumptions: what it rests on, the theorem's and those of the options.
    """

    letter: str
    id: str
    plan: CertifiedNumbers
    epsilon: float
    assumptions: tuple[Assumption, ...]

    @property
    def title(self) -> str:
        """For people."""
        return TITLES[self.id]

    @property
    def hidden(self) -> bool:
        """Whether only the final model may be shown."""
        return self.plan.view == "final_model"

    @property
    def theorem(self) -> Theorem:
        """The tightest theorem."""
        return self.plan.certificate.theorems[0]

    def to_dict(self, delta: float) -> dict[str, Any]:
        """Plain data; ``contraction`` is None where it plays no part."""
        p = self.plan
        return {
            "row": self.letter,
            "id": self.id,
            "method": self.title,
            "theorem": self.theorem.id,
            "theorem_name": self.theorem.name,
            "reference": self.theorem.reference,
            "may_be_released": p.certificate.view,
            "epsilon": self.epsilon,
            "delta": delta,
            "noise_multiplier": p.noise_multiplier,
            "last_noise_multiplier": p.noise_multiplier * float(p.noise[-1]),
            "sigma": p.sigma,
            "step_size": p.step_size,
            "last_step_size": float(p.step_sizes[-1]),
            "l2": p.l2,
            "step_size_times_l2": p.step_size * p.l2,
            "smoothness": p.smoothness,
            "clip": p.bound,
            "contraction": p.contraction if self.hidden else None,
            "batches": p.n_batches,
            "epochs": p.epochs,
            "steps": len(p.step_sizes),
            "assumptions": [{"text": a.text, "evidence": a.evidence.value} for a in self.assumptions],
        }


@dataclass(frozen=True)
class CyclicCurve:
    """ε over the number of epochs at one noise; each point is a plan with that many epochs.

    Attributes:
        id: of the plan whose noise and kind of steps it has.
        product: η·λ of the first step, or None for Poisson batches with the same noise.
        own: whether η and λ are the plan's, so that the curve ends at its ε.
        epochs: numbers of epochs, the last that of the plan.
        epsilon: ε.
    """

    id: str
    product: float | None
    own: bool
    epochs: tuple[int, ...]
    epsilon: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "plan": self.id,
            "sampling": "poisson" if self.product is None else "cyclic",
            "step_size_times_l2": self.product,
            "of_the_plan": self.own,
            "epochs": list(self.epochs),
            "epsilon": list(self.epsilon),
        }


@dataclass(frozen=True)
class CyclicReport:
    """The whole answer of ``tacit plan`` without ``--sigma``."""

    settings: CyclicSettings
    rows: tuple[CyclicRow, ...]
    refusals: tuple[Refusal, ...] = ()
    curves: tuple[CyclicCurve, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        found = {
            "inputs": self.settings.inputs,
            "plans": [row.to_dict(self.settings.checked_delta) for row in self.rows],
            "not_covered": [refusal.to_dict() for refusal in self.refusals],
        }
        return found | ({"curves": [curve.to_dict() for curve in self.curves]} if self.curves else {})


def make_cyclic(settings: CyclicSettings) -> CyclicReport:
    """The plans that reach the target.

    Args:
        settings: the promise and the sizes.

    Returns:
        The plans; curves are added by ``tacit.report.cyclic_curves``.

    Raises:
        InvalidInput: if a step expands, there are too many steps, or no noise reaches the target.
        NotCovered: under add-remove.

    >>> report = make_cyclic(CyclicSettings(n=60_000, batch=500, epochs=50, delta=1e-5, target_epsilon=1.33))
    >>> [(row.id, round(row.plan.sigma, 2)) for row in report.rows]
    [('balanced', 4.63), ('constant', 9.66), ('poisson', 5.26)]
    """
    steps = batch_count(settings.n, settings.batch) * settings.epochs
    if steps > MAX_CHAIN:
        raise InvalidInput(f"{steps} steps are more than the {MAX_CHAIN} planned here: fewer epochs or larger batches")
    rows: list[CyclicRow] = []
    refusals: list[Refusal] = []
    for name in TITLES:
        found = _plan(settings, name, steps) if name != "poisson" else _sampled_plan(settings, steps)
        if isinstance(found, Gap):
            refusals.append(Refusal(TITLES[name], PoissonGaussian(), found))
            continue
        epsilon = found.certificate.epsilon(settings.checked_delta)
        rows.append(CyclicRow("abc"[len(rows)], name, found, epsilon, _assumptions(settings, found)))
    return CyclicReport(settings, tuple(rows), tuple(refusals))


def _plan(s: CyclicSettings, name: str, steps: int) -> CertifiedNumbers:
    return plan_cyclic(
        s.target_epsilon,
        s.checked_delta,
        n=s.n,
        batch_size=s.batch,
        epochs=s.epochs,
        bound=s.clip,
        smoothness=s.smoothness,
        l2=s.l2,
        step_size=s.lr,
        decay=name == "balanced" and steps > 1,  # a single step has nothing to fall from
        view="all_iterates" if name == "poisson" else "final_model",
        adjacency=s.adjacency,
        partition="secret" if s.secret_partition and name != "poisson" else "fixed",
    )


def _sampled_plan(s: CyclicSettings, steps: int) -> CertifiedNumbers | Gap:
    """Poisson batches are there to compare with: what stands in their way does not stop the other plans."""
    if s.target_epsilon > MAX_POISSON_TARGET:
        return Gap("epsilon", f"not searched for: ε = {s.target_epsilon:g} promises nothing", "lower --target-epsilon")
    if steps > MAX_POISSON_STEPS:
        reason = f"{steps} steps are more than the {MAX_POISSON_STEPS} composed here"
        return Gap("steps", reason, "take fewer epochs or larger batches")
    try:
        return _plan(s, "poisson", steps)
    except (TacitError, ArithmeticError, MemoryError) as error:
        return Gap("numbers", f"no noise was found ({error})", "choose less extreme values")


def _assumptions(s: CyclicSettings, plan: CertifiedNumbers) -> tuple[Assumption, ...]:
    """The certificate's, and what the options declare."""
    if plan.view != "final_model":
        return plan.certificate.assumptions
    run = Settings(
        n=s.n,
        batch=s.batch,
        epochs=s.epochs,
        sigma=plan.noise_multiplier,
        delta=s.delta,
        lr=plan.step_size,
        l2=plan.l2,
        smoothness=plan.smoothness,
    )
    falling = float(plan.step_sizes[-1]) < plan.step_size
    of = "the first step (of later ones likewise, with their η)" if falling else "a step"
    found = [*plan.certificate.assumptions, *contraction_notes(run, of)]
    if (s.clip, s.smoothness) == (CyclicSettings.clip, CyclicSettings.smoothness):
        text = "C = √2 and β = 0.5 are those of softmax, clipped soundly, with features of norm at most 1"
        found.append(Assumption(f"{text} (other models: --clip, --smoothness)", Evidence.DECLARED))
    return tuple(found)
