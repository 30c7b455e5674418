"""What the papers print, beside what Tacit certifies.

None of it is a guarantee: ``published`` holds the papers' formulas, ``figures`` and ``runner`` their figures, computed
again. Scripts in ``benchmarks/`` and tests import it as ``papers``; nothing in ``tacit`` does.
"""
