"""The ways of training that ``tacit plan`` compares, each written down as a mechanism."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacit.accounting import Assumption, Gap
from tacit.accounting.theorem import fixed_membership
from tacit.errors import InvalidInput
from tacit.mechanism import (
    Adjacency,
    AllIterates,
    Cyclic,
    Evidence,
    FullBatch,
    LastIterate,
    Mechanism,
    Memory,
    Output,
    Partition,
    Poisson,
    Schedule,
    Shuffled,
    View,
)
from tacit.report.settings import Settings

__all__ = ["MAX_CHAIN", "MAX_POISSON_STEPS", "METHODS", "PROBES", "Method", "Probe", "contraction_notes"]

MAX_CHAIN = 4_000_000
"""Steps of a hidden chain that one evaluation may walk through (about a second)."""
MAX_POISSON_STEPS = 2_000_000
"""Steps up to which a privacy loss distribution is composed: seconds below, minutes above."""
MAX_POISSON_MU = 10.0
"""Rough GDP parameter (ε around 60) above which a distribution is too wide to be computed soon, and no promise."""


_SEEN = AllIterates()

# -- mechanisms ---------------------------------------------------------------------------------------------


def _poisson(s: Settings, view: View = _SEEN) -> Mechanism:
    return Mechanism(
        adjacency=s.adjacency,
        ratio=Schedule.constant(s.ratio, s.steps),
        steps=s.steps,
        sampling=Poisson(1 / s.n_batches),
        view=view,
        label="Poisson-sampled DP-SGD",
    )


def _cyclic(s: Settings, view: View = _SEEN, *, secret: bool = False) -> Mechanism:
    k, weights = s.n_batches, None
    if view is not _SEEN and len(s.batches) > 1:  # composition does not ask for shares
        weights = Schedule([size / s.n for size, _ in s.batches], [count for _, count in s.batches])
    return Mechanism(
        adjacency=s.adjacency,
        ratio=Schedule.constant(s.ratio, s.steps),
        steps=s.steps,
        sampling=Cyclic(k, Partition.SECRET if secret else Partition.FIXED, weights),
        view=view,
        label="noisy cyclic gradient descent",
    )


def _full(s: Settings, view: View = _SEEN) -> Mechanism:
    return Mechanism(
        adjacency=s.adjacency,
        ratio=Schedule.constant(s.ratio, s.epochs),
        steps=s.epochs,
        sampling=FullBatch(),
        view=view,
        label="noisy gradient descent",
    )


def _shuffled(s: Settings, view: View = _SEEN) -> Mechanism:
    return Mechanism(
        adjacency=s.adjacency,
        ratio=Schedule.constant(s.ratio, s.steps),
        steps=s.steps,
        sampling=Shuffled(s.n_batches),
        view=view,
        label="reshuffled batches",
    )


def _chain(s: Settings, *, full: bool = False) -> LastIterate:
    """The hidden chain in the space of the parameters; called only if η and β are known."""
    if s.lr is None or s.contraction is None:
        raise InvalidInput(f"a hidden chain needs {' and '.join(s.missing)}")
    scale = s.lr * s.sigma * s.clip
    if full:
        steps, noise = s.epochs, Schedule.constant(scale / s.n, s.epochs)
    elif len(s.batches) == 1:
        steps, noise = s.steps, Schedule.constant(scale / s.batches[0][0], s.steps)
    else:
        steps, (sizes, counts) = s.steps, np.array(s.batches).T
        noise = Schedule(np.tile(scale / sizes, s.epochs), np.tile(counts, s.epochs))
    return LastIterate(
        lipschitz=Schedule.constant(s.contraction, steps),
        noise_std=noise,
        diameter=s.diameter if s.uses_diameter else None,
    )


# -- what stands in the way before a theorem is asked -----------------------------------------------------


def _no_obstacle(_: Settings) -> Gap | None:
    return None


def _poisson_obstacle(s: Settings) -> Gap | None:
    """Far too little noise: the accountant would work for minutes towards a number that promises nothing."""
    rate = 1 / s.n_batches
    spread = math.expm1(s.sigma**-2) if s.sigma > 0.05 else math.inf
    mu = s.adjacency.sum_factor * rate * math.sqrt(s.steps * spread)  # central limit: q√(T(e^{1/σ²} − 1)), twice
    if rate == 1 or (mu <= MAX_POISSON_MU and s.steps <= MAX_POISSON_STEPS):
        return None
    if mu <= MAX_POISSON_MU:
        reason = f"{s.steps} steps are more than the {MAX_POISSON_STEPS} composed here"
        return Gap("steps", reason, "take fewer epochs or larger batches")
    return Gap("ratio", "so little noise leaves a privacy loss too wide to compute, and no promise", "raise --sigma")


def _chain_obstacle(s: Settings, *, full: bool = False) -> Gap | None:
    refused = [] if full else fixed_membership(_cyclic(s))
    if refused:
        return refused[0]
    if s.missing:
        names = " and ".join(s.missing)
        return Gap("view", f"refused: needs {names} (the contraction of a step is unknown)", f"give {names}")
    steps = s.epochs if full else s.steps
    if steps > MAX_CHAIN:
        return Gap(
            "steps", f"{steps} steps are more than the {MAX_CHAIN} computed here", "take fewer epochs or larger batches"
        )
    return None


def _secret_obstacle(s: Settings) -> Gap | None:
    obstacle = _chain_obstacle(s)
    if obstacle is None and not s.secret_partition:
        reason = "the batch of a record is not secret, so the worst one counts"
        return Gap("sampling.partition", reason, "draw the partition afresh, keep it secret, say --secret-partition")
    return obstacle


# -- the rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A way of training and the theorem that is asked about it.

    Attributes:
        id: a stable name.
        title: for people.
        theorem: the theorem's id.
        make: from settings to a mechanism.
        obstacle: what stands in the way before the theorem is asked, or None.
        hidden: whether the contraction of a step enters.
        full: whether every step reads every record.
    """

    id: str
    title: str
    theorem: str
    make: Callable[[Settings], Mechanism]
    obstacle: Callable[[Settings], Gap | None] = _no_obstacle
    hidden: bool = False
    full: bool = False

    def runs(self, s: Settings) -> bool:
        """Whether code of ours runs it: our chains do not project, and divide by n, which add/remove hides."""
        return not (self.hidden and (s.uses_diameter or s.adjacency is Adjacency.ADD_REMOVE))

    def notes(self, s: Settings) -> tuple[Assumption, ...]:
        """Assumptions that come from the options, besides the theorem's own."""
        found = list(contraction_notes(s)) if self.hidden else []
        if self.full:
            text = "σ is on the sum over all records, and the learning rate on the mean over n"
            found.append(Assumption(text, Evidence.DECLARED))
        if s.adjacency is Adjacency.ADD_REMOVE:
            text = "n is a nominal public number: it sets rates and divisors, the true number of records is secret"
            found.append(Assumption(text, Evidence.DECLARED))
        if not self.full and s.sizes != str(s.batch):
            text = f"batches hold {s.sizes} records instead of {s.batch}: n/b is rounded, sizes are as equal as can be"
            if self.id == "poisson":
                text = f"a record is read with probability 1/{s.n_batches}, not {s.batch}/{s.n}, as often as in turns"
            found.append(Assumption(f"{text} (avoided by a batch size that divides n)", Evidence.CHECKED))
        if self.hidden and s.diameter is not None and not s.uses_diameter:
            text = f"--diameter is not used: {s.n_batches} batches × {s.steps} steps are too many (only weaker)"
            found.append(Assumption(text, Evidence.CHECKED))
        return tuple(found)


def contraction_notes(s: Settings, of: str = "a step") -> tuple[Assumption, ...]:
    """What the contraction of a step rests on.

    Args:
        s: the public numbers.
        of: which steps have the learning rate of the settings.

    Returns:
        The assumptions; none if η or β is unknown.
    """
    c = s.contraction
    if c is None or s.lr is None or s.smoothness is None:
        return ()
    limit = 2 / (s.smoothness + s.l2)
    what = (
        f"the Lipschitz constant of {of} is c = max(|1−ηλ|, |1−η(β+λ)|) = {c:.8g}: every record's loss, as clipped, is "
        f"convex and {s.smoothness:g}-smooth (true for scalar outputs, false for radially clipped softmax)"
    )
    found = [Assumption(what, Evidence.DECLARED)]
    if s.l2 > 0:
        text = f"the ridge λ = {s.l2:g} is in the objective in every coordinate, intercept included"
        found.append(Assumption(text, Evidence.DECLARED))
    if s.lr <= limit:
        text = f"η = {s.lr:g} ≤ 2/(β+λ) = {limit:.4g}, so that no step expands"
    else:
        text = f"η = {s.lr:g} > 2/(β+λ) = {limit:.4g}: a step may expand (c > 1), and the bound is computed with that c"
    found.append(Assumption(text, Evidence.CHECKED))
    return tuple(found)


METHODS: tuple[Method, ...] = (
    Method("poisson", "Poisson-sampled DP-SGD", "poisson-gaussian", _poisson, _poisson_obstacle),
    Method("cyclic", "cyclic fixed batches", "gaussian-composition", _cyclic),
    Method(
        "cyclic-final",
        "cyclic fixed batches, worst position",
        "last-iterate",
        lambda s: _cyclic(s, _chain(s)),
        _chain_obstacle,
        hidden=True,
    ),
    Method(
        "cyclic-final-secret",
        "cyclic batches, secret random partition",
        "last-iterate-averaged",
        lambda s: _cyclic(s, _chain(s), secret=True),
        _secret_obstacle,
        hidden=True,
    ),
    Method("full", "full-batch gradient descent", "gaussian-composition", _full, full=True),
    Method(
        "full-final",
        "full-batch gradient descent",
        "last-iterate",
        lambda s: _full(s, _chain(s, full=True)),
        lambda s: _chain_obstacle(s, full=True),
        hidden=True,
        full=True,
    ),
    Method("reshuffled", "batches reshuffled every epoch", "gaussian-composition", _shuffled),
)
"""The rows of the table, in this order."""


# -- what is refused, and why -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """A tempting combination that a theorem must refuse: why, and the way out in the words of the command line."""

    title: str
    theorem: str
    make: Callable[[Settings], Mechanism]
    why: str
    remedy: str


def _hidden(steps: int, output: Output = Output.LAST_ITERATE, memory: Memory = Memory.NONE) -> LastIterate:
    """A chain whose numbers do not matter: only its kind is looked at."""
    one = Schedule.constant(1.0, steps)
    return LastIterate(lipschitz=one, noise_std=one, output=output, memory=memory)


PROBES: tuple[Probe, ...] = (
    Probe(
        "cyclic fixed batches",
        "poisson-gaussian",
        _cyclic,
        "every record is read in every epoch: none is left out by chance",
        "draw Poisson batches, or use composition",
    ),
    Probe(
        "batches reshuffled every epoch",
        "poisson-gaussian",
        _shuffled,
        "shuffled batches are not Poisson batches: the true ε can be several times the Poisson one",
        "draw Poisson batches, or use composition",
    ),
    Probe(
        "reshuffled batches, final model",
        "last-iterate",
        lambda s: _shuffled(s, _hidden(s.steps)),
        "which step reads a record changes from epoch to epoch",
        "keep the batches and their order, or use composition",
    ),
    Probe(
        "Poisson batches, final model",
        "last-iterate",
        lambda s: _poisson(s, _hidden(s.steps)),
        "which steps read a record is random",
        "use the promise about every iterate: it covers the final model, too",
    ),
    Probe(
        "average of the iterates",
        "last-iterate",
        lambda s: _full(s, _hidden(s.epochs, output=Output.AVERAGE)),
        "an average keeps what later noise would have hidden",
        "release the last iterate only, or use composition",
    ),
    Probe(
        "momentum",
        "last-iterate",
        lambda s: _full(s, _hidden(s.epochs, memory=Memory.MOMENTUM)),
        "momentum carries earlier gradients past the noise of later steps",
        "drop momentum, or use composition",
    ),
)
"""The second table, besides the rows that a theorem refuses."""
