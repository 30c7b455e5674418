"""What tests of model files share: edits of good files, and how they are refused."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit import load_model, save_model
from tacit._codec import decode, digest, encode
from tacit.errors import InvalidInput
from tacit.estimators import files

GONE = object()


def again(model: Any, folder: Path) -> Any:
    save_model(model, folder / "model.json")
    assert [p.name for p in folder.iterdir()] == ["model.json"]
    return load_model(folder / "model.json")


def saved(model: Any, folder: Path) -> dict:
    save_model(model, folder / "m.json")
    return json.loads((folder / "m.json").read_text())


def alike(a: Any, b: Any) -> bool:
    """Equal to the bit, or the same words."""
    if a.dtype.kind in "OU":
        return a.dtype.kind == b.dtype.kind and a.tolist() == b.tolist()  # the width of strings may shrink
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, of the same types but for numpy's scalars."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and alike(np.asarray(a, order="C"), b)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.generic):
        return bool(a == b)
    return type(a) is type(b) and bool(a == b)


def place(*path: Any) -> tuple:
    """Where a parameter or fitted attribute of the outer model is."""
    if path[0] in ("parameters", "fitted"):
        return ("model", path[0], "dict", *path[1:])
    return ("certificates", 0, *path[1:]) if path[0] == "certificate" else path


def changed(document: dict, *edits: tuple[tuple, Any]) -> dict:
    out = json.loads(json.dumps(document))
    for path, value in edits:
        found = out
        *way, last = place(*path)
        for key in way:
            found = found[key]
        if value is GONE:
            del found[last]
        else:
            found[last] = value
    return out


def sealed(document: dict, path: Path) -> Path:
    """With a digest that fits."""
    document["digest"] = files._digest(document)
    path.write_text(json.dumps(document))
    return path


def refused(document: dict, folder: Path, *, seal: bool = True) -> str:
    """What is said about a file that is not loaded; in one line, and without taking much memory."""
    path = folder / "m.json"
    if seal:
        sealed(document, path)
    else:
        path.write_text(json.dumps(document))
    tracemalloc.start()
    with pytest.raises(InvalidInput) as caught:
        load_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25, f"a file of {path.stat().st_size} bytes took {peak / 2**20:.0f} MB"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def certified_anew(document: dict, edit: Any) -> dict:
    """As by somebody who can write a certificate's digest, too."""
    out = json.loads(json.dumps(document))
    certificate = out["certificates"][0]
    edit(certificate)
    plan = decode(certificate["plan"], limit=math.inf)
    certificate["plan"] = encode(plan)
    certificate["digest"] = digest((plan, tuple(certificate["marks"]), tuple(certificate["only"])))
    return out
