"""Private training for PyTorch: plans, trainers, curvature from public data. The only folder that imports torch."""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("tacit.torch needs PyTorch: pip install 'tacit-dp[torch]' (a CPU build is enough)") from None

from tacit.torch.callbacks import EarlyStopping, Evaluation, Progress
from tacit.torch.curvature import Spectrum, hessian_spectrum
from tacit.torch.objective import RecordLoss
from tacit.torch.plan import Batch, TrainingPlan
from tacit.torch.records import Records
from tacit.torch.trainer import PrivateTrainer, accuracy

__all__ = [
    "Batch",
    "EarlyStopping",
    "Evaluation",
    "PrivateTrainer",
    "Progress",
    "RecordLoss",
    "Records",
    "Spectrum",
    "TrainingPlan",
    "accuracy",
    "hessian_spectrum",
]
