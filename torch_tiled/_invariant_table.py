"""What torch_tiled.invariant knows of PyTorch's functions that it does not replace.

A function is found by its name without the underscore of its form in place, so torch.add,
Tensor.add and Tensor.add_ are one row. A name that is not here is not covered. Routes are asked
first: what they leave to PyTorch has no floating-point numbers, or is not covered.
"""

# Functions that PyTorch computes, with no sums of rounded numbers in an order that a batch changes.
KEPT = {
    "functions of each element": (
        "abs absolute acos acosh add addcdiv addcmul addr alpha_dropout angle arccos arccosh "
        "arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh bitwise_and "
        "bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu "
        "clamp clamp_max clamp_min clip complex copysign cos cosh cross deg2rad diff digamma div "
        "divide elu eq erf erfc erfinv exp exp2 expm1 fix float_power floor floor_divide fmax "
        "fmin fmod frac frexp fake_quantize_per_channel_affine fake_quantize_per_tensor_affine "
        "gcd ge gelu glu gradient greater greater_equal gt hardshrink hardsigmoid hardswish "
        "hardtanh heaviside hypot i0 igamma igammac isclose isfinite isinf isnan isneginf "
        "isposinf isreal lcm ldexp le leaky_relu lerp less less_equal lgamma log log10 log1p log2 "
        "log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit "
        "logsigmoid lt masked_fill map map2 maximum minimum mish mul multiply mvlgamma nan_to_num "
        "ne neg negative nextafter not_equal outer ger kron polar polygamma positive pow prelu "
        "quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic rad2deg reciprocal "
        "relu relu6 remainder round rrelu rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc "
        "sinh softplus softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold "
        "_threshold true_divide trunc vander where xlogy dequantize int_repr airy_ai bessel_j0 "
        "bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u "
        "chebyshev_polynomial_v chebyshev_polynomial_w entr erfcx expit gammainc gammaincc "
        "gammaln hermite_polynomial_h hermite_polynomial_he i0e i1 i1e laguerre_polynomial_l "
        "legendre_polynomial_p log_ndtr modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 "
        "modified_bessel_k1 multigammaln ndtr ndtri psi scaled_modified_bessel_k0 "
        "scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u "
        "shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w spherical_bessel_j0 "
        "xlog1py zeta __add__ __and__ __div__ __eq__ __floordiv__ __ge__ __gt__ __iadd__ __iand__ "
        "__idiv__ __ifloordiv__ __ilshift__ __imod__ __imul__ __invert__ __ior__ __irshift__ "
        "__isub__ __ixor__ __ipow__ __itruediv__ __le__ __lshift__ __lt__ __mod__ __mul__ __ne__ "
        "__neg__ __abs__ __or__ __pos__ __pow__ __radd__ __rand__ __rdiv__ __rfloordiv__ "
        "__rlshift__ __rmod__ __rmul__ __ror__ __rpow__ __rrshift__ __rshift__ __rsub__ "
        "__rtruediv__ __rxor__ __sub__ __truediv__ __xor__"
    ),
    "views, copies, casts and new tensors": (
        "pad_sequence pack_padded_sequence H T mH mT adjoint alias_copy as_strided "
        "as_strided_copy as_strided_scatter atleast_1d atleast_2d atleast_3d bfloat16 block_diag "
        "bool broadcast_tensors broadcast_to byte cartesian_prod cat cdouble cfloat chalf "
        "channel_shuffle char chunk clone column_stack combinations concat concatenate conj "
        "conj_physical constant_pad_nd contiguous copy cpu cuda detach detach_copy diag "
        "diag_embed diagflat diagonal diagonal_copy diagonal_scatter double dsplit dstack "
        "empty_like expand expand_as expand_copy fftshift fill fill_diagonal flatten flip fliplr "
        "flipud float full_like half hsplit hstack ifftshift imag int ipu long meshgrid moveaxis "
        "movedim mtia narrow narrow_copy native_channel_shuffle one_hot ones_like pad permute "
        "permute_copy pin_memory pixel_shuffle pixel_unshuffle ravel real repeat reshape "
        "reshape_as resize resize_as resolve_conj resolve_neg roll rot90 row_stack select "
        "select_copy select_scatter short slice_copy slice_inverse slice_scatter split split_copy "
        "split_with_sizes split_with_sizes_copy squeeze squeeze_copy stack swapaxes swapdims t "
        "t_copy tensor_split tile to transpose transpose_copy tril triu type type_as unbind "
        "unbind_copy unflatten unfold unfold_copy unsafe_chunk unsafe_split "
        "unsafe_split_with_sizes unsqueeze unsqueeze_copy view view_as view_as_complex "
        "view_as_complex_copy view_as_real view_as_real_copy view_copy vsplit vstack xpu zero "
        "zeros_like lu_unpack affine_grid affine_grid_generator _autocast_to_full_precision "
        "_autocast_to_reduced_precision arange as_tensor asarray empty empty_permuted "
        "empty_strided eye from_numpy frombuffer full linspace logspace ones scalar_tensor tensor "
        "tril_indices triu_indices zeros new_empty new_empty_strided new_full new_ones new_tensor "
        "new_zeros bartlett_window blackman_window hamming_window hann_window kaiser_window "
        "is_tensor is_storage result_type can_cast promote_types broadcast_shapes"
    ),
    "reads and writes by index": (
        "__getitem__ __setitem__ argwhere bucketize embedding gather index index_copy index_fill "
        "index_select masked_scatter masked_select max_unpool1d max_unpool2d max_unpool3d nonzero "
        "nonzero_static repeat_interleave scatter searchsorted take take_along_dim unravel_index "
        "isin"
    ),
    "comparisons and orders, which round nothing": (
        "adaptive_max_pool1d adaptive_max_pool1d_with_indices adaptive_max_pool2d "
        "adaptive_max_pool2d_with_indices adaptive_max_pool3d adaptive_max_pool3d_with_indices "
        "all allclose amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin "
        "equal fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d "
        "fractional_max_pool3d_with_indices hash_tensor histc kthvalue max max_pool1d "
        "max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d "
        "max_pool3d_with_indices median min mode msort nanmedian nanquantile quantile sort topk "
        "unique unique_consecutive __contains__"
    ),
    "windows of a few elements, each added in one order": (
        "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d fold grid_sample grid_sampler grid_sampler_2d grid_sampler_3d "
        "interpolate upsample upsample_bilinear upsample_nearest local_response_norm"
    ),
    "random numbers, which depend on the shape of the batch": (
        "bernoulli binomial cauchy dropout dropout1d dropout2d dropout3d exponential "
        "feature_alpha_dropout feature_dropout geometric log_normal multinomial native_dropout "
        "normal poisson rand rand_like randint randint_like randn randn_like random randperm "
        "uniform kaiming_uniform kaiming_normal xavier_uniform xavier_normal trunc_normal "
        "constant dirac orthogonal sparse"
    ),
    "attributes and the plumbing of tensors": (
        "__get__ __set__ __delete__ __array__ __array_wrap__ __bool__ __complex__ __deepcopy__ "
        "__dlpack__ __dlpack_device__ __float__ __format__ __hash__ __index__ __int__ __iter__ "
        "__len__ grad _make_dual _unpack_dual _record_function_enter_new _record_function_exit "
        "__long__ __nonzero__ __reduce_ex__ __repr__ __reversed__ __setstate__ __dir__ "
        "_clear_non_serializable_cached_data _coalesced _dimI _dimV _indices _is_view "
        "_nested_tensor_size _nested_tensor_storage_offsets _nested_tensor_strides _nnz _sym_sqrt "
        "_values apply backward ccol_indices ccol_indices_copy col_indices col_indices_copy "
        "const_data_ptr crow_indices crow_indices_copy data_ptr dense_dim dim dim_order "
        "element_size get_device indices indices_copy is_coalesced is_complex is_conj "
        "is_contiguous is_distributed is_floating_point is_inference is_neg is_nonzero is_pinned "
        "is_same_size is_set_to is_shared is_signed item module_load ndimension nelement numel "
        "numpy q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale "
        "q_zero_point qscheme record_stream register_hook register_post_accumulate_grad_hook "
        "requires_grad retain_grad row_indices row_indices_copy set share_memory size sparse_dim "
        "storage storage_offset storage_type stride sym_float sym_int sym_ite sym_max sym_min "
        "sym_not sym_sum tolist untyped_storage values values_copy align_as align_to refine_names "
        "rename names has_names _update_names as_subclass autocast choose_qparams_optimized "
        "set_default_device set_default_dtype get_default_dtype get_default_device set_data"
    ),
}

# These are kept in eval mode: batch_norm with statistics of its own.
IN_EVAL = "batch_norm"

# Sums in no fixed order on a GPU, and of index_put in parallel on a CPU, unless
# torch.use_deterministic_algorithms(True) was called. embedding, gather and index_select have such
# gradients.
ATOMIC = "index_add index_put index_reduce put scatter_add scatter_reduce bincount"

_ONE_BY_ONE = "call it for one sample at a time"
_BATCH = "its result is of the whole batch; call eval(), or normalize by layer_norm or group_norm"
_RNN = "its products are inside of it; write the cell with torch.nn.functional.linear"
_LINALG = "the library behind it picks an algorithm by the shape; call it for one matrix at a time"
_QUANTIZED = "its products are inside of it; multiply dequantized tensors"
_INTERNAL = "it is a kernel behind a public function; call that one"

# Functions that may compute other bits in another batch, by what to do.
NOT_COVERED = {
    _BATCH: (
        "batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt "
        "batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_stats "
        "batch_norm_update_stats miopen_batch_norm native_batch_norm quantized_batch_norm"
    ),
    _RNN: (
        "gru gru_cell lstm lstm_cell miopen_rnn quantized_gru_cell quantized_lstm_cell "
        "quantized_rnn_relu_cell quantized_rnn_tanh_cell rnn_relu rnn_relu_cell rnn_tanh "
        "rnn_tanh_cell"
    ),
    "write it as unfold or zeros between the pixels, and conv1d, conv2d or conv3d": (
        "conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution "
        "miopen_convolution miopen_convolution_add_relu miopen_convolution_relu "
        "miopen_convolution_transpose miopen_depthwise_convolution"
    ),
    "write it with @": ("chain_matmul corrcoef cov matrix_exp matrix_power multi_dot"),
    "write the distances with linalg.vector_norm of differences, or with @": ("cdist dist pdist"),
    "add logarithms by sum or cumsum and take exp": "cumprod prod logcumsumexp",
    "write it with sum or cumsum": "cumulative_trapezoid trapezoid trapz renorm",
    "write it with linalg.vector_norm": (
        "frobenius_norm matrix_norm native_norm norm_except_dim nuclear_norm lp_pool1d lp_pool2d "
        "lp_pool3d"
    ),
    "call torch.nn.functional.layer_norm, group_norm or instance_norm": (
        "native_group_norm native_layer_norm"
    ),
    "call torch.nn.functional.embedding, and sum": "embedding_bag",
    "write it with sums of each element's loss": (
        "cosine_embedding_loss ctc_loss multi_margin_loss multilabel_margin_loss"
    ),
    "call torch.nn.functional.triplet_margin_with_distance_loss": "triplet_margin_loss",
    "call torch.nn.functional.linear and cross_entropy": "linear_cross_entropy",
    _LINALG: (
        "cholesky cholesky_ex cholesky_inverse cholesky_solve cond det eig eigh eigvals eigvalsh "
        "geqrf householder_product inv inv_ex inverse ldl_factor ldl_factor_ex ldl_solve lobpcg "
        "logdet lstsq lu lu_factor lu_factor_ex lu_solve matrix_rank orgqr ormqr pca_lowrank pinv "
        "pinverse qr slogdet solve solve_ex solve_triangular svd svd_lowrank svdvals tensorinv "
        "tensorsolve triangular_solve"
    ),
    _ONE_BY_ONE: (
        "fft fft2 fftn hfft hfft2 hfftn ifft ifft2 ifftn ihfft ihfft2 ihfftn irfft irfft2 irfftn "
        "rfft rfft2 rfftn istft stft histogram histogramdd"
    ),
    "pass a dense tensor": (
        "_sparse_mask_projection _to_dense coalesce dsmm hsmm hspmm resize_as_sparse saddmm smm "
        "sparse_mask sparse_resize sparse_resize_and_clear spmm sspaddmm to_dense to_mkldnn "
        "to_sparse"
    ),
    _QUANTIZED: (
        "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation "
        "fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation "
        "fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16 fbgemm_pack_quantized_matrix "
        "fused_moving_avg_obs_fake_quant quantized_max_pool1d quantized_max_pool2d "
        "quantized_max_pool3d scaled_mm scaled_grouped_mm"
    ),
}


def _by_name(groups: dict[str, str]) -> dict[str, str]:
    return {name: key for key, names in groups.items() for name in names.split()}


_KEPT, _NOT_COVERED = _by_name(KEPT), _by_name(NOT_COVERED)


def row_of(name: str) -> str:
    """Returns the name in this table of a function of PyTorch with this name."""
    if name.startswith("__"):
        return name
    for prefix in ("special_", "linalg_", "fft_"):
        name = name.removeprefix(prefix)
    return name.rstrip("_")


def is_kept(name: str) -> bool:
    """Returns whether PyTorch computes it in the statement too. Lists are of parameters."""
    return name in _KEPT or name.startswith(("_foreach_", "_fused_", "_amp_"))


def advice(name: str) -> str | None:
    """Returns what to do in place of a function that is not covered, or None if it is not here."""
    return _NOT_COVERED.get(name)
