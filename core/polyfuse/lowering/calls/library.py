"""Operators left to the library on purpose: algorithms that are no loops over elements."""

from __future__ import annotations

from typing import Any

from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers
from polyfuse.torch_compat import ops

_FAMILIES = {
    # sorting itself stands with the operators that plugins may take over
    "order statistics": "kthvalue median median.dim nanmedian nanmedian.dim mode _unique2 unique_dim histc",
    "losses": (
        "_ctc_loss _ctc_loss.Tensor _ctc_loss_backward _ctc_loss_backward.Tensor multi_margin_loss_backward "
        "multilabel_margin_loss_forward multilabel_margin_loss_backward"
    ),
    "distances": "_cdist_forward _cdist_backward _pdist_forward _pdist_backward",
    "linear algebra": (
        "addbmm _trilinear cholesky cholesky_inverse cholesky_solve geqrf ormqr triangular_solve lu_unpack "
        "_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd linalg_cholesky_ex linalg_eig "
        "linalg_eigvals linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve "
        "linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp "
        "linalg_pinv.atol_rtol_tensor linalg_qr linalg_solve_triangular"
    ),
}

NAMES = tuple(
    f"aten.{name}" if "." in name else f"aten.{name}.default"
    for family in _FAMILIES.values()
    for name in family.split()
)


@lowers(*NAMES, library=True)
def library(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    return call(ctx, node.meta["val"], ops.op_name(node.target), args, named)
