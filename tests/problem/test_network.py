"""Layers against PyTorch-free references, and hidden variables against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import InvalidInput
from tacit.kernels.exact import coarse
from tacit.kernels.relu import relu_step
from tacit.problem.layers import BIAS, Convolution, Dense, layer_map
from tacit.problem.network import Architecture, _Pass, architecture

LAYERS = [
    (Dense(4), (5,)),
    (Dense(4, pool=2), (2, 5, 6)),
    (Convolution(3, 2), (2, 4, 5)),
    (Convolution(3, 3, stride=2, padding=1), (2, 5, 6)),
    (Convolution(2, 2, pool=2), (1, 6, 7)),
]
GRID = 1e-5
"""Products are rounded to some twenty bits so that they are exact (``tacit.kernels.exact``)."""
each_layer = pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda value: str(value))


def slow_layer(layer, W, x, constant):
    """Loops over every output, position and entry."""
    if layer.pool > 1:
        c, h, w = x.shape
        k = layer.pool
        pooled = np.zeros((c, h // k, w // k))
        for i in range(h // k):
            for j in range(w // k):
                pooled[:, i, j] = x[:, i * k : i * k + k, j * k : j * k + k].reshape(c, -1).mean(axis=1)
        x = pooled
    if isinstance(layer, Dense):
        return W[:, :-1] @ x.ravel() + W[:, -1] * constant
    p, k, s = layer.padding, layer.kernel, layer.stride
    x = np.pad(x, ((0, 0), (p, p), (p, p)))
    rows, cols = ((side - k) // s + 1 for side in x.shape[1:])
    out = np.zeros((layer.channels, rows, cols))
    for i in range(rows):
        for j in range(cols):
            patch = x[:, i * s : i * s + k, j * s : j * s + k].ravel()
            out[:, i, j] = W[:, :-1] @ patch + W[:, -1] * constant
    return out.ravel()


@each_layer
def test_a_layer_is_what_loops_say(layer, shape):
    rng = np.random.default_rng(0)
    made = layer_map(layer, shape)
    W, x = rng.normal(size=made.weights), rng.normal(size=(3, int(np.prod(shape))))
    out = made.forward(coarse(W), made.design(x, 0.7))
    assert out.shape == (3, int(np.prod(made.target)))
    assert np.allclose(out, [slow_layer(layer, W, row.reshape(shape), 0.7) for row in x], atol=GRID)


@each_layer
def test_backward_is_the_adjoint_of_forward(layer, shape):
    rng = np.random.default_rng(1)
    made = layer_map(layer, shape)
    W, x = rng.normal(size=made.weights), rng.normal(size=(3, int(np.prod(shape))))
    r = rng.normal(size=(3, int(np.prod(made.target))))
    here = (made.forward(coarse(W), made.design(x, 0.0)) * r).sum(axis=1)
    assert np.allclose(here, (x * made.backward(coarse(W[:, :-1].T), r)).sum(axis=1), atol=10 * GRID)


@pytest.mark.parametrize("seed", range(5))
def test_the_relu_step_is_the_best_of_a_fine_grid(seed):
    rng = np.random.default_rng(seed)
    inner, outer = rng.normal(size=(2, 200)) * rng.choice([0.3, 3.0])
    shrunk = rng.choice([1.0, 0.5])
    grid = np.linspace(-12, 12, 24_001)[:, None]

    def cost(u):
        return (outer / shrunk - np.maximum(u, 0)) ** 2 / 2 + (u - inner) ** 2 / 2

    found = cost(relu_step(inner[None], outer[None], np.array([shrunk]))[0])
    assert (found <= cost(grid).min(axis=0) + 1e-12).all()


def networks():
    yield architecture((5,), (4, 3), 3, norms=0.9)
    yield architecture((5,), (4, 3), 2, norms=50.0, loss="squared", gamma=0.7)
    yield architecture((5,), (4, 3, 3), 2, norms=50.0, loss="squared", shortcuts=((1, 3), (0, 4)))
    yield architecture((1, 6, 6), (Convolution(2, 3), Dense(4, pool=2)), 3, norms=(5.0, 0.8, 40.0))
    yield architecture((1, 6, 6), (Convolution(2, 3), Convolution(2, 2, pool=2)), 2, norms=30.0, loss="squared")


each_network = pytest.mark.parametrize(
    "network", list(networks()), ids=lambda n: f"{len(n.connections)}-{n.loss}-{n.shapes}"
)


def drawn(network: Architecture, records=6, seed=0):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=c.map.weights) * 0.7 for c in network.connections]
    x = rng.normal(size=(records, int(np.prod(network.shapes[0])))) * 0.5
    return weights, x, np.eye(network.outputs)[rng.integers(network.outputs, size=records)]


@each_network
def test_a_record_has_the_same_hidden_variables_whoever_is_beside_it(network):
    weights, x, y = drawn(network)
    together = network.hidden(weights, x, y)
    for i in range(len(x)):
        alone = network.hidden(weights, x[i : i + 1], y[i : i + 1])
        for a, b in zip(together.designs + together.residuals, alone.designs + alone.residuals, strict=True):
            assert np.array_equal(a[i], b[0])


@each_network
def test_states_stay_within_their_norms_and_the_input_is_never_updated(network):
    """Eq. (12); and errata E12: eq. (11) would move x₀, which is the record itself."""
    weights, x, y = drawn(network)
    long = x * np.array([[0.1], [1], [10], [1e3], [1e6], [0]])
    hidden = network.hidden(weights, long, y)
    for c, design in zip(network.connections, hidden.designs, strict=True):
        if c.map.patches == 1 and c.map.pool == 1:
            assert (np.linalg.norm(design[:, 0, :-1], axis=1) <= network.norms[c.source]).all()
            assert np.allclose(design[:, 0, -1], BIAS * network.norms[c.source])
        if c.source == 0:
            norm = np.maximum(np.linalg.norm(long, axis=1, keepdims=True), network.norms[0])
            assert np.allclose(design, c.map.design(long * network.norms[0] / norm, BIAS * network.norms[0]), rtol=1e-4)


def plain_pre(network, weights, states, target):
    """ΣWx by ordinary products."""
    out = 0
    for j in network.into(target):
        c = network.connections[j]
        design = c.map.design(states[c.source], BIAS * network.norms[c.source])
        out = out + (design @ weights[j].T).transpose(0, 2, 1).reshape(len(design), -1)
    return out


def objective(network, weights, states, aims, y):
    """F of eq. (4) for each record; states include x₀, aims are u_0 … u_{D−1}."""
    D, g = network.depth, network.gamma
    pre = [plain_pre(network, weights, states, t) for t in range(D + 1)]
    if network.loss == "squared":
        out = ((pre[D] - y) ** 2).sum(axis=1) / 2
    else:
        top = pre[D].max(axis=1, keepdims=True)
        out = (np.log(np.exp(pre[D] - top).sum(axis=1)) + top[:, 0]) - (pre[D] * y).sum(axis=1)
    for t in range(D):
        out = out + g / 2 * ((states[t + 1] - np.maximum(aims[t], 0)) ** 2).sum(axis=1)
        out = out + g / 2 * ((aims[t] - pre[t]) ** 2).sum(axis=1)
    return out


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("picture", [False, True])
def test_the_last_state_minimises_its_block(loss, picture):
    """Squared loss exactly (eq. 11), below convolutions nearly; cross-entropy descends."""
    shape, layers = ((1, 6, 6), (Convolution(2, 3), Dense(4, pool=2))) if picture else ((5,), (4, 3))
    network = architecture(shape, layers, 3, norms=8.0, loss=loss)
    weights, x, y = drawn(network)
    states = short_states(_Pass(network, network.prepared(weights), x))
    D = network.depth
    centre = states[D].copy()

    def cost(last):
        z = plain_pre(network, weights, [*states[:D], last], D)
        fit = ((z - y) ** 2).sum(axis=1) / 2
        if loss == "cross_entropy":
            fit = np.log(np.exp(z).sum(axis=1)) - (z * y).sum(axis=1)
        return fit + network.gamma / 2 * ((last - centre) ** 2).sum(axis=1)

    hidden = network.hidden(weights, x, y)
    moved = hidden.designs[D][:, 0, :-1]
    rng = np.random.default_rng(2)
    assert (cost(moved) < cost(centre)).all()
    others = [cost(moved + 1e-3 * rng.normal(size=moved.shape)) for _ in range(50)]
    if loss == "squared":
        assert (cost(moved) <= np.min(others, axis=0) + 1e-9).all()
    else:  # two majorised Newton steps: most of the way
        best = centre.copy()
        for _ in range(200):
            z = plain_pre(network, weights, [*states[:D], best], D)
            p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
            best = best - 0.2 * ((p - y) @ weights[D][:, :-1] + network.gamma * (best - centre))
        gain, most = cost(centre) - cost(moved), cost(centre) - cost(best)
        assert (gain >= 0.75 * most).all()


def test_states_below_convolutions_solve_their_normal_equations():
    network = architecture((1, 6, 6), (Convolution(2, 3), Convolution(2, 2, pool=2)), 2, norms=1e3, loss="squared")
    weights, _, _ = drawn(network)
    rng = np.random.default_rng(3)
    d = network.connections[1].map
    weights[1] *= 0.5
    wanted = rng.normal(size=(4, int(np.prod(d.target))))
    A = np.stack([d.forward(coarse(weights[1]), d.design(e[None], 0.0))[0] for e in np.eye(32)], axis=1)
    at = _Pass(network, network.prepared(weights), np.zeros((4, 36)))
    exact = np.linalg.solve(np.eye(32) + A.T @ A, A.T @ wanted.T).T
    assert np.allclose(at._conjugate_step([(1, 1.0)], [wanted]), exact, atol=1e-4)


@each_network
def test_residuals_are_minus_the_gradients_of_the_objective(network):
    """r·xᵀ of a record is −∂F/∂W at its hidden variables: numerically, entry by entry."""
    weights, x, y = drawn(network, records=2)
    hidden = network.hidden(weights, x, y)
    states, aims = recovered(network, weights, hidden, x, y)
    for j, c in enumerate(network.connections):
        r = c.map.by_patch(hidden.residuals[c.target])
        G = np.einsum("ipq,ipw->iqw", r, hidden.designs[j]) * (network.gamma if c.target < network.depth else 1.0)
        for q, w in [(0, 0), (-1, -1), (0, -1)]:
            W = [V.copy() for V in weights]
            W[j][q, w] += 1e-6
            up = objective(network, W, states, aims, y)
            W[j][q, w] -= 2e-6
            slope = (up - objective(network, W, states, aims, y)) / 2e-6
            assert np.allclose(slope, -G[:, q, w], atol=10 * GRID * (1 + np.abs(slope).max()))


def short_states(at):
    """All states; the pass keeps x₀ as it came."""
    return [at.states[0] * at.shrunk[0][:, None], *at.states[1:]]


def recovered(network, weights, hidden, x, y):
    """The states and aims of a sweep, from a pass that is kept."""
    kept = []

    class Kept(_Pass):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            kept.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tacit.problem.network._Pass", Kept)
        network.hidden(weights, x, y)
    states = short_states(kept[0])
    pre = [plain_pre(network, weights, states, t) for t in range(network.depth)]
    return states, [hidden.residuals[t] + pre[t] for t in range(network.depth)]


@pytest.mark.parametrize(
    ("layers", "more", "message"),
    [
        ("64", {}, "must be a sequence of sizes"),
        ((0,), {}, "positive"),
        ((3,), {"shortcuts": [(0, 1)]}, "shortcuts must be pairs"),
        ((3,), {"shortcuts": [(0, 2), (0, 2)]}, "twice"),
        ((3,), {"norms": [1.0]}, "layer_norms must be one number, or 2"),
        ((3,), {"norms": -1.0}, "layer_norms"),
        ((3,), {"gamma": 0}, "gamma"),
        ((3,), {"loss": "hinge"}, "loss"),
        ((Convolution(3),), {}, "input_shape"),
        ((Dense(3, pool=2),), {}, "leave pool out"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(layers, more, message):
    with pytest.raises(InvalidInput, match=message) as raised:
        architecture((5,), layers, 2, **more)
    assert "\n" not in str(raised.value)


def test_whole_numbers_of_any_type_are_sizes():
    assert Dense(4.0) == Dense(4)
    assert type(Dense(np.int64(4)).width) is int
    assert architecture((5,), (4.0,), 2).shapes == ((5,), (4,))
    with pytest.raises(InvalidInput, match="width"):
        Dense(4.5)
