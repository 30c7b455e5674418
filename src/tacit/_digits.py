"""Format numbers for display, rounded in the conservative direction."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

__all__ = ["format_down", "format_up"]


def format_up(value: float, digits: int = 4) -> str:
    """At least the value: for what was spent or is promised.

    Args:
        value: any number.
        digits: that are shown.

    Returns:
        Text.

    >>> format_up(1.32623), format_up(0.06), format_up(float("inf"))
    ('1.327', '0.06', '∞')
    """
    return _rounded(value, digits, ROUND_CEILING)


def format_down(value: float, digits: int = 4) -> str:
    """At most the value: for what is left.

    Args:
        value: any number.
        digits: that are shown.

    Returns:
        Text.

    >>> format_down(1.32699), format_down(2.3, 6)
    ('1.326', '2.3')
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, towards: str) -> str:
    if not math.isfinite(value):
        return "∞"
    return f"{float(Context(prec=digits, rounding=towards).create_decimal(repr(float(value)))):.{digits}g}"
