"""What contract suites share: they come to whatever is defined, and tell in a sentence what was forgotten."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pytest

_PUBLIC_MAXIMUM = "weights need a public max_sample_weight, and noise differs: tests/estimators/test_persons.py"
WEIGHTS = dict.fromkeys(
    [
        "check_sample_weights_pandas_series",
        "check_sample_weights_not_an_array",
        "check_sample_weights_list",
        "check_all_zero_sample_weights_error",
        "check_classifiers_one_label_sample_weights",
        "check_sample_weights_shape",
        "check_sample_weights_not_overwritten",
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    ],
    _PUBLIC_MAXIMUM,
)
"""scikit-learn's checks of weights without a maximum, which our estimators refuse."""


def told(holds: Any, sentence: str) -> None:
    """Fail with one sentence, for whoever wrote the class."""
    if not holds:
        pytest.fail(sentence, pytrace=False)


def ours(registry: Mapping[str, type[Any]]) -> list[str]:
    """Names of what Tacit itself defines and what can be made: tests define classes, too."""
    found = (name for name, cls in registry.items() if cls.__module__.startswith("tacit."))
    return sorted(name for name in found if not inspect.isabstract(registry[name]))


def defined(base: type[Any]) -> Iterator[type[Any]]:
    """Every class of Tacit's that derives from ``base`` and is no private helper."""
    for child in base.__subclasses__():
        if child.__module__.startswith("tacit.") and not child.__name__.startswith("_"):
            yield child
        yield from defined(child)


def nothing_escapes(base: type[Any], known: Collection[type[Any]], what: str) -> None:
    """Tell of a class that is not registered, or leaves a method open although nothing derives from it.

    Args:
        base: of all classes of the kind.
        known: what is registered.
        what: must be written so that a class is registered.
    """
    said = []
    for cls in defined(base):
        missing = sorted(getattr(cls, "__abstractmethods__", ()))
        if missing and not cls.__subclasses__():
            home = next(parent for parent in cls.__mro__ if missing[0] in vars(parent)).__name__
            said.append(f"{cls.__name__} does not define {', '.join(missing)}: write it as {home} describes")
        elif not missing and cls not in known:
            said.append(f"{cls.__name__} is in no registry: {what}")
    told(not said, "\n".join(said))


def models(registry: Mapping[str, type[Any]], *, without: Collection[str]) -> dict[str, Any]:
    """The example of every estimator that no list names; of one that has none ``test_contract.py`` tells."""
    out = {}
    for name in set(ours(registry)) - set(without):
        with contextlib.suppress(Exception):
            out[name] = registry[name].example()
    return dict(sorted(out.items()))


def made(cls: type[Any], make: Callable[[], Any], how: str) -> Any:
    """What ``make`` returns, or a sentence that says how it should be written."""
    try:
        out = make()
    except NotImplementedError as missing:
        pytest.fail(str(missing), pytrace=False)
    except (TypeError, AttributeError) as error:
        pytest.fail(f"{cls.__name__}: {how} ({type(error).__name__}: {error})", pytrace=False)
    told(out is not None, f"{cls.__name__}: {how}, and it returned None")
    return out
