"""Solvers run as estimators run them: a plan, a certificate, a session."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
