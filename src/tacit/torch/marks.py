"""What a certificate of a training says was declared by the user, or checked on made-up records."""

from __future__ import annotations

__all__ = ["CHECKED", "PUBLIC_SHAPES", "RECORDS_APART", "SAME_EVERYWHERE"]

RECORDS_APART = "declared: model and loss_fn carry nothing from record to record through globals or closures"
"""Attributes of modules are compared (``stateless``); what custom code keeps elsewhere is declared by the user."""
CHECKED = {
    "taps": "checked on made-up records: gradients by rules of layers equal vmap's, which keeps records apart",
    "hooks": "declared: records do not meet in one pass over a batch (vmap cannot batch the model); checked on made-up "
    "records, whose clipped sums equal those of single ones",
}
"""By the way in which gradients are computed, what was compared before anything was charged."""
PUBLIC_SHAPES = "declared: shape and type of the dataset's items are public"
"""A model is tried on made-up records of the shape that the first items of a dataset have."""

SAME_EVERYWHERE = "declared: PyTorch's kernels round a record's gradient in the same way at every place of a chunk"
"""Sums of integers are exact, but gradients come from kernels that may round by place; chunk_size=1 has one place."""
