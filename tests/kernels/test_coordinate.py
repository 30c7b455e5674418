"""Coordinate kernels against plain numpy, against their own parts, against sklearn, and against z gone mad."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import Lasso, LogisticRegression

from tacit.kernels import coordinate as kernels
from tacit.kernels import sweeps
from tacit.kernels.lattice import FLUSH

LOSSES = {"squared": (0, 1.0), "Huber": (1, 0.7), "logistic": (2, 0.0), "smoothed hinge": (3, 0.4)}
# One loss with unbounded and one with bounded derivative: blocks share the derivative with the sweeps.
TWO_LOSSES = pytest.mark.parametrize(
    ("loss", "parameter"), [LOSSES["squared"], LOSSES["logistic"]], ids=["squared", "logistic"]
)
EACH_LOSS = pytest.mark.parametrize(("loss", "parameter"), LOSSES.values(), ids=list(LOSSES))
MAD = np.array([0.3, np.inf, -np.inf, np.nan, 1e308, -1e308, -2.0])


def slope(z, loss, parameter):
    """φ′ by numpy."""
    if loss == kernels.SQUARED:
        return z
    if loss == kernels.HUBER:
        return np.clip(z, -parameter, parameter)
    if loss == kernels.LOGISTIC:
        with np.errstate(over="ignore"):
            return -1 / (1 + np.exp(z))
    return np.where(z >= 1, 0.0, np.where(z > 1 - parameter, (z - 1) / parameter, -1.0))


def problem(seed, n=67, p=5, K=23, dtype=np.float64):
    """X with some zeros, z, w and the settings of a sweep, in the order of the signature."""
    rng = np.random.default_rng(seed)
    X = np.asfortranarray((rng.normal(size=(n, p)) * (rng.random((n, p)) < 0.6)).astype(dtype))
    w = rng.normal(size=p)
    z = X @ w - rng.normal(size=n)
    order = rng.integers(0, p, K)
    settings = (
        rng.normal(size=K),  # noise
        rng.uniform(0.1, 1.5, p),  # clip
        rng.uniform(0.1, 1, p) / n,  # step
        rng.uniform(0, 0.05, p),  # step_l1
        rng.uniform(0, 0.05, p),  # step_l2
        np.full(p, -0.9),
        np.append(np.full(p - 1, np.inf), 0.5),
    )
    return X, z, w, order, settings


def sweep_by_numpy(X, z, w, order, settings, loss, parameter):
    noise, clip, step, l1, l2, low, high = settings
    X, total = X.astype(float), np.zeros(w.size)
    for k, j in enumerate(order):
        G = np.clip(slope(z, loss, parameter) * X[:, j], -clip[j], clip[j]).sum()
        v = w[j] - step[j] * (G + noise[k])
        new = np.clip(np.sign(v) * max(abs(v) - l1[j], 0) / (1 + l2[j]), low[j], high[j])
        z += (new - w[j]) * X[:, j]
        w[j] = new
        total += w
    return z, w, total


def columns(X):
    S = scipy.sparse.csc_matrix(X.astype(float))
    return S.data, S.indices.astype(np.int32), S.indptr.astype(np.int64)


def sweep(layout, X, z, w, order, settings, loss, parameter):
    total = np.zeros(w.size)
    if layout == "CSC":
        kernels.sweep_sparse(*columns(X), z.size, z, w, order, *settings, loss, parameter, total)
    else:
        kernels.sweep_dense(X, z, w, order, *settings, loss, parameter, total)
    return z, w, total


@EACH_LOSS
@pytest.mark.parametrize("layout", ["float64", "float32", "CSC"])
def test_sweep_is_the_textbook_loop(layout, loss, parameter):
    tolerance = 1e-9 if loss == kernels.LOGISTIC else 1e-12
    for seed, n, p, K in [(0, 67, 5, 23), (1, 1, 1, 3), (2, 1, 4, 9), (3, 50, 1, 7), (4, 2100, 3, 11), (5, 6, 2, 0)]:
        X, z, w, order, settings = problem(seed, n, p, K, np.float32 if layout == "float32" else np.float64)
        expected = sweep_by_numpy(X, z.copy(), w.copy(), order, settings, loss, parameter)
        for found, value in zip(
            sweep(layout, X, z.copy(), w.copy(), order, settings, loss, parameter), expected, strict=True
        ):
            np.testing.assert_allclose(found, value, rtol=tolerance, atol=tolerance)


@EACH_LOSS
@pytest.mark.parametrize("layout", ["float64", "CSC"])
def test_sweep_is_sum_then_apply(layout, loss, parameter):
    X, z, w, order, settings = problem(7)
    expected = sweep(layout, X, z.copy(), w.copy(), order, settings, loss, parameter)
    total, (noise, clip, *rest) = np.zeros(w.size), settings
    for k, j in enumerate(order):
        old = w[j]
        if layout == "CSC":
            noisy = kernels.coordinate_sum_sparse(*columns(X), z, j, clip[j], loss, parameter) + noise[k]
            delta = kernels.apply_sparse(*columns(X), z, w, j, noisy, *rest)
        else:
            noisy = kernels.coordinate_sum_dense(X, z, j, clip[j], loss, parameter) + noise[k]
            delta = kernels.apply_dense(X, z, w, j, noisy, *rest)
        assert delta == w[j] - old
        total += w
    for found, value in zip((z, w, total), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-12, atol=1e-13)


def test_total_accumulates_over_sweeps():
    X, z, w, order, settings = problem(8)
    noise, *rest = settings
    one, two = np.zeros(w.size), np.zeros(w.size)
    z1, w1 = z.copy(), w.copy()
    kernels.sweep_dense(X, z1, w1, order, *settings, 0, 1.0, one)
    for part in (slice(0, 9), slice(9, 9), slice(9, None)):
        kernels.sweep_dense(X, z, w, order[part], noise[part], *rest, 0, 1.0, two)
    np.testing.assert_allclose(two, one, rtol=1e-12)
    np.testing.assert_allclose(w, w1, rtol=1e-12)
    np.testing.assert_allclose(z, z1, rtol=1e-11, atol=1e-13)


def test_an_empty_column_is_noised():
    columns_ = (np.ones(1), np.zeros(1, np.int32), np.array([0, 0, 1]))
    z, w, total, none = np.zeros(3), np.zeros(2), np.zeros(2), np.zeros(2)
    bounds = (np.full(2, -np.inf), np.full(2, np.inf))
    kernels.sweep_sparse(
        *columns_, 3, z, w, np.array([0]), np.array([2.0]), none + 1, none + 0.5, none, none, *bounds, 0, 1.0, total
    )
    assert (w.tolist(), total.tolist(), z.tolist()) == ([-1.0, 0.0], [-1.0, 0.0], [0.0, 0.0, 0.0])


@EACH_LOSS
def test_no_record_exceeds_its_clip_whatever_z_is(loss, parameter):
    rows = np.zeros(1, np.int32)
    for value in MAD:
        for entry in (0.0, 1e-300, 1.0, -1.0, 1e100, -1e100):
            X, z = np.full((1, 1), entry), np.full(1, value)
            dense = kernels.coordinate_sum_dense(X, z, 0, 0.25, loss, parameter)
            csc = kernels.coordinate_sum_sparse(X[0], rows, np.array([0, 1]), z, 0, 0.25, loss, parameter)
            assert dense == csc
            assert abs(dense) <= 0.25
            if entry == 0.0:
                assert dense == 0.0


@EACH_LOSS
def test_one_mad_record_moves_a_sum_by_no_more_than_the_clip(loss, parameter):
    rng = np.random.default_rng(3)
    X, z = np.asfortranarray(rng.normal(size=(41, 1))), rng.normal(size=41)
    rest = np.clip(slope(z, loss, parameter) * X[:, 0], -0.25, 0.25)
    for i in (0, 17, 40):  # in the vectorised body and in its remainder
        for value in MAD:
            changed = z.copy()
            changed[i] = value
            found = kernels.coordinate_sum_dense(X, changed, 0, 0.25, loss, parameter)
            assert abs(found - (rest.sum() - rest[i])) <= 0.25 + 1e-9


@EACH_LOSS
@pytest.mark.parametrize("layout", ["float64", "CSC"])
def test_a_diverging_run_stays_finite(layout, loss, parameter):
    X, z, w, order, settings = problem(11, K=200)
    X[0] = 1e100
    noise, clip, step, l1, l2, *_ = settings
    settings = (noise * 1e300, clip, step * 1e10, 0 * l1, 0 * l2, np.full(5, -np.inf), np.full(5, np.inf))
    z, w, total = sweep(layout, X, z, w, order, settings, loss, parameter)
    assert np.isfinite(z).all()
    assert np.isfinite(total).all()
    assert np.abs(w).max() <= kernels.LIMIT


def test_a_step_that_is_not_a_number_is_not_taken():
    X, z, w = np.ones((2, 1)), np.zeros(2), np.ones(1)
    none = np.zeros(1)
    assert kernels.apply_dense(X, z, w, 0, np.inf, none, none, none, none - 5, none + 5) == 0.0
    assert kernels.apply_dense(X, z, w, 0, -np.inf, none + 1, none, none, none - 5, none + 5) == 4.0
    assert w[0] == 5.0


def test_logistic_derivative_is_accurate_and_saturates():
    z = np.concatenate([np.linspace(-800, 800, 200_001), np.linspace(-2, 2, 10_001)])
    found, exact = kernels.derivative(z, kernels.LOGISTIC, 0.0), slope(z, kernels.LOGISTIC, 0.0)
    inside = np.abs(z) <= 700
    np.testing.assert_allclose(found[inside], exact[inside], rtol=1e-10)
    np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-303)
    ends = kernels.derivative(np.array([-np.inf, -1e308, 1e308, np.inf]), kernels.LOGISTIC, 0.0)
    np.testing.assert_allclose(ends, [-1, -1, 0, 0], atol=1e-303)


@TWO_LOSSES
@pytest.mark.parametrize("layout", ["float64", "CSC"])
def test_block_sum_clips_each_row(layout, loss, parameter):
    for seed, n, p, m in [(0, 67, 5, 3), (1, 1, 1, 1), (2, 3000, 6, 6), (3, 20, 3, 0)]:
        X, z, *_ = problem(seed, n, p)
        rng = np.random.default_rng(seed)
        block, whiten, bound = rng.permutation(p)[:m], rng.uniform(0.5, 2, m), 0.8
        v = slope(z, loss, parameter)[:, None] * X[:, block] * whiten
        norms = np.linalg.norm(v, axis=1)
        expected = (v * np.minimum(1, bound / np.where(norms > 0, norms, 1))[:, None]).sum(0)
        rest = (z, block, whiten, bound, loss, parameter)
        found = (
            kernels.block_sum_sparse(*columns(X), n, *rest) if layout == "CSC" else kernels.block_sum_dense(X, *rest)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 if loss == kernels.LOGISTIC else 1e-12)


@TWO_LOSSES
def test_no_record_exceeds_the_bound_of_a_block(loss, parameter):
    whitenings = ([1.0, 1.0], [1e-300, 1e300], [1e300, 1e300], [1e-300, 1e-300])
    for value in MAD:
        for row in ([1.0, -2.0], [0.0, 0.0], [1e200, 1e-200], [1e-170, 1e-170], [1e300, -1e300]):
            for whiten in whitenings:
                for bound in (0.5, 1e-200, 1e200):
                    X, z = np.asfortranarray([row]), np.full(1, value)
                    rest = (z, np.arange(2), np.array(whiten), bound, loss, parameter)
                    dense = kernels.block_sum_dense(X, *rest)
                    csc = (np.array(row), np.zeros(2, np.int32), np.arange(3))
                    np.testing.assert_array_equal(kernels.block_sum_sparse(*csc, 1, *rest), dense)
                    assert np.hypot(*(dense / bound)) <= 1 + 1e-12


def test_a_row_major_matrix_is_refused():
    with pytest.raises(ValueError, match="Fortran"):
        kernels.coordinate_sum_dense(np.ones((3, 2)), np.zeros(3), 0, 1.0, 0, 1.0)


# -- on a grid ----------------------------------------------------------------------------------------------------


UNIT = 2.0**-20
ROWS = ([1.0, -2.0, 1.0], [1e200, 1e-200, 0.0], [1e-170, 0, 1e100], [3e299, -1e300, 1e292], [1.7e308, 9e307, 1e308])
LAYOUTS = pytest.mark.parametrize("layout", ["float64", "float32", "CSC"])


def integer_sum(layout, X, z, j, clip, loss, parameter, unit=UNIT):
    if layout == "CSC":
        return kernels.coordinate_sum_sparse(*columns(X), z, j, clip, loss, parameter, unit)
    return kernels.coordinate_sum_dense(X, z, j, clip, loss, parameter, unit)


def integer_block(layout, X, z, block, whiten, bound, loss, parameter, unit=UNIT):
    rest = (z, block, whiten, bound, loss, parameter, unit)
    return (
        kernels.block_sum_sparse(*columns(X), z.size, *rest) if layout == "CSC" else kernels.block_sum_dense(X, *rest)
    )


FINEST = (2.0**-52, 2.0**52)
"""A grid on which every bit of one record's term shows; the other records are zero, so their sum is exact."""


def every_bit(layout, X, z, loss, parameter):
    """The sum of column 1 and of a block, on the finest grid; zeros are stored in CSC, too."""
    kind, (n, p) = kernels._kind(loss, parameter), X.shape
    block, whiten, out = np.array([2, 0, 1]), np.array([1.0, 3.0, 0.2]), np.zeros(3, np.int64)
    noise, sums = np.zeros(1, np.int64), []
    if layout == "CSC":
        data, rows, starts = X.T.ravel().astype(float), np.tile(np.arange(n, dtype=np.int32), p), np.arange(p + 1) * n
        sums.append(sweeps.column_sum_sparse(*kind, FINEST, None, data[n : 2 * n], rows[:n], z, 3.0, noise, 0))
        sweeps.block_sum_sparse(*kind, FINEST, None, (data, rows, starts), z, block, whiten, 0.8, out)
    else:
        sums.append(sweeps.column_sum(*kind, FINEST, None, z, X.T[1], 3.0, noise, 0))
        sweeps.block_sum(*kind, FINEST, None, X.T, z, block, whiten, 0.8, out)
    return [*sums, *out]


@EACH_LOSS
@LAYOUTS
def test_every_bit_of_a_term_is_a_function_of_its_record(layout, loss, parameter):
    """In the vectorised body of a loop or in its remainder: the same as alone."""
    rng, kind = np.random.default_rng(5), np.float32 if layout == "float32" else np.float64
    for n in (2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 97, 130):
        for i in range(n):
            X, z = np.zeros((n, 3), kind, order="F"), rng.normal(size=n)
            X[i] = rng.normal(size=3) * rng.choice([0.1, 1.0, 5.0])
            alone = every_bit(layout, np.asfortranarray(X[i : i + 1]), z[i : i + 1], loss, parameter)
            assert every_bit(layout, X, z, loss, parameter) == alone


@EACH_LOSS
@LAYOUTS
def test_integers_are_those_of_each_record_alone(layout, loss, parameter):
    """Beside other rows, and whatever z is."""
    rng = np.random.default_rng(5)
    for n in (1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 100, 1023, 1025, 1100):
        X, z, *_ = problem(n, n, 3, dtype=np.float32 if layout == "float32" else np.float64)
        z[rng.random(n) < 0.1] = rng.choice(MAD)
        block, whiten = np.array([2, 0, 1]), np.array([1.0, 3.0, 0.2])
        total, together = 0, np.zeros(3, np.int64)
        for i in range(n):
            row, one = np.asfortranarray(X[i : i + 1]), z[i : i + 1]
            total += integer_sum(layout, row, one, 1, 0.3, loss, parameter)
            together += integer_block(layout, row, one, block, whiten, 0.8, loss, parameter)
        assert integer_sum(layout, X, z, 1, 0.3, loss, parameter) == total
        np.testing.assert_array_equal(integer_block(layout, X, z, block, whiten, 0.8, loss, parameter), together)


@EACH_LOSS
@LAYOUTS
def test_predictions_of_a_sweep_are_those_of_each_record_alone(layout, loss, parameter):
    """Given what was released: the rows of a table, of its first rows, and of the table among others."""
    for n in (1, 5, 8, 13, 67):
        X, z, w, order, (noise, _, *rest) = problem(n, n, 5, dtype=np.float32 if layout == "float32" else np.float64)
        other = np.asfortranarray(np.concatenate([X[::-1], 1 - X, X[: n // 2]]))
        ends = []
        for table, start in ((X, z), (other, np.concatenate([z[::-1], z, z[: n // 2]]))):
            at, now = start.copy(), w.copy()
            for k, j in enumerate(order):
                if layout == "CSC":
                    kernels.apply_sparse(*columns(table), at, now, j, 9 * noise[k], *rest)
                else:
                    kernels.apply_dense(table, at, now, j, 9 * noise[k], *rest)
            ends.append(at)
        assert ends[1][:n][::-1].tobytes() == ends[0].tobytes()
        assert ends[1][2 * n :].tobytes() == ends[0][: n // 2].tobytes()


@LAYOUTS
def test_a_sweep_on_a_grid_is_sum_then_apply_to_the_bit(layout):
    for seed, n, K in [(0, 67, 23), (1, 1, 3), (2, 2 * FLUSH + 5, 11)]:
        X, z, w, order, (noise, clip, *rest) = problem(seed, n, 5, K, np.float32 if layout == "float32" else np.float64)
        R = np.rint(noise / UNIT).astype(np.int64)
        z1, w1, total = z.copy(), w.copy(), np.zeros(5)
        call = (z1, w1, order, R, clip, *rest, kernels.LOGISTIC, 0.0, total, UNIT)
        if layout == "CSC":
            kernels.sweep_sparse(*columns(X), n, *call)
        else:
            kernels.sweep_dense(X, *call)
        for k, j in enumerate(order):
            noisy = clip[j] * (UNIT * float(integer_sum(layout, X, z, j, clip[j], kernels.LOGISTIC, 0.0) + R[k]))
            if layout == "CSC":
                kernels.apply_sparse(*columns(X), z, w, j, noisy, *rest)
            else:
                kernels.apply_dense(X, z, w, j, noisy, *rest)
        assert (z.tobytes(), w.tobytes()) == (z1.tobytes(), w1.tobytes())


@pytest.mark.parametrize("layout", ["float64", "CSC"])
def test_sums_beyond_the_integers_of_a_float_are_exact(layout):
    """Odd numbers near 2³⁹, more than 2¹⁴ of them: their sum has more bits than a float."""
    n, unit = 3 * FLUSH + 7, 2.0**-39
    X, z = np.ones((n, 1), order="F"), np.full(n, 1 - 2.0**-39)
    q = integer_sum(layout, X, z, 0, 1.0, kernels.SQUARED, 0.0, unit)
    assert q == n * (2**39 - 1) > 2**53
    assert float(q) != q
    block = integer_block(layout, np.asfortranarray(X * [1.0, 0.0]), z, np.arange(2), np.ones(2), 4.0, 0, 0.0, unit)
    assert block.tolist() == [n * int((1 - 2.0**-39) / 4 * 2**39 * (1 - 10 * 2.0**-52)), 0]


@EACH_LOSS
def test_no_integer_exceeds_its_bound_whatever_z_is(loss, parameter):
    """Without a tolerance, for numbers and for blocks."""
    rng = np.random.default_rng(0)
    for unit in (2.0**-39, 2.0**-20, 0.5, 4.0):
        most = int(1 / unit) if unit <= 1 else 0
        for value in (*MAD, 1e-170, *rng.normal(size=30)):
            for row in (*ROWS, rng.normal(size=3)):
                X, z = np.asfortranarray([row]), np.full(1, value)
                for clip in (1e-300, 0.1, 1e200):
                    assert abs(integer_sum("float64", X, z, 0, clip, loss, parameter, unit)) <= most
                    found = [
                        integer_block(layout, X, z, np.arange(3), np.full(3, 1 / clip), 3**0.5, loss, parameter, unit)
                        for layout in ("float64", "CSC")
                    ]
                    np.testing.assert_array_equal(*found)
                    assert sum(int(q) ** 2 for q in found[0]) <= most**2


def test_grids_and_noise_that_do_not_fit_are_refused():
    X, z, w, order, (noise, *rest) = problem(0)
    for unit in (0.3, 2.0**-40):
        with pytest.raises(ValueError, match="power of two"):
            kernels.coordinate_sum_dense(X, z, 0, 1.0, 0, 1.0, unit)
    for kind, unit in ((np.float64, UNIT), (np.int64, None)):
        with pytest.raises(ValueError, match="noise must be"):
            kernels.sweep_dense(X, z, w, order, noise.astype(kind), *rest, 0, 1.0, np.zeros(5), unit)


def quiet(n, p, sweeps, smooth, alpha, beta):
    """Settings without noise and without effective clipping, for the penalty α‖w‖₁ + ½β‖w‖² of the mean loss."""
    step = 1 / smooth
    none = np.zeros(p)
    order = np.tile(np.arange(p), sweeps)
    rest = (none + 1e9, step / n, step * alpha, step * beta, none - np.inf, none + np.inf)
    return order, (np.zeros(order.size), *rest)


def test_without_noise_it_solves_the_lasso():
    rng = np.random.default_rng(0)
    X = np.asfortranarray(rng.normal(size=(300, 6)) * [1, 2, 3, 1, 1, 1])
    y = X @ [1.0, 0, -2, 0.05, 0, 0.5] + 0.1 * rng.normal(size=300)
    order, settings = quiet(300, 6, 200, (X**2).mean(0), 0.1, 0.0)
    _, w, _ = sweep("float64", X, -y, np.zeros(6), order, settings, kernels.SQUARED, 1.0)
    np.testing.assert_allclose(w, Lasso(alpha=0.1, fit_intercept=False, tol=1e-14).fit(X, y).coef_, atol=1e-9)


@pytest.mark.parametrize("layout", ["float64", "CSC"])
def test_without_noise_it_solves_logistic_regression(layout):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 4))
    y = np.where(rng.random(300) < 1 / (1 + np.exp(-X @ [1.0, -1, 0.5, 0])), 1.0, -1.0)
    order, settings = quiet(300, 4, 400, (X**2).mean(0) / 4, 0.0, 0.01)
    folded = np.asfortranarray(X * y[:, None])
    _, w, _ = sweep(layout, folded, np.zeros(300), np.zeros(4), order, settings, kernels.LOGISTIC, 0.0)
    exact = LogisticRegression(C=1 / (0.01 * 300), fit_intercept=False, tol=1e-12, max_iter=10_000).fit(X, y).coef_[0]
    np.testing.assert_allclose(w, exact, atol=1e-6)
    gradient = folded.T @ slope(folded @ w, kernels.LOGISTIC, 0.0) / 300 + 0.01 * w
    assert np.abs(gradient).max() < 1e-9
