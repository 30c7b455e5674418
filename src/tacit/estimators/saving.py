"""Models on disk: JSON with the certificate inside, never pickle; loading certifies again and runs no foreign code."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from sklearn.base import is_classifier

from tacit import _validate
from tacit._files import read_whole, write_whole
from tacit.accounting import Certificate
from tacit.errors import InvalidInput, TacitError
from tacit.estimators._linear import LinearModel
from tacit.estimators._maps import map_from_plain, map_to_plain
from tacit.estimators._outputs import OutputModel
from tacit.estimators._rebuilt import REBUILT, describe, rebuild
from tacit.estimators._rebuilt_blocks import (
    BlockModel,
    check_length,
    describe_blocks,
    layers_from_plain,
    layers_to_plain,
    rebuild_blocks,
    schedule_from_plain,
    schedule_to_plain,
)
from tacit.estimators.block_networks import DPBlockMLPClassifier, DPBlockMLPRegressor
from tacit.estimators.classification import DPLinearSVC, DPLogisticRegression
from tacit.estimators.nmf import DPNMF
from tacit.estimators.generalized import DPGeneralizedLinear
from tacit.estimators.networks import DPConvexReLUClassifier, DPConvexReLURegressor, DPSoftmaxRegression
from tacit.estimators.plain import from_plain, to_plain
from tacit.estimators.regression import DPElasticNet, DPHuberRegressor, DPLasso, DPLinearRegression, DPRidge
from tacit.mechanism import Adjacency

__all__ = ["load_model", "load_model_and_extra", "save_model"]

FORMAT = 1
Model = LinearModel | OutputModel | BlockModel
CLASSES: dict[str, type[Model]] = {
    cls.__name__: cls
    for cls in (
        DPBlockMLPClassifier,
        DPBlockMLPRegressor,
        DPConvexReLUClassifier,
        DPConvexReLURegressor,
        DPElasticNet,
        DPGeneralizedLinear,
        DPHuberRegressor,
        DPLasso,
        DPLinearRegression,
        DPLinearSVC,
        DPLogisticRegression,
        DPNMF,
        DPRidge,
        DPSoftmaxRegression,
    )
}
"""What may be saved and loaded. A new estimator is added here."""
NOT_KEPT = ("budget", "random_state")
"""Parameters that stay at home: a ledger belongs to the data, and a seed would let a reader subtract the noise."""
LONGEST_WORDS = 400
"""Of a message about a file."""
_FITTED = re.compile(r"[a-z][a-z0-9_]*_")
_WRITERS = {
    "features": map_to_plain,
    "hidden_layer_sizes": layers_to_plain,
    "noise_schedule": schedule_to_plain,
}
_READERS = {
    "features": map_from_plain,
    "hidden_layer_sizes": layers_from_plain,
    "noise_schedule": schedule_from_plain,
}
"""Of parameters that are more than numbers and words."""


def save_model(model: Model, path: str | os.PathLike[str], *, extra: Any = None) -> None:
    """Write a fitted model and its certificate as JSON, whole or not at all.

    The file holds what the model may show: parameters, coefficients, notes and the certificate. A ledger and a seed are
    left out. Public feature maps are stored by their parameters, and large arrays as bytes in base64
    (``tacit.estimators.plain``). People's factors are in it if they were released, and only then.

    Args:
        model: a fitted estimator of tacit's.
        path: where to; an existing file is replaced.
        extra: plain JSON data to keep with it.

    Raises:
        InvalidInput: if the model is not fitted, not ours, holds something that JSON cannot hold (a function in its
            features or for its noise schedule), or has other parameters than at its fit.

    >>> import tempfile, pathlib, numpy as np
    >>> from tacit import DPRidge, load_model
    >>> X = np.random.default_rng(0).uniform(0, 1, (500, 2))
    >>> model = DPRidge(epsilon=1.0, delta=1e-6, feature_bounds=(0, 1), target_bounds=(0, 2)).fit(X, X.sum(axis=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(model, pathlib.Path(folder) / "model.json")
    ...     again = load_model(pathlib.Path(folder) / "model.json")
    >>> bool((again.predict(X) == model.predict(X)).all()), again.certificate_ == model.certificate_
    (True, True)
    """
    kind = type(model).__name__
    if CLASSES.get(kind) is not type(model):
        raise InvalidInput(f"a {kind} cannot be saved: save_model takes {', '.join(CLASSES)}")
    if not isinstance(getattr(model, "certificate_", None), Certificate):
        raise InvalidInput(f"this {kind} is not fitted: call fit before saving it")
    _check_fitted(model)
    document: dict[str, Any] = {
        "tacit": "model",
        "format": FORMAT,
        "class": kind,
        "parameters": {
            name: _WRITERS[name](value) if name in _WRITERS else to_plain(value, name)
            for name, value in sorted(model.get_params(deep=False).items())
            if name not in NOT_KEPT
        },
        "fitted": {
            name: to_plain(value, name)
            for name, value in sorted(vars(model).items())
            if _FITTED.fullmatch(name) and name != "certificate_" and name not in REBUILT
        },
        "extra": extra,
        "certificate": model.certificate_.to_dict(),
    }
    if isinstance(model, OutputModel):
        document["public"] = describe(model)
        rebuild(copy.copy(model), document["public"])
    elif isinstance(model, BlockModel):
        document["public"] = describe_blocks(model)
        rebuild_blocks(copy.copy(model), document["public"])
    try:
        document["digest"] = _digest(document)
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        data = text.encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the model cannot be written as JSON: {error}") from None
    write_whole(Path(path), data + b"\n")


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read what ``save_model`` wrote: the model predicts as before, to the bit, and is certified again.

    The digest notices damage and careless edits; it is no signature: whoever writes a file can write its digest, too.

    Args:
        path: the file.

    Returns:
        A fitted estimator; its ``budget`` and ``random_state`` are None, and options that had no effect are at their
        defaults.
    """
    return load_model_and_extra(path)[0]


def load_model_and_extra(path: str | os.PathLike[str]) -> tuple[Model, Any]:
    """As ``load_model``, with the extra data that was saved beside the model.

    Args:
        path: the file.

    Returns:
        The estimator and the extra data (None if there is none).

    Raises:
        InvalidInput: if the file is not there, is not a model of ours, was edited, or holds shapes and numbers that do
            not fit.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput(f"path must name a file, got {type(path).__name__}")
    data = read_whole(Path(path))
    try:
        document = json.loads(data.decode(), parse_constant=_no_constant)
        _check_whole(document)
        model = _built(document["class"], document["parameters"])
        _restore(model, document["fitted"])
        if isinstance(model, BlockModel):
            check_length(document["certificate"])
        model.certificate_ = Certificate.from_json(json.dumps(document["certificate"]))
        _check_fitted(model)
        if isinstance(model, OutputModel):
            rebuild(model, document["public"])
        elif isinstance(model, BlockModel):
            rebuild_blocks(model, document["public"])
        extra = document["extra"]
    except TacitError as error:
        raise InvalidInput(f"{path} is not a model that can be used: {_in_short(error)}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a model: it is not UTF-8 text") from None
    except RecursionError:
        raise InvalidInput(f"{path} is not a model: it is nested too deeply") from None
    except MemoryError:
        raise InvalidInput(f"{path} is not a model that can be used: its features do not fit into memory") from None
    except json.JSONDecodeError:
        raise InvalidInput(f"{path} is not a model: it is not JSON") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {_in_short(error)}"
        raise InvalidInput(f"{path} is not a model that can be used: {why}") from None
    return model, extra


# -- reading ----------------------------------------------------------------------------------------------


def _in_short(error: Exception) -> str:
    """One line, also if it quotes what the file holds."""
    text = " ".join(str(error).split())
    return text if len(text) <= LONGEST_WORDS else f"{text[:LONGEST_WORDS]}…"


def _no_constant(name: str) -> NoReturn:
    raise InvalidInput(f"it holds {name}")


def _digest(document: dict[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_whole(document: Any) -> None:
    if not isinstance(document, dict) or document.get("tacit") != "model":
        raise InvalidInput("save_model did not write it")
    if document.get("format") != FORMAT:
        raise InvalidInput(f"it has another format than {FORMAT}; load it with the version that wrote it")
    if document.get("digest") != _digest(document):
        raise InvalidInput("it was damaged or edited after it was saved; do not rely on it, fit or copy it again")


def _built(kind: Any, parameters: Any) -> Model:
    if not isinstance(kind, str) or kind not in CLASSES:
        raise InvalidInput("this version does not know its class")
    cls = CLASSES[kind]
    values = {
        name: _READERS[name](value) if name in _READERS else from_plain(value) for name, value in parameters.items()
    }
    strange = sorted(values.keys() - (set(cls._get_param_names()) - set(NOT_KEPT)))
    if strange:
        raise InvalidInput(f"{kind} has no parameter {strange[0][:40]!r} that a file may set")
    idle = cls(**values)._idle()  # older versions wrote them, by default
    return cls(**{name: value for name, value in values.items() if name not in idle})


def _restore(model: Model, fitted: Any) -> None:
    for name, value in fitted.items():
        strange = not _FITTED.fullmatch(name) or name in ("certificate_", *REBUILT)
        if strange or hasattr(type(model), name):
            raise InvalidInput(f"a model has no attribute {name[:40]!r}")
        setattr(model, name, from_plain(value))


def _check_fitted(model: Any) -> None:
    """Shapes and numbers of the fitted attributes, in files and before they are written."""
    p = getattr(model, "n_features_in_", None)
    if type(p) is not int or p < 1:
        raise InvalidInput("n_features_in_ must be a positive integer")
    if is_classifier(model):
        _check_classes(getattr(model, "classes_", None))
    _check_promise(model)
    if isinstance(model, LinearModel):
        _check_linear(model, p)
    names = getattr(model, "feature_names_in_", None)
    if names is not None and not (_is_words(names) and names.shape == (p,)):
        raise InvalidInput("feature_names_in_ must hold one name per feature")
    notes = getattr(model, "notes_", ())
    if not isinstance(notes, tuple) or not all(
        isinstance(note, str) for note in (*notes, getattr(model, "solver_", ""))
    ):
        raise InvalidInput("solver_ and notes_ must hold words")


def _check_promise(model: Any) -> None:
    """Parameters must not say less than the certificate (a search gives its winner its own)."""
    certificate = model.certificate_
    delta, epsilon = _validate.delta(model.delta), _validate.positive(epsilon=model.epsilon)
    stated = Adjacency.parse(model.adjacency)
    if certificate.epsilon(delta) > epsilon * (1 + 1e-6) or certificate.adjacency is not stated:
        raise InvalidInput("its parameters promise more than its certificate: epsilon, delta or adjacency was changed")


def _check_linear(model: Any, p: int) -> None:
    shape: tuple[int, ...] = (p,)
    constant: tuple[int, ...] = ()
    if is_classifier(model):
        k = len(model.classes_)
        constant = (1,) if k == 2 else (k,)
        shape = (*constant, p)
    _check_numbers("coef_", getattr(model, "coef_", None), shape)
    _check_numbers("intercept_", getattr(model, "intercept_", None), constant)
    if getattr(model, "coef_standard_errors_", None) is not None:
        _check_numbers("coef_standard_errors_", model.coef_standard_errors_, shape)


def _is_words(value: Any) -> bool:
    return isinstance(value, np.ndarray) and all(isinstance(item, str) for item in value.ravel().tolist())


def _check_classes(classes: Any) -> None:
    if not isinstance(classes, np.ndarray) or classes.ndim != 1 or len(classes) < 2:
        raise InvalidInput("classes_ must list at least two labels")
    if len(np.unique(classes)) != len(classes) or (classes[:-1] > classes[1:]).any():
        raise InvalidInput("classes_ must be sorted and distinct")


def _check_numbers(name: str, value: Any, shape: tuple[int, ...]) -> None:
    if isinstance(value, float) and shape == ():
        fits = math.isfinite(value)
    else:
        fits = isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.shape == shape
        fits = fits and bool(np.isfinite(value).all())
    if not fits:
        raise InvalidInput(f"{name} must hold finite numbers of shape {shape}")
