#include "binding/convolution.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <limits>
#include <span>

#include "binding/json.h"
#include "binding/run.h"
#include "binding/stream.h"
#include "core/convolution.h"
#include "core/error.h"
#include "cpu/convolution.h"
#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/conv/launch.h"
#endif

namespace tiled {
namespace {

constexpr const char* kOp = "tiled::_conv";
constexpr const char* kTransposedOp = "tiled::_conv_transposed";
constexpr const char* kFilterOp = "tiled::_conv_filter_gradient";

// --- checks, which torch_tiled/_op/conv_checks.py makes for tensors without data -----------------

// The sizes of a convolution, as PyTorch counts them.
struct Sizes {
  Shape x, weight;  // (images, channels, ...), (filters, channels / groups, ...)
  Shape out;        // of the result
  int64_t groups;

  int64_t dims() const { return static_cast<int64_t>(x.size()) - 2; }
};

void check_list(const char* op, const char* name, const std::vector<int64_t>& values, int64_t dims,
                int64_t least) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool fits =
      static_cast<int64_t>(values.size()) == dims &&
      std::ranges::all_of(values, [&](int64_t each) { return each >= least && each <= kMost; });
  if (fits) return;
  fail(op, std::string(name) + " is " + to_string(values) + "; it must have " +
               std::to_string(dims) + " numbers, each at least " + std::to_string(least) +
               " and below 2**31");
}

// Checks the sizes, and finds the result's.
Sizes check_sizes(const char* op, const Shape& x, const Shape& weight,
                  const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                  const std::vector<int64_t>& dilation, int64_t groups) {
  const std::string given = "x is " + to_string(x) + " and weight is " + to_string(weight) + "; ";
  if (x.size() < 3 || x.size() > 5 || weight.size() != x.size()) {
    fail(op, given + "both must have 3 to 5 dimensions, as many as one another");
  }
  Sizes sizes{.x = x, .weight = weight, .out = {}, .groups = groups};
  const int64_t dims = sizes.dims();
  check_list(op, "stride", stride, dims, 1);
  check_list(op, "padding", padding, dims, 0);
  check_list(op, "dilation", dilation, dims, 1);
  if (groups < 1 || weight[0] % groups != 0 || x[1] != weight[1] * groups) {
    fail(op, given + "x must have " + std::to_string(groups) +
                 " times weight's channels, and weight's filters must be a multiple of that, "
                 "since groups is " +
                 std::to_string(groups));
  }
  sizes.out = {x[0], weight[0]};
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t extent = dilation[d] * (weight[d + 2] - 1) + 1;
    const int64_t padded = x[d + 2] + 2 * padding[d];
    if (weight[d + 2] < 1 || extent > padded) {
      fail(op, given + "a filter reaches over " + std::to_string(extent) +
                   " elements of dimension " + std::to_string(d + 2) + ", of which x has " +
                   std::to_string(padded) + " with its padding; pass a larger x, or more padding");
    }
    sizes.out.push_back((padded - extent) / stride[d] + 1);
  }
  return sizes;
}

// Checks the gradient of a result.
void check_grad(const char* op, const Tensor& grad, const Sizes& sizes) {
  if (std::ranges::equal(grad.sizes(), sizes.out)) return;
  fail(op, "grad is " + shape_of(grad) + "; it must be " + to_string(sizes.out) + ", since x is " +
               to_string(sizes.x) + " and weight is " + to_string(sizes.weight));
}

void check_float32(const char* op, Named x) {
  check_given(op, x);
  if (x.tensor.scalar_type() == ScalarType::Float) return;
  fail(op, std::string(x.name) + " is " + dtype_name(x.tensor.scalar_type()) +
               "; it must be torch.float32. torch.nn.functional computes other convolutions");
}

// --- from tensors to convolutions ----------------------------------------------------------------

// The sizes and the geometry of one group.
Convolution make_group(const Sizes& sizes, const std::vector<int64_t>& stride,
                       const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation) {
  Convolution conv;
  conv.images = sizes.x[0], conv.channels = sizes.weight[1];
  conv.filters = sizes.weight[0] / sizes.groups;
  for (int64_t d = 0; d < sizes.dims(); ++d) {
    const int64_t at = kSpatialDims - sizes.dims() + d;
    conv.in[at] = sizes.x[d + 2], conv.taps[at] = sizes.weight[d + 2];
    conv.out[at] = sizes.out[d + 2];
    conv.stride[at] = stride[d], conv.dilation[at] = dilation[d], conv.first[at] = -padding[d];
  }
  return conv;
}

// A tensor as images, from its channel `first` on; or as filters, from its filter on.
template <class T>
ImagesOf<T> images_of(T* data, const Tensor& x, int64_t dim, int64_t first) {
  const int64_t dims = x.dim() - 2;
  ImagesOf<T> images{.data = data + first * x.stride(dim),
                     .image = x.size(0) > 1 ? x.stride(0) : 0,
                     .channel = x.size(1) > 1 ? x.stride(1) : 0};
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t at = kSpatialDims - dims + d;
    images.spatial[at] = x.size(d + 2) > 1 ? x.stride(d + 2) : 0;
  }
  // A single channel follows no other one.
  if (x.size(1) == 1 && dim == 1) images.channel = 1;
  return images;
}

const float* floats_of(const Tensor& x) { return static_cast<const float*>(data_of(x)); }

// Returns whether a tensor is in channels_last, and not in the default format as well.
bool is_channels_last(const Tensor& x) {
  bool contiguous = true, last = true;
  int64_t next = 1, next_of_last = x.size(1);
  last = x.size(1) == 1 || x.stride(1) == 1;
  for (int64_t d = x.dim() - 1; d >= 0; next *= x.size(d--)) {
    contiguous &= x.size(d) == 1 || x.stride(d) == next;
  }
  for (int64_t d = x.dim() - 1; d >= 2; next_of_last *= x.size(d--)) {
    last &= x.size(d) == 1 || x.stride(d) == next_of_last;
  }
  return last && !contiguous && (x.size(0) == 1 || x.stride(0) == next_of_last);
}

Tensor allocate_images(const char* op, const Shape& shape, bool channels_last, const Tensor& like) {
  if (!channels_last) return allocate(op, shape, ScalarType::Float, like);
  Shape strides(shape.size());
  int64_t next = shape[1];
  strides[1] = 1;
  for (auto d = static_cast<int64_t>(shape.size()) - 1; d >= 2; next *= shape[d--]) {
    strides[d] = next;
  }
  strides[0] = next;
  return allocate(op, shape, ScalarType::Float, like, "result", &strides);
}

#ifdef TORCH_TILED_WITH_CUDA
void check_gpu_takes(const char* op, std::span<const Convolution> convs, const Launches& launches,
                     const Tensor& x) {
  if (!launches.context.on_hopper()) {
    fail(op, "x is on " + device_name(x) +
                 ", which is no Hopper GPU; torch.nn.functional computes its convolutions");
  }
  for (const Convolution& conv : convs) {
    if (fits_im2col(conv)) continue;
    fail(op, "x is " + shape_of(x) +
                 ", and TMA reads no such windows: strides are at most 8, and filters reach over "
                 "256 elements (3-D: 32) and up to half of that beyond an edge; "
                 "torch.nn.functional computes such convolutions");
  }
}
#endif

// Launches convolutions of the same images.
void launch([[maybe_unused]] const char* op, std::span<const Convolution> convs, Launches& launches,
            [[maybe_unused]] const Tensor& like) {
  if (launches.context.on_host()) {
    for (const Convolution& conv : convs) cpu::launch_conv_fp16x3(conv, launches.context);
    return;
  }
#ifdef TORCH_TILED_WITH_CUDA
  check_gpu_takes(op, convs, launches, like);
  if (!cuda::launch_conv_fp16x3(convs, launches.context)) launches.fail_for_memory();
  launches.free_workspaces();
#endif
}

void launch(const FilterGradient& gradient, Launches& launches, [[maybe_unused]] const Tensor& x) {
  if (launches.context.on_host()) {
    cpu::launch_filter_gradient(gradient, launches.context);
    return;
  }
#ifdef TORCH_TILED_WITH_CUDA
  check_gpu_takes(kFilterOp, {&gradient.conv, 1}, launches, x);
  if (!cuda::launch_filter_gradient(gradient, launches.context)) launches.fail_for_memory();
  launches.free_workspaces();
#endif
}

// Returns the distance at which all pixels follow one another, across rows as well, if there is
// one.
std::optional<int64_t> pixel_stride(const Tensor& x) {
  int64_t stride = 0, pixels = 1;
  for (int64_t d = x.dim() - 1; d >= 2; pixels *= x.size(d--)) {
    if (x.size(d) == 1) continue;
    if (pixels == 1) stride = x.stride(d);
    if (x.stride(d) != stride * pixels) return {};
  }
  return stride;
}

bool is_empty(const Convolution& conv) {
  return conv.windows() == 0 || conv.filters == 0 || conv.channels == 0;
}

}  // namespace

Tensor conv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
            const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
            const std::vector<int64_t>& dilation, int64_t groups, const std::string& activation) {
  const Activation parsed = parse_activation(kOp, activation);
  check_float32(kOp, {"x", x});
  check_float32(kOp, {"weight", weight});
  check_same_device(kOp, {"weight", weight}, {"x", x});
  const Shape x_shape(x.sizes().begin(), x.sizes().end());
  const Shape weight_shape(weight.sizes().begin(), weight.sizes().end());
  const Sizes sizes = check_sizes(kOp, x_shape, weight_shape, stride, padding, dilation, groups);
  if (bias) {
    check_float32(kOp, {"bias", *bias});
    check_same_device(kOp, {"bias", *bias}, {"x", x});
    if (bias->dim() != 1 || bias->size(0) != weight.size(0)) {
      fail(kOp, "bias is " + shape_of(*bias) + " and weight is " + shape_of(weight) +
                    "; bias must be (filters,)");
    }
  }
  Tensor y = allocate_images(kOp, sizes.out, is_channels_last(x) || is_channels_last(weight), x);
  Convolution group = make_group(sizes, stride, padding, dilation);
  if (group.windows() == 0 || group.filters == 0) return y;
  if (x.numel() == 0) {  // sums of nothing, or of padding alone
    torch::stable::zero_(y);
    if (bias) {
      Tensor row = allocate(kOp, {weight.size(0), 1}, ScalarType::Float, x);
      torch::stable::copy_(row, torch::stable::unsqueeze(*bias, 1));
      activate_(row, activation);
      for (int64_t d = 1; d < sizes.dims(); ++d) row = torch::stable::unsqueeze(row, 1);
      torch::stable::copy_(y, row);
    }
    return y;
  }
  group.activation = parsed;
  Launches launches(kOp, x);
  for (int64_t g = 0; g < groups; ++g) {
    Convolution conv = group;
    conv.x = images_of(floats_of(x), x, 1, g * group.channels);
    conv.w = images_of(floats_of(weight), weight, 0, g * group.filters);
    conv.y = images_of(static_cast<float*>(y.mutable_data_ptr()), y, 1, g * group.filters);
    if (bias) {
      conv.bias_stride = bias->stride(0);
      conv.bias = floats_of(*bias) + g * group.filters * conv.bias_stride;
    }
    launch(kOp, {&conv, 1}, launches, x);
  }
  return y;
}

Tensor conv_transposed(const Tensor& grad, const Tensor& weight, const std::vector<int64_t>& size,
                       const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                       const std::vector<int64_t>& dilation, int64_t groups) {
  check_float32(kTransposedOp, {"grad", grad});
  check_float32(kTransposedOp, {"weight", weight});
  check_same_device(kTransposedOp, {"weight", weight}, {"grad", grad});
  const Shape weight_shape(weight.sizes().begin(), weight.sizes().end());
  check_list(kTransposedOp, "size", size, weight.dim() - 2, 0);
  if (grad.dim() != weight.dim()) {
    fail(kTransposedOp, "grad is " + shape_of(grad) + " and weight is " + shape_of(weight) +
                            "; they must have as many dimensions");
  }
  Shape x_shape{grad.size(0), weight.size(1) * groups};
  for (const int64_t each : size) x_shape.push_back(each);
  const Sizes sizes =
      check_sizes(kTransposedOp, x_shape, weight_shape, stride, padding, dilation, groups);
  check_grad(kTransposedOp, grad, sizes);
  Tensor dx = allocate_images(kTransposedOp, x_shape,
                              is_channels_last(grad) || is_channels_last(weight), grad);
  Convolution group = make_group(sizes, stride, padding, dilation);
  int64_t all = 1;
  for (const int64_t each : stride) all *= each;
  Launches launches(kTransposedOp, grad);
  for (int64_t g = 0; g < groups; ++g) {
    Convolution conv = group;
    conv.w = images_of(floats_of(weight), weight, 0, g * group.filters);
    const auto dy = images_of(floats_of(grad), grad, 1, g * group.filters);
    const auto parts = transposed(
        conv, dy, images_of(static_cast<float*>(dx.mutable_data_ptr()), dx, 1, g * group.channels));
    const bool has_gaps = static_cast<int64_t>(parts.size()) < all || grad.numel() == 0;
    if (g == 0 && has_gaps) torch::stable::zero_(dx);
    if (!parts.empty() && !is_empty(parts.front())) launch(kTransposedOp, parts, launches, grad);
  }
  return dx;
}

Tensor conv_filter_gradient(const Tensor& x, const Tensor& grad, const std::vector<int64_t>& size,
                            const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                            const std::vector<int64_t>& dilation, int64_t groups) {
  check_float32(kFilterOp, {"x", x});
  check_float32(kFilterOp, {"grad", grad});
  check_same_device(kFilterOp, {"grad", grad}, {"x", x});
  check_list(kFilterOp, "size", size, x.dim() - 2, 0);
  if (grad.dim() != x.dim() || groups < 1) {
    fail(kFilterOp, "x is " + shape_of(x) + ", grad is " + shape_of(grad) + " and groups is " +
                        std::to_string(groups) +
                        "; they must have as many dimensions, and groups must be positive");
  }
  Shape weight_shape{grad.size(1), x.size(1) / groups};
  for (const int64_t each : size) weight_shape.push_back(each);
  const Sizes sizes = check_sizes(kFilterOp, Shape(x.sizes().begin(), x.sizes().end()),
                                  weight_shape, stride, padding, dilation, groups);
  check_grad(kFilterOp, grad, sizes);
  const bool channels_last = is_channels_last(x) || is_channels_last(grad);
  const Convolution group = make_group(sizes, stride, padding, dilation);
  // A warp's columns are channels: in the default format it stores one number in each sector, and
  // for many filters that takes longer than a copy.
  constexpr int64_t kManyWeights = int64_t{1} << 20;
  const bool copies = !channels_last && x.is_cuda() && group.all_taps() > 1 &&
                      sizes.weight[0] * sizes.weight[1] * group.all_taps() >= kManyWeights;
  Tensor dw = allocate_images(kFilterOp, weight_shape, channels_last || copies, x);
  if (is_empty(group)) {
    torch::stable::zero_(dw);
    return dw;
  }
  const Tensor dy = pixel_stride(grad) ? grad : torch::stable::contiguous(grad);
  Launches launches(kFilterOp, x);
  for (int64_t g = 0; g < groups; ++g) {
    FilterGradient gradient{.conv = group, .dy = {}, .dw = {}};
    gradient.conv.x = images_of(floats_of(x), x, 1, g * group.channels);
    gradient.dy = images_of(floats_of(dy), dy, 1, g * group.filters);
    // Pixels of one row or column as well.
    gradient.dy.spatial[kSpatialDims - 1] = *pixel_stride(dy);
    gradient.dw = images_of(static_cast<float*>(dw.mutable_data_ptr()), dw, 0, g * group.filters);
    launch(gradient, launches, x);
  }
  if (!copies) return dw;
  Tensor contiguous = allocate(kFilterOp, weight_shape, ScalarType::Float, x);
  torch::stable::copy_(contiguous, dw);
  return contiguous;
}

std::string explain_conv(const std::vector<int64_t>& x, const std::vector<int64_t>& weight,
                         const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                         const std::vector<int64_t>& dilation, int64_t groups,
                         const std::string& result, [[maybe_unused]] int64_t sms) {
  const Sizes sizes =
      check_sizes(kOp, Shape(x.begin(), x.end()), Shape(weight.begin(), weight.end()), stride,
                  padding, dilation, groups);
  const Convolution conv = make_group(sizes, stride, padding, dilation);
  const std::vector<Convolution> convs =
      result == "dx" ? transposed(conv, {}, {}) : std::vector<Convolution>{conv};
  const bool fits = std::ranges::all_of(convs, fits_im2col);
  int64_t bytes = 0;
#ifdef TORCH_TILED_WITH_CUDA
  if (fits && !is_empty(conv)) {
    bytes = result == "dw"
                ? cuda::filter_gradient_workspace({.conv = conv, .dy = {}, .dw = {}}, sms)
                : cuda::conv_fp16x3_workspace(convs, sms);
  }
#endif
  return json(Fields{{"fits", json_bool(fits)}, {"workspace_bytes", json(bytes)}});
}

}  // namespace tiled
