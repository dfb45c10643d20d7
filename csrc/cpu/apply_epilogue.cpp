#include "cpu/apply_epilogue.h"

#include "core/element.h"
#include "core/epilogue.h"
#include "cpu/parallel.h"

namespace tiled::cpu {

void apply_epilogue(const Problem& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() {
    parallel_for(context, p.batch.count * p.m, static_cast<double>(p.n),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t index = begin; index < end; ++index) {  // a row of C
                     const int64_t batch = index / p.m;
                     const int64_t row = index % p.m;
                     const auto* sums = static_cast<const accumulator_t<T>*>(p.a.data) +
                                        batch_offset(p.batch, p.a, batch) + row * p.a.row_stride;
                     const int64_t c_offset = batch_offset(p.batch, p.c, batch);
                     for (int64_t col = 0; col < p.n; ++col) {
                       store<T>(p, c_offset, row, col, sums[col * p.a.col_stride]);
                     }
                   }
                 });
  });
}

}  // namespace tiled::cpu
