"""Theorems register by being defined: which ones take part, and that the order of definitions decides nothing."""

import itertools
import math
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest

from tacit import accounting
from tacit._codec import described
from tacit.accounting import (
    Assumption,
    Certificate,
    Gaussian,
    Profile,
    Theorem,
    certify,
    compare_theorems,
    theorems,
)
from tacit.accounting import theorem as theorem_module
from tacit.accounting.gaussian import GaussianComposition
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import (
    Adjacency,
    CorrelatedNoise,
    Evidence,
    LastIterate,
    Mechanism,
    Plan,
    Schedule,
    Separated,
    Start,
)

DELTA = 1e-5


@pytest.fixture
def own_theorems(monkeypatch):
    """Theorems that a test defines are gone after it."""
    monkeypatch.setattr(theorem_module, "_registry", dict(theorem_module._registry))


def define(name, mu, **words):
    body = {
        "id": name,
        "name": name,
        "reference": "nobody",
        "view": "every iterate",
        "covers": GaussianComposition.covers,
        "curve": lambda self, mechanism: Gaussian(mu),
        **words,
    }
    return type("Claimed", (Theorem,), {**body, "__qualname__": name})


PLAIN = Mechanism(adjacency="replace-one", ratio=0.5, steps=4)  # μ = 1


def test_a_theorem_takes_part_by_being_defined(own_theorems):
    before = certify(PLAIN)
    define("test-tighter", 0.25)
    assert certify(PLAIN).mu == 0.25
    assert "test-tighter" in [theorem.id for theorem, _ in compare_theorems(PLAIN)]
    assert certify(PLAIN, theorem="test-tighter").theorems[0].id == "test-tighter"
    assert before.mu == 1.0  # certificates do not change


def test_theorems_of_a_test_are_gone_after_it():
    assert certify(PLAIN).mu == 1.0
    assert not [theorem.id for theorem in theorems() if theorem.id.startswith("test-")]


@pytest.mark.parametrize("order", list(itertools.permutations(("test-a", "test-b", "test-hidden"))))
def test_the_order_of_definitions_decides_nothing(own_theorems, order):
    """Equal numbers: whatever promises about every iterate, then the first id."""
    for name in order:
        define(name, 0.25, view="the final model" if name == "test-hidden" else "every iterate")
    assert [theorem.id for theorem in certify(PLAIN).theorems] == ["test-a"]
    assert certify(PLAIN).view == "every iterate"
    found = [theorem.id for theorem in theorems()]
    assert found == sorted(found)


@pytest.mark.parametrize("order", [("test-a", "test-b"), ("test-b", "test-a")])
def test_between_profiles_the_smaller_and_then_the_first_counts(own_theorems, order):
    for name in order:
        define(name, 0.0, curve=lambda self, mechanism: Profile(lambda e: math.exp(-e), lambda d: -math.log(d) / 100))
    assert [theorem.id for theorem in certify(PLAIN).theorems] == ["test-a"]
    define("test-c", 0.0, curve=lambda self, mechanism: Profile(lambda e: 0.0, lambda d: -math.log(d) / 200))
    assert [theorem.id for theorem in certify(PLAIN).theorems] == ["test-c"]


@pytest.mark.parametrize("missing", ["id", "name", "reference", "view"])
def test_a_theorem_without_words_is_refused_when_it_is_defined(own_theorems, missing):
    words = {"id": "test-x", "name": "x", "reference": "x", "view": "every iterate"}
    with pytest.raises(TypeError, match=f"states no {missing}"):
        type("Wordless", (Theorem,), {name: word for name, word in words.items() if name != missing})
    assert "test-x" not in [theorem.id for theorem in theorems()]


def test_an_id_belongs_to_one_theorem(own_theorems):
    with pytest.raises(TypeError, match=r"'gaussian-composition' belongs to tacit\.accounting\.gaussian"):
        define("gaussian-composition", 0.0)
    with pytest.raises(TypeError, match="states no id"):  # a subclass is another theorem
        type("Inherited", (GaussianComposition,), {})
    define("test-again", 0.5)
    define("test-again", 0.25)  # as a notebook does that runs a cell again
    assert certify(PLAIN, theorem="test-again").mu == 0.25


def test_a_theorem_about_another_type_of_part_is_not_asked(own_theorems):
    with pytest.raises(InvalidInput, match="theorem must be one of"):
        certify(PLAIN, theorem="selection-5.1")
    (selection_theorem,) = (theorem for theorem in theorems() if theorem.id == "selection-5.1")
    with pytest.raises(NotCovered, match="is about a Selection, not about a Mechanism"):
        selection_theorem.apply(PLAIN)


def test_a_part_of_a_new_type_needs_a_theorem_about_it(own_theorems):
    @described("test.Survey")
    @dataclass(frozen=True)
    class Survey:
        """Randomised response: every answer is flipped with probability 1/(1 + e^ε)."""

        epsilon: float
        adjacency: Adjacency = Adjacency.REPLACE_ONE
        unit: str = "record"
        label: str = "survey"
        axes: ClassVar[tuple[str, ...]] = ("adjacency",)
        start: ClassVar[Start] = Start.PUBLIC

    plan = Plan.of(Survey(0.5), PLAIN)
    with pytest.raises(NotCovered, match="no theorem is about a Survey"):
        certify(plan)

    class RandomisedResponse(Theorem):
        id = "test-randomised-response"
        name = "randomised response"
        reference = "Warner (1965)"
        view = "every iterate"
        about = Survey
        covers: ClassVar = {"adjacency": (Adjacency.REPLACE_ONE,)}

        def curve(self, survey):
            return Profile(lambda e: max(0.0, 1 - math.exp(e - survey.epsilon)), lambda d: survey.epsilon)

        def assumptions(self, survey):
            return (Assumption("each record is one answer", Evidence.DECLARED),)

    certificate = certify(plan)
    assert certify(PLAIN).epsilon(DELTA) < certificate.epsilon(DELTA) <= certify(PLAIN).epsilon(DELTA / 2) + 0.5
    assert Certificate.from_json(certificate.to_json()) == certificate


HIDDEN = LastIterate(lipschitz=Schedule.constant(0.9, 12), noise_std=Schedule.constant(1.0, 12))


def test_a_subclass_of_an_axis_value_is_another_value():
    """Version 0.1 certified a subclass as its parent, whatever it overrode."""
    cases = {"sampling": Separated(3, 4), "noise": CorrelatedNoise.toeplitz([0.8, 0.6]), "view": HIDDEN}
    for axis, value in cases.items():
        child = described(f"test.Child{axis}")(dataclass(frozen=True)(type("Child", (type(value),), {})))
        child_value = child(**{f.name: getattr(value, f.name) for f in fields(value)})
        assert certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=12, **{axis: value}))
        with pytest.raises(NotCovered, match="does not cover Child") as refusal:
            certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=12, **{axis: child_value}))
        assert refusal.value.axis == axis


def test_every_module_of_the_folder_is_imported(tmp_path):
    """A theorem in a new file needs no list: importing the folder finds it."""
    folder = Path(accounting.__file__).parent
    code = f"""
import sys, tacit, pathlib
tacit.__path__.insert(0, {str(tmp_path)!r})
import tacit.accounting as a
print([t.id for t in a.theorems() if t.id == "test-new-file"])
"""
    copy_of = tmp_path / "accounting"
    shutil.copytree(folder, copy_of, ignore=shutil.ignore_patterns("__pycache__"))
    (copy_of / "newcomer.py").write_text(
        "from tacit.accounting.gaussian import GaussianComposition\n"
        "class Newcomer(GaussianComposition):\n"
        "    id = 'test-new-file'\n    name = 'new'\n    reference = 'new'\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['test-new-file']"
