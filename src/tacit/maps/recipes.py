"""Feature maps put together for common kinds of records."""

from __future__ import annotations

from typing import Any

from sklearn.pipeline import Pipeline, make_pipeline

from tacit.maps.deskew import Deskew
from tacit.maps.fourier import RandomFourier
from tacit.maps.hog import Hog

__all__ = ["image_features"]

SPREAD = (0.22, 0.18)
"""Of handwriting: fills most of the image."""


def image_features(
    image_shape: Any,
    pixel_range: Any,
    *,
    deskew: bool = False,
    n_features: int = 2000,
    gamma: float = 3.0,
    seed: int = 0,
) -> Pipeline:
    """Grey images to random Fourier features of their edges: a good start for private image classification.

    Square roots of histograms of eight signed edge directions (``Hog``), then a Gaussian kernel (``RandomFourier``).
    The constants were found on validation pictures of MNIST and Fashion-MNIST, outside of any budget: for those two
    data sets they are not free, for others they are public.

    Formal guarantee: every row has norm at most 1, and depends on its own record and on public constants only.

    Args:
        image_shape: (height, width), multiples of 4.
        pixel_range: (low, high), public.
        deskew: whether to straighten slanted images first and make them equally large, as for handwriting.
        n_features: random features, even.
        gamma: γ of the kernel.
        seed: of the random features, public.

    Returns:
        A pipeline for ``features=``.

    >>> from tacit.maps import feature_norm
    >>> maps = image_features((28, 28), (0, 255), deskew=True)
    >>> [name for name, _ in maps.steps], feature_norm(maps.fit([[0.0] * 784]))
    (['deskew', 'hog', 'randomfourier'], 1.0)
    """
    straight = [Deskew(image_shape, pixel_range, spread=SPREAD)] if deskew else []
    edges = Hog(image_shape, pixel_range, signed=True, orientations=8, root=True)
    return make_pipeline(*straight, edges, RandomFourier(n_features, gamma=gamma, seed=seed))
