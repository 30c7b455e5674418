"""What a trainer tells while it trains: public metrics, steps, and the budget; nothing of private records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tacit import _validate
from tacit.errors import InvalidInput

if TYPE_CHECKING:
    from tacit.torch.plan import TrainingPlan

__all__ = ["Callback", "EarlyStopping", "Evaluation", "Progress", "progress_bar"]


@dataclass(frozen=True)
class Evaluation:
    """Metrics of the model on public data after a step.

    Attributes:
        step: number of steps taken.
        epoch: how often each record had been read by then, on average.
        metrics: values by name.
    """

    step: int
    epoch: float
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for callbacks.

    Attributes:
        plan: the plan that runs.
        step: number of steps taken.
        steps: number of steps of the plan.
        evaluation: metrics on public data, if they were computed after this step, else None.
    """

    plan: TrainingPlan
    step: int
    steps: int
    evaluation: Evaluation | None = None

    @property
    def epsilon(self) -> float:
        """ε so far, at the plan's δ: that of a run planned to end here.

        What a run promises that was stopped by looking at it is the plan's certificate.
        """
        return self.plan.epsilon_so_far(self.step)


Callback = Callable[[Progress], object]
"""Called after every step; the training stops when it returns True."""


class EarlyStopping:
    """Stop when a metric on public data no longer improves.

    The metric is of public data, so that stopping is free; the certificate stays that of the whole plan.

    Args:
        metric: its name.
        patience: number of evaluations without improvement after which to stop.
        smaller: True if smaller values are better, as for losses.
    """

    def __init__(self, metric: str = "accuracy", *, patience: int = 3, smaller: bool = False) -> None:
        self.metric, self.smaller = metric, smaller
        self.patience = _validate.positive_int(patience=patience)
        self._best, self._since = float("inf"), 0

    def __call__(self, progress: Progress) -> bool:
        """Whether to stop."""
        if progress.step == 1:
            self._best, self._since = float("inf"), 0
        if progress.evaluation is None:
            return False
        if self.metric not in progress.evaluation.metrics:
            raise InvalidInput(
                f"early stopping looks at {self.metric!r}, which is not among the metrics: name one of "
                f"{', '.join(progress.evaluation.metrics)}"
            )
        value = progress.evaluation.metrics[self.metric] * (1 if self.smaller else -1)
        self._since = 0 if value < self._best else self._since + 1
        self._best = min(self._best, value)
        return self._since >= self.patience


@contextmanager
def progress_bar(visible: bool, steps: int) -> Iterator[Callable[[int, list[Evaluation]], None]]:
    """A bar of steps and public metrics; losses and norms of private records are never shown.

    Args:
        visible: False for none.
        steps: of the plan.

    Yields:
        A function of the steps taken and the evaluations so far.
    """
    if not visible:
        yield lambda done, history: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("private training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
    )

    def words(history: list[Evaluation]) -> str:
        return "  ".join(f"{name} {value:.4f}" for name, value in history[-1].metrics.items()) if history else ""

    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=steps, words="")
        yield lambda done, history: progress.update(task, completed=done, words=words(history))
