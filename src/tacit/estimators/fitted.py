"""What fitted attributes must look like: shapes, numbers, and agreement with parameters and certificate.

Files are checked with it before they are believed, and models before they are written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tacit import _validate
from tacit.accounting import Certificate, certify
from tacit.accounting.theorem import EVERY_ITERATE
from tacit.errors import InvalidInput
from tacit.inputs.tables import class_list
from tacit.mechanism import Adjacency, FrozenArray, Mechanism, Part, Plan, Schedule, Selection, batch_count
from tacit.solvers.blocks import BlockLayout, BlockPlan

__all__ = [
    "CHANGED",
    "agree",
    "check_block_plan",
    "check_classes",
    "check_marks",
    "check_numbers",
    "check_plan",
    "check_promise",
    "check_single_target",
    "check_steps",
    "check_width",
    "check_words",
    "is_selected",
]

CHANGED = "parameters were changed after fit; set them back, or fit again"
UNITS = ("record", "person")
"""Whom a certificate of a fit is about; a federation can cover others."""
ROUNDING = 1e-9
"""Relative: another machine may round otherwise."""


def check_numbers(name: str, value: Any, shape: tuple[int, ...], *, least: float = -math.inf) -> None:
    """Refuse anything but finite float64 numbers of this shape, none below ``least``."""
    if isinstance(value, float) and shape == ():
        fits = math.isfinite(value) and value >= least
    else:
        fits = isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == shape
        fits = fits and bool(np.isfinite(value).all() and (value >= least).all())
    if not fits:
        kind = "finite" if least == -math.inf else "finite, non-negative"
        raise InvalidInput(f"{name} must hold {kind} numbers of shape {shape}: {CHANGED}")


def check_width(model: Any) -> int:
    """The number of features, checked."""
    p = getattr(model, "n_features_in_", None)
    if type(p) is not int or p < 1:
        raise InvalidInput("n_features_in_ must be a positive integer")
    return p


def check_words(model: Any, p: int) -> None:
    """Names of features, notes and the solver's name."""
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        listed = isinstance(names, np.ndarray) and names.shape == (p,)
        if not (listed and all(isinstance(name, str) for name in names.tolist())):
            raise InvalidInput("feature_names_in_ must hold one name per feature")
    notes = getattr(model, "notes_", ())
    words = isinstance(notes, tuple) and all(isinstance(x, str) for x in (*notes, getattr(model, "solver_", "")))
    if not words:
        raise InvalidInput("solver_ and notes_ must hold words")


def check_classes(model: Any) -> None:
    """``classes_``: sorted, distinct, and what ``classes`` says; the certificate says where else they come from."""
    classes = getattr(model, "classes_", None)
    if not isinstance(classes, np.ndarray) or classes.ndim != 1 or len(classes) < 2:
        raise InvalidInput("classes_ must list at least two labels")
    if len(np.unique(classes)) != len(classes) or (classes[:-1] > classes[1:]).any():
        raise InvalidInput("classes_ must be sorted and distinct")
    stated = model.classes
    if stated is not None and len(stated) != len(classes):
        raise InvalidInput(f"classes_ is not what classes says: {CHANGED}")
    listed, marks = class_list(stated, classes)
    if not np.array_equal(listed, classes):
        raise InvalidInput(f"classes_ is not what classes says: {CHANGED}")
    check_marks(model, marks)


def check_marks(model: Any, marks: Sequence[str]) -> None:
    """Refuse a certificate that leaves out what it must say besides its numbers."""
    if not set(marks) <= set(model.certificate_.marks):
        raise InvalidInput(
            "its certificate does not say to whom, or under which declaration, it is a promise: fit again"
        )


def check_promise(model: Any) -> None:
    """Refuse parameters that promise more than the certificate: ε, δ, the relation, the unit, the view."""
    certificate = getattr(model, "certificate_", None)
    if not isinstance(certificate, Certificate):
        raise InvalidInput(f"this {type(model).__name__} is not fitted: call fit before saving it")
    delta, epsilon = _validate.delta(model.delta), _validate.positive(epsilon=model.epsilon)
    relation = Adjacency.parse(model.adjacency)
    if certificate.adjacency is not relation or certificate.epsilon(delta) > epsilon * (1 + 1e-6):
        raise InvalidInput("its parameters promise more than its certificate: epsilon, delta or adjacency was changed")
    if certificate.unit not in getattr(model, "units", UNITS):
        raise InvalidInput(f"its plan is about another unit, {certificate.unit!r}: {CHANGED}")
    shown = getattr(model, "view", "final_model")
    if shown == "all_iterates" and certificate.view != EVERY_ITERATE and not is_selected(certificate):
        raise InvalidInput(f"view='all_iterates' promises more than its certificate, of {certificate.view}: {CHANGED}")


def is_selected(certificate: Certificate) -> bool:
    """Whether it is about the winner of a search."""
    return isinstance(certificate.plan.parts[0], Selection)


def check_single_target(model: Any, outputs: int) -> None:
    """``single_target_``: whether there is one output, without an axis of its own."""
    if type(getattr(model, "single_target_", None)) is not bool or (model.single_target_ and outputs != 1):
        raise InvalidInput("single_target_ must be True or False, and True for one output alone")


def check_steps(certificate: Certificate, steps: int) -> None:
    """Refuse parameters of other steps than were certified, before anything of their number is made.

    Args:
        certificate: of one fit, or of a search.
        steps: by the parameters.

    Raises:
        InvalidInput: if the numbers differ.
    """
    part = certificate.plan.parts[0]
    if isinstance(part, Mechanism) and part.steps != steps:
        raise InvalidInput(f"its plan does not have the {part.steps} steps that were certified: {CHANGED}")


def check_plan(certificate: Certificate, plan: Plan) -> None:
    """Refuse a plan that is not what was certified: the same one, or one that the search could afford.

    Args:
        certificate: of the model.
        plan: of its fit.

    Raises:
        InvalidInput: if it is another one.
    """
    if is_selected(certificate):
        fits = _affordable(certificate.plan.parts[0], certify(plan))
    else:
        fits = agree(certificate.plan, plan)
    if not fits:
        raise InvalidInput(f"its plan is not the one that was certified (plan_, certificate_): {CHANGED}")


def check_block_plan(
    model: Any, plan: BlockPlan, batch: Callable[[int], int], layout: Callable[[], BlockLayout]
) -> None:
    """Refuse a plan of blocks that the parameters do not make, or that was not certified.

    Args:
        model: with parameters and certificate.
        plan: its plan.
        batch: the size of a batch, from the number of records.
        layout: makes the run of the parameters; called after its number of steps is known to fit.

    Raises:
        InvalidInput: if something is not what it was at the fit.
    """
    n, epochs = _validate.positive_int(n=plan.n), _validate.positive_int(epochs=model.epochs)
    steps, size = batch_count(n, batch(n)) * epochs, len(plan.blocks)
    check_steps(model.certificate_, steps)
    check_numbers("plan_.ratio", plan.ratio, (steps, size), least=0.0)
    found = layout()
    if [block.name for block in found.blocks] != [block.name for block in plan.blocks]:
        raise InvalidInput(f"its blocks are not those that were planned (plan_): {CHANGED}")
    if not all(agree(here.start, there.start) for here, there in zip(found.blocks, plan.blocks, strict=True)):
        raise InvalidInput(f"its start is not the one that it was fitted from, by init_seed: {CHANGED}")
    noise = found.noise_of(plan.ratio)
    check_plan(model.certificate_, found.make(noise))
    if not agree(found.blocks, plan.blocks):
        raise InvalidInput(f"its blocks are not bounded or updated as it was planned (plan_): {CHANGED}")
    if not agree(found.plan(noise, model.certificate_), plan):
        raise InvalidInput(f"plan_ is not the plan of its parameters: {CHANGED}")


def _affordable(part: Part, found: Certificate) -> bool:
    if not isinstance(part, Selection) or not isinstance(part.base[0], Mechanism) or found.mu is None:
        return False
    within = math.isfinite(found.mu) and found.mu <= part.base[0].ratio.max * (1 + ROUNDING)
    return within and (found.adjacency, found.unit) == (part.adjacency, part.unit)


def agree(found: Any, stated: Any) -> bool:
    """Whether two descriptions are equal but for rounding of their numbers; certificates are left aside."""
    if type(found) is not type(stated):
        return False
    if isinstance(found, np.ndarray):
        if found.shape != stated.shape or found.dtype != stated.dtype:
            return False
        close = found.dtype.kind == "f" and np.isclose(found, stated, rtol=ROUNDING, atol=0.0).all()
        return bool(close) or np.array_equal(found, stated)
    if isinstance(found, FrozenArray):
        return agree(found.values, stated.values)
    if isinstance(found, Schedule):
        (here, counts), (there, others) = found.runs, stated.runs
        if np.array_equal(counts, others):
            return agree(here, there)
        return len(found) == len(stated) and agree(found.to_array(), stated.to_array())
    if isinstance(found, tuple | list):
        return len(found) == len(stated) and all(map(agree, found, stated))
    if dataclasses.is_dataclass(found):
        names = [field.name for field in dataclasses.fields(found) if field.name != "certificate"]
        return all(agree(getattr(found, name), getattr(stated, name)) for name in names)
    if isinstance(found, float):
        return math.isclose(found, stated, rel_tol=ROUNDING)
    return bool(found == stated)
