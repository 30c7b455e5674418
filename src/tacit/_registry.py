"""Registries: what is defined is found by its name, wherever its file lies, and never speaks for another class."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, MutableMapping
from typing import Any

from tacit.errors import InvalidInput

__all__ = ["claim", "drop_inherited", "enlist", "load_folder"]


def load_folder(package: str, path: Iterable[str]) -> None:
    """Import every module of a folder, so that whatever they define has registered itself.

    Args:
        package: the name of the folder (``__name__``).
        path: where its files are (``__path__``).
    """
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")


def claim(registry: MutableMapping[str, Any], name: object, cls: type[Any], kind: str) -> None:
    """Register a class under a name; one that is defined again (in a notebook) keeps its name, another one may not.

    Args:
        registry: classes by name.
        name: in messages, files and as a parameter.
        cls: what is registered.
        kind: "a loss", for messages.

    Raises:
        InvalidInput: if the name is not a word, or belongs to another class.
    """
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"{cls.__name__} has the name {name!r}: {kind} needs a word, such as name = 'log-cosh'")
    known = registry.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        where = f"{known.__module__}.{known.__qualname__}"
        raise InvalidInput(f"{kind} named {name!r} exists already ({where}): choose another name for {cls.__name__}")
    registry[name] = cls


def enlist(registry: MutableMapping[str, Any], cls: type[Any], kind: str) -> None:
    """Register a class under its own name; one from outside of Tacit never takes the place of one of ours.

    Args:
        registry: classes by name.
        cls: what is registered; a name that begins with an underscore is left out.
        kind: "a penalty", for messages.
    """
    if cls.__name__.startswith("_"):
        return
    known = registry.get(cls.__name__)
    ours, theirs = cls.__module__.startswith("tacit."), known is not None and known.__module__.startswith("tacit.")
    if ours and theirs:
        claim(registry, cls.__name__, cls, kind)
    elif ours or not theirs:
        registry[cls.__name__] = cls


def drop_inherited(cls: type[Any], root: type[Any], method: str, claims: tuple[str, ...]) -> None:
    """Let a class that overrides ``method`` of a parent fall back to ``root`` in all that it does not restate.

    A fused sum, a smaller diameter or convexity belongs to the parent's method: with another one it would be the
    parent's code that runs, or a promise about something else.

    Args:
        cls: a class that is being defined.
        root: whose attributes claim nothing.
        method: what the claims are about.
        claims: names of attributes.
    """
    if method not in vars(cls):
        return
    parent = next(base for base in cls.__mro__[1:] if method in vars(base))
    for name in claims:
        if parent is not root and name not in vars(cls):
            setattr(cls, name, inspect.getattr_static(root, name))
