"""Images: centred, upright, and described by their edges."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import InvalidInput
from tacit.maps import Deskew, Hog
from tacit.maps.deskew import moments

SIDE = 28
GRID = ((SIDE, SIDE), (0, 1))


def glyph(shear: float = 0.0, down: float = 0.0, right: float = 0.0) -> np.ndarray:
    """A blurred bar with a foot, sheared and shifted by resampling a formula, not pixels."""
    r, c = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    r, c = r - down, c - right
    c = c - shear * r
    bar = np.exp(-((c / 1.6) ** 2)) / (1 + np.exp(np.abs(r) * 3 - 21))
    return np.clip(bar, 0, 1)


def flat(*images) -> np.ndarray:
    return np.array([image.ravel() for image in images])


# -- deskew ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shear", [-0.6, -0.2, 0.3, 0.7])
def test_a_sheared_glyph_is_straightened(shear):
    upright, slanted = Deskew(*GRID).fit_transform(flat(glyph(), glyph(shear)))
    assert np.abs(upright - slanted).max() < 0.12  # interpolation blurs
    assert np.abs(glyph() - glyph(shear)).max() > 0.5
    assert abs(moments(slanted.reshape(1, SIDE, SIDE)).shear[0]) < 0.02


@pytest.mark.parametrize(("down", "right"), [(3, -2), (-2.5, 4.25)])
def test_a_shifted_glyph_is_centred(down, right):
    still, moved = Deskew(*GRID).fit_transform(flat(glyph(0.2), glyph(0.2, down, right)))
    assert np.abs(still - moved).max() < 0.15
    found = moments(moved.reshape(1, SIDE, SIDE))
    row, column = found.row, found.column
    assert row[0] == pytest.approx(13.5, abs=0.02)
    assert column[0] == pytest.approx(13.5, abs=0.02)


def test_an_upright_centred_image_is_left_alone():
    image = glyph()
    np.testing.assert_allclose(Deskew(*GRID).fit_transform(flat(image))[0], image.ravel(), atol=1e-9)


def test_moments_by_hand():
    image = np.random.default_rng(0).uniform(size=(1, 5, 7))
    r, c = np.mgrid[:5, :7]
    mass = image[0] / image.sum()
    row, column = (mass * r).sum(), (mass * c).sum()
    shear = (mass * (r - row) * (c - column)).sum() / (mass * (r - row) ** 2).sum()
    found = moments(image)
    np.testing.assert_allclose(np.ravel([found.row, found.column, found.shear]), [row, column, shear])


def test_shear_can_be_limited_or_left_out():
    slanted = flat(glyph(0.7))
    kept = Deskew(*GRID, max_shear=0.0).fit_transform(slanted)
    np.testing.assert_allclose(kept, slanted, atol=1e-3)
    half = Deskew(*GRID, max_shear=0.35).fit_transform(slanted).reshape(1, SIDE, SIDE)
    assert moments(half).shear[0] == pytest.approx(0.35, abs=0.02)


@pytest.mark.parametrize("low", [0.0, -3.0, 5.0])
def test_blank_flat_and_lonely_pixels_survive(low):
    blank = np.full((8, 8), low)
    line, dot, corner, faint = (blank.copy() for _ in range(4))
    line[2] += 1
    dot[5, 1] += 1
    corner[0, 0] += 0.5
    faint[1, 1] += 1e-200
    model = Deskew((8, 8), (low, low + 1))
    out = model.fit_transform(flat(blank, line, dot, corner, faint, blank + 1)).reshape(-1, 8, 8)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out[0], blank)
    np.testing.assert_allclose((out - low).sum(axis=(1, 2)), [0, 8, 1, 0.5, 0, 64], atol=1e-9)
    np.testing.assert_allclose(out[5], 1 + low)


def test_pixels_beyond_the_range_are_clipped():
    image = glyph() * 1.5 - 0.2
    np.testing.assert_allclose(
        Deskew(*GRID).fit_transform(flat(image)), Deskew(*GRID).fit_transform(flat(np.clip(image, 0, 1)))
    )
    assert Deskew((28, 28), (-1, 255)).norm == pytest.approx(255 * 28)


# -- histograms of gradients -----------------------------------------------------------------------------------------


def mass(hog: Hog, image: np.ndarray) -> np.ndarray:
    """The share of each direction, over all cells."""
    out = hog.fit_transform(flat(image)).reshape(-1, hog.orientations).sum(axis=0)
    return out / out.sum()


@pytest.mark.parametrize(("signed", "turned"), [(True, 2), (False, 4)])
def test_a_quarter_turn_moves_directions(signed, turned):
    """rot90 turns counter-clockwise; rows grow downwards, so directions fall by a quarter of a turn."""
    image = np.random.default_rng(0).uniform(size=(SIDE, SIDE)) * glyph(0.4)
    hog = Hog(*GRID, orientations=8, signed=signed)
    np.testing.assert_allclose(mass(hog, np.rot90(image)), np.roll(mass(hog, image), -turned), atol=1e-9)
    assert np.abs(mass(hog, image) - np.roll(mass(hog, image), -turned)).max() > 0.01


def test_a_quarter_turn_moves_cells_and_blocks_as_well():
    image = np.random.default_rng(1).uniform(size=(8, 8))
    hog = Hog((8, 8), (0, 1), cell=2, orientations=4, block=2, signed=True)
    upright, turned = hog.fit_transform(flat(image, np.rot90(image))).reshape(2, 3, 3, 2, 2, 4)
    moved = np.rot90(np.rot90(upright, axes=(0, 1)), axes=(2, 3))
    np.testing.assert_allclose(turned, np.roll(moved, -1, axis=4), atol=1e-9)


@pytest.mark.parametrize("size", [0.8, 1.0, 1.25])
def test_sizes_are_normalised(size):
    """A Gaussian blob of any size ends with the wanted spread of rows; columns go half of the way."""
    side, wanted = 28, (0.15, 0.12)
    r = np.arange(side) - 13.5
    down, across = 3.4 * size, 2.8 * size
    blob = np.exp(-(r[:, None] ** 2) / (2 * down**2) - r**2 / (2 * across**2)).reshape(1, -1)
    found = moments(Deskew((side, side), (0, 1), spread=wanted).fit_transform(blob).reshape(1, side, side))
    assert np.sqrt(found.rows[0]) == pytest.approx(0.15 * side, rel=0.02)
    assert np.sqrt(found.columns[0]) == pytest.approx(np.sqrt(0.12 * side * across), rel=0.03)


@pytest.mark.parametrize("bad", [0.2, (0.2,), (0.0, 0.2), (0.2, 2.0), ("a", 0.2)])
def test_a_bad_spread_is_refused(bad):
    with pytest.raises(InvalidInput, match="spread"):
        Deskew((4, 4), (0, 1), spread=bad).fit(np.zeros((1, 16)))


def test_roots_of_histograms_are_shares():
    """One block: √(v/(Σv + ε)), then the whole divided by √(‖·‖² + 1)."""
    pictures = np.random.default_rng(0).uniform(size=(3, 64))
    plain = Hog((8, 8), (0, 1), cell=4, block=2, epsilon=1e6).fit_transform(pictures)  # faint: v/ε, hardly changed
    v = plain / np.sqrt(1 - (plain**2).sum(axis=1, keepdims=True)) * 1e6
    shares = np.sqrt(v / (v.sum(axis=1, keepdims=True) + 0.1))
    wanted = shares / np.sqrt((shares**2).sum(axis=1, keepdims=True) + 1)
    got = Hog((8, 8), (0, 1), cell=4, block=2, root=True).fit_transform(pictures)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_edges_point_where_they_should():
    ramp = np.tile(np.arange(8.0) / 8, (8, 1))  # brighter to the right: direction 0
    hog = Hog((8, 8), (0, 1), cell=8, block=1, orientations=8, signed=True)
    for turns, image in enumerate((ramp, ramp.T, ramp[:, ::-1], ramp.T[::-1])):
        assert mass(hog, image)[2 * turns] == pytest.approx(1)
    unsigned = Hog((8, 8), (0, 1), cell=8, block=1, orientations=8)
    assert mass(unsigned, ramp)[0] == pytest.approx(1)
    assert mass(unsigned, ramp[:, ::-1])[0] == pytest.approx(1)
    assert mass(unsigned, ramp.T)[4] == pytest.approx(1)


def test_constant_images_have_no_edges():
    for value in (0.0, 0.3, 1.0, 99.0):
        assert not Hog(*GRID).fit_transform(np.full((1, SIDE**2), value)).any()


def test_contrast_matters_only_when_it_is_faint():
    bright, half, faint = Hog(*GRID, epsilon=1e-3).fit_transform(flat(glyph(), glyph() / 2, glyph() * 1e-6))
    assert bright @ half > 0.95 * (bright @ bright)
    assert np.linalg.norm(bright) > 0.9
    assert np.linalg.norm(faint) < 0.05


def test_shape_of_the_descriptor():
    hog = Hog(*GRID).fit(flat(glyph()))
    assert hog.transform(flat(glyph())).shape == (1, 6 * 6 * 4 * 9)
    assert hog.get_feature_names_out()[-1] == "hog1295"
    assert Hog((4, 12), (0, 1), cell=2, block=1).fit_transform(np.zeros((1, 48))).shape == (1, 2 * 6 * 9)


def test_histograms_against_a_loop():
    """One cell, one direction at a time, in plain Python."""
    image = np.random.default_rng(2).uniform(size=(4, 6))
    padded = np.pad(image, 1, mode="edge")
    wanted = np.zeros((2, 3, 5))
    for r in range(4):
        for c in range(6):
            dx = (padded[r + 1, c + 2] - padded[r + 1, c]) / 2
            dy = (padded[r + 2, c + 1] - padded[r, c + 1]) / 2
            place = (np.arctan2(dy, dx) % np.pi) / np.pi * 5
            for i in range(2):
                for j in range(3):
                    near = max(0, 1 - abs(r + 0.5 - 2 * i - 1) / 2) * max(0, 1 - abs(c + 0.5 - 2 * j - 1) / 2)
                    for k in range(5):
                        away = min(abs(place - k), 5 - abs(place - k))
                        wanted[i, j, k] += near * max(0, 1 - away) * np.hypot(dx, dy)
    wanted /= np.sqrt((wanted**2).sum(axis=2, keepdims=True) + 0.01)
    wanted /= np.sqrt((wanted**2).sum() + 1)
    hog = Hog((4, 6), (0, 1), cell=2, block=1, orientations=5)
    np.testing.assert_allclose(hog.fit_transform(flat(image))[0], wanted.ravel(), atol=1e-12)
