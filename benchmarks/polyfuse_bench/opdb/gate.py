"""The operators that a quick check covers: one or more of each kind that models are made of."""

GATE_OPERATORS = (
    # arithmetic
    "add", "sub", "mul", "div.no_rounding_mode", "div.floor_rounding", "div.trunc_rounding",
    "floor_divide", "remainder", "fmod", "pow", "neg", "abs", "sign", "reciprocal", "addcmul",
    "addcdiv", "lerp", "rsub", "square",
    # functions of one value
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p", "log2", "sin", "cos", "tan", "tanh",
    "asin", "atan", "atan2", "sinh", "acosh", "erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid",
    "logit", "floor", "ceil", "trunc", "round", "frac", "hypot", "copysign", "ldexp", "nextafter",
    "signbit", "nan_to_num", "sinc",
    # comparison and selection
    "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isclose", "logical_and", "logical_not",
    "maximum", "minimum", "fmax", "fmin", "clamp", "where", "masked_fill", "masked_scatter",
    "heaviside",
    # activations
    "nn.functional.relu", "nn.functional.gelu", "nn.functional.silu", "nn.functional.elu",
    "nn.functional.hardswish", "nn.functional.hardtanh", "nn.functional.leaky_relu",
    "nn.functional.mish", "nn.functional.softplus", "nn.functional.prelu", "nn.functional.glu",
    # reductions and scans
    "sum", "mean", "prod", "amax", "amin", "max.reduction_with_dim", "argmax", "argmin", "all", "any",
    "var", "std", "var_mean", "logsumexp", "norm", "cumsum", "cumprod", "logcumsumexp", "cummax",
    "count_nonzero", "softmax", "log_softmax", "nn.functional.layer_norm", "nn.functional.rms_norm",
    "nn.functional.group_norm", "nn.functional.batch_norm", "nn.functional.instance_norm",
    "nn.functional.cross_entropy", "nn.functional.nll_loss", "nn.functional.mse_loss",
    "nn.functional.binary_cross_entropy_with_logits",
    # shapes
    "view", "reshape", "permute", "transpose", "t", "expand", "squeeze", "unsqueeze", "flip", "roll",
    "cat", "stack", "split", "chunk", "narrow", "repeat", "repeat_interleave", "tile", "tril", "triu",
    "diagonal", "diag_embed", "unfold", "movedim", "nn.functional.pad.constant",
    "nn.functional.pad.reflect", "nn.functional.pixel_shuffle", "as_strided", "slice_scatter",
    "select_scatter",
    # indexing
    "gather", "scatter", "scatter_add", "scatter_reduce.amax", "index_select", "index_put", "index_add",
    "index_copy", "index_fill", "take", "take_along_dim", "nn.functional.embedding",
 "searchsorted", "bucketize", "sort", "topk", "nonzero", "unique",
    # matrices and images
    "mm", "bmm", "addmm", "baddbmm", "matmul", "einsum", "nn.functional.linear", "nn.functional.conv1d",
    "nn.functional.conv2d", "nn.functional.conv_transpose2d",
    "nn.functional.scaled_dot_product_attention", "nn.functional.max_pool2d",
    "nn.functional.avg_pool2d", "nn.functional.adaptive_avg_pool2d",
    "nn.functional.interpolate.nearest", "nn.functional.interpolate.bilinear",
    "nn.functional.grid_sample",
    # creation and types
    "full_like", "zeros_like", "arange", "linspace", "eye", "clone", "to", "float", "bfloat16",
)  # fmt: skip
