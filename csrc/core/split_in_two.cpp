#include "core/split_in_two.h"

#include <type_traits>

namespace tiled {

std::optional<std::pair<Problem, Problem>> split_in_two(const Problem& p, bool along_m,
                                                        int64_t least, int64_t element_bytes) {
  std::pair parts{p, p};
  auto& [first, second] = parts;
  const auto advance = [element_bytes](auto& data, int64_t elements) {
    using Void = std::remove_pointer_t<std::remove_reference_t<decltype(data)>>;
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    data = static_cast<Byte*>(data) + elements * element_bytes;
  };
  for (int d = 0; d < p.batch.rank; ++d) {
    const int64_t size = p.batch.size[d];
    if (size == 1) continue;
    const int64_t front = ceil_div(size, 2);
    first.batch.size[d] = front, second.batch.size[d] = size - front;
    first.batch.count = p.batch.count / size * front;
    second.batch.count = p.batch.count / size * (size - front);
    advance(second.a.data, front * p.a.batch_stride[d]);
    advance(second.b.data, front * p.b.batch_stride[d]);
    advance(second.c.data, front * p.c.batch_stride[d]);
    return parts;
  }
  const int64_t size = along_m ? p.m : p.n;
  if (size <= least) return std::nullopt;
  const int64_t front = ceil_div(size, 2 * least) * least;
  (along_m ? first.m : first.n) = front;
  (along_m ? second.m : second.n) = size - front;
  if (along_m) {
    advance(second.a.data, front * p.a.row_stride);
    advance(second.c.data, front * p.c.row_stride);
  } else {
    advance(second.b.data, front * p.b.col_stride);
    advance(second.c.data, front * p.c.col_stride);
    if (p.epilogue.bias != nullptr) {
      advance(second.epilogue.bias, front * p.epilogue.bias_stride);
    }
  }
  return parts;
}

}  // namespace tiled
