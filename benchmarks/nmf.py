"""Non-negative factorisation at equal, true (ε, δ): the synthetic data of DP-MBCD, Table 2, and newsgroups' topics.

M = XY with half-normal factors, 1000 people, 200 items, rank 10; δ = 1e-5, replace-one; relative error ‖M − WH‖/‖M‖
with W computed locally. "residuals" and "statistics" are DPNMF as it comes; "gradient" (cyclic batches) and "dp-sgd"
(the same steps on Poisson batches) choose epochs and step size on other data of the same kind, which favours them. ε =
None is scikit-learn's NMF. Beside the certificate's ε stands what DP-MBCD would print for a gradient run: no
guarantee.

``--topics`` factorises the 20-newsgroups counts (log(1 + count), rows of norm 1; the vocabulary was made from the same
documents, which the certificate does not cover). On held-out documents: the error; *coherence*, the mean normalised
pointwise mutual information (NPMI) of the pairs of a topic's ten first words, by the documents that they share; and the
share of *distinct* words among the first ten of all topics (twenty copies of one topic are coherent, too). Seeds are
those of starts and noise. Cells accumulate in ``results/nmf.jsonl``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import sys
import time
import warnings
from typing import Any

import numpy as np
from data import folder
from numpy.typing import NDArray
from papers.published import claims, published_epsilon
from run import record, recorded, table
from scipy import sparse
from sklearn.decomposition import NMF

from tacit import DPNMF
from tacit.solvers.nmf import NMFOptions

Array = NDArray[np.float64]
Cell = dict[str, object]
DELTA, ROW_NORM, RANK = 1e-5, 130.0, 10
EPSILONS, BATCHES, SEEDS = (1.0, 4.0, 16.0), (50, 100, 200, 1000), 3
METHODS = ("residuals", "statistics", "gradient", "dp-sgd")
GRID = tuple(itertools.product((10, 40), (1.0, 5.0, 20.0)))
TUNING = 1000
PROTOCOL = {"synthetic": "1", "topics": "2"}
TOPICS, TOPIC_DELTA, TRAIN, FIRST = 20, 1e-9, 16_000, 10
TOPIC_METHODS = ("residuals", "one topic", "no threshold")


def synthetic(seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.asarray(np.abs(rng.normal(size=(1000, RANK))) @ np.abs(rng.normal(size=(RANK, 200))))


def error(model: Any, M: Any) -> float:
    """‖M − WH‖/‖M‖, without making a sparse M dense."""
    W, H = model.transform(M), model.components_
    if not sparse.issparse(M):
        return float(np.linalg.norm(M - W @ H) / np.linalg.norm(M))
    square = float(M.multiply(M).sum())
    cross = float(np.einsum("ij,ij->", np.asarray(M @ H.T), W))
    return math.sqrt(max(square - 2 * cross + float(np.einsum("ij,ij->", W @ (H @ H.T), W)), 0.0) / square)


def first_words(H: Array) -> NDArray[np.intp]:
    """The columns of the largest factors, for each topic."""
    return np.argsort(-H, axis=1, kind="stable")[:, :FIRST]


def coherence(H: Array, documents: Any) -> float:
    """Mean NPMI = log(p_ij/(p_i·p_j))/(−log p_ij) over pairs of a topic's first words, then over topics.

    p is the share of documents that hold a word, or both; a pair that no document holds counts as −1, the limit.
    """
    present = sparse.csc_matrix(documents > 0).astype(float)
    values = []
    for words in first_words(H):
        held = present[:, words]
        joint = (held.T @ held).toarray() / present.shape[0]
        i, j = np.triu_indices(len(words), 1)
        both, apart = joint[i, j], np.diag(joint)[i] * np.diag(joint)[j]
        with np.errstate(divide="ignore", invalid="ignore"):
            npmi = np.log(both / apart) / -np.log(both)
        values.append(np.where(both == 0, -1.0, np.where(both == 1, 1.0, npmi)).mean())
    return float(np.mean(values))


def judged(model: Any, documents: Any) -> Cell:
    """All that is said about topics."""
    words = first_words(model.components_)
    return {
        "error": error(model, documents),
        "coherence": coherence(model.components_, documents),
        "distinct": len(np.unique(words)) / words.size,
    }


def model_of(method: str, epsilon: float, batch: int, setting: tuple[int, float] | None, seed: int) -> DPNMF:
    common = {"epsilon": epsilon, "delta": DELTA, "row_norm": ROW_NORM, "batch_size": batch, "random_state": seed}
    if setting is None:
        return DPNMF(RANK, update=method, **common)
    epochs, step = setting
    steps = {"epochs": epochs, "update": "gradient"}
    if method == "dp-sgd":
        options = NMFOptions(noise_schedule="constant", step_size=step)
        return DPNMF(RANK, sampling="poisson", options=options, **steps, **common)
    return DPNMF(RANK, options=NMFOptions(step_size=step), **steps, **common)


@functools.cache
def tuned(method: str, epsilon: float, batch: int) -> tuple[int, float] | None:
    """Epochs and step size of gradients, on data that no cell uses."""
    if method in {"residuals", "statistics"}:
        return None
    M = synthetic(TUNING)
    return min(GRID, key=lambda setting: error(model_of(method, epsilon, batch, setting, TUNING).fit(M), M))


def synthetic_cell(method: str, epsilon: float, batch: int, seed: int) -> Cell:
    M, setting = synthetic(seed), tuned(method, epsilon, batch)
    begin = time.perf_counter()
    model = model_of(method, epsilon, batch, setting, seed).fit(M)
    return {
        "error": error(model, M),
        "seconds": time.perf_counter() - begin,
        "certified": model.certificate_.epsilon(DELTA),
        "published": published_epsilon(model.plan_.mechanism, DELTA, claims(model.plan_)),
        "epochs": model.epochs,
        "step_size": None if setting is None else setting[1],
    }


def plain_cell(M: Any, components: int, seed: int, held_out: Any = None) -> Cell:
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = NMF(components, init="random", random_state=seed, max_iter=200).fit(M)
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, **({"error": error(model, M)} if held_out is None else judged(model, held_out))}


def newsgroups() -> tuple[Any, Any]:
    """Training and held-out documents."""
    place = folder()
    assert place is not None, "TACIT_DATA_DIR must name the folder of the data"
    with np.load(place / "large" / "newsgroups20_counts.npz", allow_pickle=False) as file:
        counts, shape = np.log1p(file["counts"].astype(float)), (len(file["indptr"]) - 1, int(file["n_features"]))
        M = sparse.csr_matrix((counts, file["indices"].astype(np.int32), file["indptr"]), shape=shape)
    norms = np.sqrt(np.asarray(M.multiply(M).sum(axis=1))).ravel()
    M = sparse.csr_matrix(sparse.diags_array(1 / np.maximum(norms, 1e-12)) @ M)
    order = np.random.default_rng(0).permutation(shape[0])
    return M[order[:TRAIN]], M[order[TRAIN:]]


def topic_cell(method: str, epsilon: float, seed: int) -> Cell:
    train, test = newsgroups()
    if method == "scikit-learn":
        return plain_cell(train, TOPICS, seed, test)
    begin = time.perf_counter()
    common = {"epsilon": epsilon, "delta": TOPIC_DELTA, "row_norm": 1.0, "unit": "document"}
    seeds = {"random_state": seed, "init_seed": seed}
    options = NMFOptions(noise_threshold=0.0 if method == "no threshold" else None)
    model = DPNMF(1 if method == "one topic" else TOPICS, options=options, **common, **seeds).fit(train)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "certified": model.certificate_.epsilon(TOPIC_DELTA), **judged(model, test)}


def cell(key: dict[str, Any]) -> Cell:
    if key["task"] == "topics":
        return topic_cell(key["method"], key["epsilon"] or math.inf, key["seed"])
    if key["method"] == "scikit-learn":
        return plain_cell(synthetic(key["seed"]), RANK, key["seed"])
    return synthetic_cell(key["method"], key["epsilon"], key["batch"], key["seed"])


def keys(topics: bool, seeds: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [
        {"task": "synthetic", "method": "scikit-learn", "epsilon": None, "batch": None, "seed": s} for s in range(seeds)
    ]
    grid = itertools.product(METHODS, EPSILONS, BATCHES, range(seeds))
    out += [{"task": "synthetic", "method": m, "epsilon": e, "batch": b, "seed": s} for m, e, b, s in grid]
    if topics:
        common = {"task": "topics", "batch": None}
        out += [{**common, "method": "scikit-learn", "epsilon": None, "seed": s} for s in range(seeds)]
        grid_of_topics = itertools.product(TOPIC_METHODS, EPSILONS, range(seeds))
        out += [{**common, "method": m, "epsilon": e, "seed": s} for m, e, s in grid_of_topics]
    return out


def shown(cells: list[Cell]) -> None:
    names = ("task", "method", "batch", "epsilon")
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for one in cells:
        groups.setdefault(tuple(one[name] for name in names), []).append(one)
    rows = []
    for group, members in groups.items():
        errors = [float(str(one["error"])) for one in members]
        published = [float(str(one["published"])) for one in members if one.get("published") is not None]
        row: Cell = dict(zip(names, ("" if part is None else part for part in group), strict=True))
        row |= {"error": float(np.mean(errors)), "spread": float(np.std(errors)), "runs": len(errors)}
        row |= {"published": float(np.mean(published)) if published else ""}
        for name in ("coherence", "distinct"):
            found = [float(str(one[name])) for one in members if name in one]
            row |= {name: float(np.mean(found)) if found else ""}
        rows.append(row)
    table("nmf", rows)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", action="store_true")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args(arguments)
    wanted = keys(options.topics, options.seeds)
    for key in wanted:
        key["protocol"] = PROTOCOL[key["task"]]
        done = [one for one in recorded("nmf") if all(one.get(name) == value for name, value in key.items())]
        if not done:
            record("nmf", [{**key, **cell(key)}])
    shown([one for one in recorded("nmf") if one.get("protocol") == PROTOCOL.get(str(one.get("task")))])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
