"""The class of a GPU event: from the operator that launched it, then from the autograd node, last from its own name.

A kernel's name says little: a transposing kernel inside a convolution is convolution time, a
`vectorized_elementwise_kernel` that `aten::fill_` launched is a fill. So the innermost operator decides, then the
autograd node, and the name only where no operator is known (graphs, kernels without a launch record).
"""

# ruff: noqa: E501 - a pattern reads better whole

from __future__ import annotations

import re
from functools import cache

CLASSES = ("gemm", "convolution", "attention", "norm", "elementwise", "reduction", "communication", "copy", "other")

# In order: the first that matches the bare operator name (no namespace, no trailing underscore) decides.
_OPS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("communication", r"^(allreduce|all_?reduce|all_?gather|reduce_?scatter|broadcast_|record_param_comms|alltoall|all_to_all|_c10d|send|recv|barrier|nccl|wait_tensor)"),
        ("attention", r"attention|sdpa|_fmha|flash_attn|paged_attn|mha_"),
        ("convolution", r"conv(olution|[123]d|_|$)|conv_transpose|slow_conv|thnn_conv"),
        ("norm", r"(batch|layer|group|instance|rms|l2|weight|local_response)_?norm|native_norm|norm_backward|layernorm|rmsnorm|cudnn_batch_norm|miopen_batch_norm"),
        ("gemm", r"^(_?(add|ba)?d?d?mm|_?addmm|_?bmm|baddbmm|mv|addmv|dot|vdot|addr|ger|matmul|linear|einsum|_scaled_(grouped_)?mm|_grouped_mm|_int_mm|"
                 r"_weight_int4pack_mm|linear_backward|cublas\w*|gemm\w*|tensordot|mkldnn_linear|_cslt_sparse_mm)"),
        ("copy", r"^(copy|_to_copy|to|clone|contiguous|cat|_cat|stack|fill|zero|zeros|ones|full|empty|_foreach_copy|_foreach_zero|pin_memory|repeat|"
                 r"slice_backward|select_backward|constant_pad_nd|index_copy|unbind|split\w*|chunk_cat|_chunk_cat|_reshape_alias|roll|flip|tile|narrow_copy|as_strided_scatter)$"),
        ("reduction", r"^(sum|mean|amax|amin|max|min|argmax|argmin|std|var|var_mean|prod|norm|linalg_vector_norm|_foreach_norm|any|all|cumsum|cumprod|logsumexp|"
                      r"_?(log_)?softmax\w*|_?log_softmax\w*|nll_loss\w*|cross_entropy\w*|topk|sort|nonzero|unique\w*|count_nonzero|nansum|median|kthvalue|"
                      r"aminmax|bincount|histc|embedding_(dense_)?backward|\w*pool\w*|binary_cross_entropy\w*|mse_loss|l1_loss|smooth_l1_loss|kl_div|_amp_foreach_non_finite_check_and_unscale)$"),
        ("elementwise", r"^(_foreach_\w+|_fused_(adam|adamw|sgd|adagrad)\w*|add|sub|rsub|mul|div|pow|sqrt|rsqrt|exp|log\w*|neg|abs|sign|relu|relu6|gelu|silu|sigmoid|tanh|"
                        r"hardtanh|hardswish|leaky_relu|elu|mish|softplus|threshold\w*|clamp\w*|where|masked_fill|addcmul|addcdiv|lerp|"
                        r"eq|ne|lt|le|gt|ge|bitwise_\w+|logical_\w+|isnan|isfinite|isinf|sin|cos|erf|reciprocal|floor\w*|ceil|round|trunc|remainder|fmod|"
                        r"maximum|minimum|(native_|fused_|alpha_)?dropout\w*|bernoulli|normal|uniform|random|exponential|arange|linspace|tril|triu|index|index_put|_index_put_impl|"
                        r"gather|scatter\w*|index_select|embedding|\w*upsample\w*|\w*interpolate\w*|(gelu|silu|sigmoid|tanh|relu|elu|hardtanh|hardswish|leaky_relu|glu|mish)_backward|glu|square|fill_diagonal|rot\w*|real|imag|conj\w*)$"),
    )
)  # fmt: skip
# Names that Inductor gives to its Triton kernels: pointwise, reduction, persistent reduction, template, for-each.
_TRITON = re.compile(r"^triton_(poi|red|per|tem|for|mm|bmm|flex)_?")
_TRITON_CLASS = {"poi": "elementwise", "for": "elementwise", "red": "reduction", "per": "reduction", "tem": "gemm",
                 "mm": "gemm",
                 "bmm": "gemm", "flex": "attention"}  # fmt: skip
_KERNELS = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("communication", r"nccl|rccl|cross_device_reduce|custom_all_?reduce|oneshot|twoshot"),
        ("attention", r"fmha|flash|attn|attention"),
        ("convolution", r"conv|implicit_gemm|wgrad|dgrad|winograd|miopen.*(igemm|direct)"),
        ("norm", r"(batch|layer|group|instance|rms)_?norm|bn_fw|bn_bw"),
        ("gemm", r"gemm|cutlass|cublas|xmma|splitk|Cijk_|ampere_.*gemm|nvjet|wvsplit|gemv|matmul"),
        ("copy", r"memcpy|memset|copy|fillfunctor|\bcat\w*copy|transpose|nchwtonhwc"),
        ("reduction", r"reduce|softmax|argmax|topk|sort|scan"),
        ("elementwise", r"elementwise|multi_tensor_apply|pointwise|act_and_mul|rotary|index"),
    )
)


@cache
def classify(op: str | None, node: str | None, kernel: str, copy: bool, communication: bool) -> str:
    """Class of a GPU event.

    `op`: innermost operator; `node`: the autograd node around it; `copy`: a memcpy or memset.
    """
    if copy:
        return "copy"
    if communication:
        return "communication"
    triton = _TRITON.match(kernel) or (_TRITON.match(op) if op else None)
    if triton:
        return _TRITON_CLASS[triton[1]]
    for name in (op, node):
        found = _of_op(name) if name else None
        if found:
            return found
    for name, pattern in _KERNELS:
        if pattern.search(kernel):
            return name
    return "other"


@cache
def _of_op(name: str) -> str | None:
    bare = bare_op(name)
    for kind, pattern in _OPS:
        if pattern.search(bare):
            return kind
    return None


@cache
def bare_op(name: str) -> str:
    """`aten::add_` -> `add`; `autograd::engine::evaluate_function: AddmmBackward0` -> `addmm`."""
    name = name.rsplit(": ", 1)[-1]
    name = name.rsplit("::", 1)[-1]
    if name.endswith(("Backward0", "Backward1", "Backward")):
        stem = re.sub(r"Backward\d*$", "", name)
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    stripped = name.rstrip("_")
    return stripped or name
