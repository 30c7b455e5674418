"""Hops: how many functions, files and folders of Tacit one flow passes, measured on a real run.

    python tools/hops.py                     a table, with the figures of 0.1 beside today's
    python tools/hops.py linear --list       the functions of one flow in call order, by file
    python tools/hops.py linear --calls      its distinct calls from one folder into another
    python tools/hops.py --check             exit code 1 if a flow is over its limit

What is counted. While a flow runs, a profile function records every call of a function that is defined in a file of
the package, in Python or compiled by numba. Flows use public names only. Each runs once before it is measured, on data
of another size and for another budget: imports on first use and compilation are then over, and results remembered from
the first run do not fit the second, so that its work is counted. Bodies of modules and classes are not counted, nor are
methods that the standard library generates (for dataclasses): they stand in no file.

- A lambda, a comprehension or a generator expression belongs to the function in which it stands; a named inner function
  is a function of its own.
- The caller of a function is the nearest function of the package on the stack: a call that goes through scikit-learn or
  typer counts as a call by the function that started it.
- A folder is one directly under the package; modules that lie there themselves count as one folder, called ".".
- A crossing is a distinct pair (caller, callee) in two folders; the first call, which comes from this script, is none.
- Depth is the largest number of functions of the package that are on the stack at once.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import inspect
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tacit

PACKAGE = Path(tacit.__file__).resolve().parent
BEFORE = Path(__file__).with_name("hops_0.1.json")
LIMITS: dict[str, dict[str, int]] = {
    "linear": {"files": 22, "crossings": 50},
    "charged": {"files": 22, "crossings": 50},
    "step": {"files": 12},
    "hidden": {"files": 22},
    "nmf": {"files": 22},
    "shell": {"files": 30},
}
"""What ``--check`` enforces: a flow must not pass more than this."""
FIGURES = ("functions", "files", "folders", "crossings", "depth")
DELTA = 1e-6

Flow = Callable[[int, float], Callable[[], object]]
"""From a number of records and ε: prepare what does not belong to the flow, and return what does."""


@dataclass(frozen=True)
class Function:
    """A function of the package: its file below the package, its qualified name."""

    file: str
    name: str

    @property
    def folder(self) -> str:
        """The folder directly under the package, or "." for modules beside the folders."""
        folder, slash, _ = self.file.partition("/")
        return folder if slash else "."

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


ANONYMOUS = ("<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")


@functools.cache
def identify(code: CodeType) -> Function | None:
    """The function that a code object belongs to; None outside the package and for bodies of modules and classes."""
    path = Path(code.co_filename)
    if not code.co_flags & inspect.CO_OPTIMIZED or not path.is_relative_to(PACKAGE):
        return None
    name = code.co_qualname
    while name.endswith(ANONYMOUS) and "." in name:
        name = name.rpartition(".")[0].removesuffix(".<locals>")
    return Function(path.relative_to(PACKAGE).as_posix(), name)


@dataclass
class Trace:
    """Functions and calls of one run, each once and in the order of their first occurrence."""

    functions: dict[Function, None] = field(default_factory=dict)
    calls: dict[tuple[Function, Function], None] = field(default_factory=dict)
    depth: int = 0

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record this thread and those that it starts."""
        threading.setprofile(self._record)
        sys.setprofile(self._record)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _record(self, frame: FrameType, event: str, _: object) -> None:
        function = identify(frame.f_code) if event == "call" else None
        if function is None:
            return
        self.functions[function] = None
        caller, depth, at = None, int(frame.f_code.co_name not in ANONYMOUS), frame.f_back
        while at is not None:
            above = identify(at.f_code)
            if above is not None:
                caller = caller or above
                depth += at.f_code.co_name not in ANONYMOUS
            at = at.f_back
        self.depth = max(self.depth, depth)
        if caller is not None and (caller != function or frame.f_code.co_name not in ANONYMOUS):
            self.calls[caller, function] = None

    @property
    def crossings(self) -> list[tuple[Function, Function]]:
        """Distinct calls from one folder into another."""
        return [(caller, callee) for caller, callee in self.calls if caller.folder != callee.folder]

    def figures(self) -> dict[str, int]:
        """The numbers of the table."""
        return {
            "functions": len(self.functions),
            "files": len({function.file for function in self.functions}),
            "folders": len({function.folder for function in self.functions}),
            "crossings": len(self.crossings),
            "depth": self.depth,
        }


def _table(n: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(n)
    X = rng.uniform(-1.0, 1.0, size=(n, 4))
    return X, (X.sum(axis=1) + rng.normal(size=n) > 0).astype(np.int64)


def _folder() -> Path:
    return Path(tempfile.mkdtemp(dir=os.environ["TACIT_STATE_DIR"]))


def linear(n: int, epsilon: float, **parameters: Any) -> Callable[[], object]:
    """Fit a logistic regression with the default solver."""
    X, y = _table(n)
    model = tacit.DPLogisticRegression(
        epsilon=epsilon, delta=DELTA, feature_bounds=(-1, 1), classes=(0, 1), **parameters
    )
    return lambda: model.fit(X, y)


def charged(n: int, epsilon: float) -> Callable[[], object]:
    """Fit the same model and charge a ledger first."""
    word = "ledger" if "ledger" in inspect.signature(tacit.DPLogisticRegression).parameters else "budget"
    return linear(n, epsilon, **{word: tacit.Ledger(_folder() / "study.ledger", epsilon=9.0, delta=1e-5)})


def hidden(n: int, epsilon: float) -> Callable[[], object]:
    """Fit a softmax regression of which only the final model is shown."""
    X, y = _table(n)
    model = tacit.DPSoftmaxRegression(
        epsilon=epsilon, delta=DELTA, classes=(0, 1), feature_norm=2.0, view="final_model"
    )
    return lambda: model.fit(X, y)


def nmf(n: int, epsilon: float) -> Callable[[], object]:
    """Fit a non-negative matrix factorisation."""
    X = np.random.default_rng(n).uniform(size=(n, 6))
    model = tacit.DPNMF(2, epsilon=epsilon, delta=DELTA, row_norm=2.0)
    return lambda: model.fit(X)


def step(n: int, epsilon: float) -> Callable[[], object]:
    """Take one step of private training of a network with two layers; plan and first step are done."""
    import torch
    from torch import nn

    from tacit.torch import TrainingPlan

    X, y = (torch.as_tensor(part) for part in _table(n))
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    plan = TrainingPlan(n, epsilon=epsilon, delta=DELTA, batch_size=60, epochs=2, bands=2)
    batches = iter(plan.batches((X, y)))
    loss = nn.CrossEntropyLoss()
    plan.step(model, loss, next(batches))
    return lambda: plan.step(model, loss, next(batches))


def shell(n: int, epsilon: float) -> Callable[[], object]:
    """Run ``tacit fit`` on a CSV file with a schema."""
    from tacit.cli import main as cli

    folder = _folder()
    X, y = _table(n)
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["a", "b", "c", "d", "y"], *([*row, label] for row, label in zip(X, y, strict=True))]
        )
    columns = {name: {"bounds": [-1, 1]} for name in "abcd"}
    (folder / "schema.json").write_text(json.dumps({"features": columns, "target": {"classes": [0, 1]}}))
    command = f"tacit fit {{0}}/table.csv --target y --model logistic --epsilon {epsilon} --delta {DELTA}"
    command += " --schema {0}/schema.json -o {0}/model.json"

    def run() -> None:
        sys.argv = command.format(folder).split()
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                cli()
            except SystemExit as end:
                if end.code:
                    raise RuntimeError(f"tacit fit ended with exit code {end.code}") from end

    return run


FLOWS: dict[str, Flow] = {
    "linear": linear,
    "charged": charged,
    "step": step,
    "hidden": hidden,
    "nmf": nmf,
    "shell": shell,
}


def measure(name: str) -> Trace:
    """Run a flow twice, with numbers that no other run has, and record the second run."""
    flow, own, trace = FLOWS[name], list(FLOWS).index(name), Trace()
    flow(240, 2.0 + 0.01 * own)()
    run = flow(300, 3.0 + 0.01 * own)
    with trace.recording():
        run()
    return trace


def over_limit(name: str, figures: dict[str, int]) -> list[str]:
    """One sentence for each figure of a flow that is above its limit."""
    return [
        f"{name}: {figures[figure]} {figure}, at most {most} are allowed"
        for figure, most in LIMITS.get(name, {}).items()
        if figures[figure] > most
    ]


def render(figures: dict[str, dict[str, int]], before: dict[str, dict[str, int]]) -> str:
    """A table with "before → now" in each cell, and the limit in brackets."""
    lines = [f"{'flow':8}" + "".join(f"{figure:>20}" for figure in FIGURES)]
    for name, now in figures.items():
        cells = []
        for figure in FIGURES:
            most = LIMITS.get(name, {}).get(figure)
            cells.append(f"{before[name][figure]} → {now[figure]}" + (f" (≤ {most})" if most else ""))
        lines.append(f"{name:8}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def _show_functions(name: str, trace: Trace) -> None:
    files: dict[str, list[str]] = {}
    for function in trace.functions:
        files.setdefault(function.file, []).append(function.name)
    print(f"\n{name}: {len(trace.functions)} functions in {len(files)} files")
    for file, names in files.items():
        print(f"  {file} ({len(names)})", *names, sep="\n    ")


def _show_calls(name: str, trace: Trace) -> None:
    print(f"\n{name}: {len(trace.crossings)} distinct calls across folders")
    print(*(f"  {caller}  →  {callee}" for caller, callee in trace.crossings), sep="\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "flows", nargs="*", choices=[[], *FLOWS], metavar="flow", help=f"of {', '.join(FLOWS)}; default: all"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--list", action="store_true", help="print the functions in call order, by file")
    parser.add_argument("--calls", action="store_true", help="print the distinct calls across folders")
    parser.add_argument(
        "--check", action="store_true", help="name what is over its limit, and exit with 1 if there is any"
    )
    return parser.parse_args()


def main() -> int:
    """Measure, print, and return the exit code."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TACIT_STATE_DIR"] = folder
        traces = {name: measure(name) for name in arguments.flows or FLOWS}
    figures = {name: trace.figures() for name, trace in traces.items()}
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        print(render(figures, json.loads(BEFORE.read_text())))
    for name, trace in traces.items():
        if arguments.list:
            _show_functions(name, trace)
        if arguments.calls:
            _show_calls(name, trace)
    over = [sentence for name in figures for sentence in over_limit(name, figures[name])] if arguments.check else []
    print(*over, sep="\n", end="\n" if over else "", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
