"""The curvature of a training loss, from public data: eigenvalues for ``tacit.noise``'s NoiseCurve workloads.

The entry point is ``hessian_spectrum``; its parts are ``products`` (Hv), ``lanczos``, ``density`` and ``tail``. Whether
one Hessian bounds another, ``dominance`` computes.
"""

from tacit.torch.curvature.density import Count, count_above, probe
from tacit.torch.curvature.dominance import dominance, hessian, positive_part
from tacit.torch.curvature.lanczos import Eigenvalues, Sweep, lanczos
from tacit.torch.curvature.products import HessianProduct, dense_hessian
from tacit.torch.curvature.spectrum import Spectrum, hessian_spectrum
from tacit.torch.curvature.tail import TailFit, fit_tail

__all__ = [
    "Count",
    "Eigenvalues",
    "HessianProduct",
    "Spectrum",
    "Sweep",
    "TailFit",
    "count_above",
    "dense_hessian",
    "dominance",
    "fit_tail",
    "hessian",
    "hessian_spectrum",
    "lanczos",
    "positive_part",
    "probe",
]
