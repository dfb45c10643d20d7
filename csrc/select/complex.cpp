#include "select/complex.h"

#include <optional>
#include <vector>

#include "cpu/complex.h"
#include "select/ladder.h"

#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/complex/passes.h"
#endif

namespace tiled {

void run_pack(const Pack& pack, const Context& context) {
  if (context.on_host()) return cpu::run_pack(pack, context);
#ifdef TORCH_TILED_WITH_CUDA
  cuda::launch_pack(pack, context);
#endif
}

void run_combine(const Combine& combine, const Context& context) {
  if (context.on_host()) return cpu::run_combine(combine, context);
#ifdef TORCH_TILED_WITH_CUDA
  cuda::launch_combine(combine, context);
#endif
}

void check_algorithm(std::string_view algorithm, const ComplexProblem& z, const Context& context) {
  choices(algorithm, as_real(z).problem, context, /*complex=*/true);
}

bool launch_complex(std::string_view algorithm, const ComplexProblem& z, const Context& context) {
  RealProblem real = as_real(z);
  Problem& p = real.problem;
  const std::vector<Choice> best = choices(algorithm, p, context, /*complex=*/true);
  // Memory for a pass; null only where there is none.
  const auto allocate = [&](int64_t bytes, auto& data) {
    data = bytes > 0 ? context.allocate(bytes) : nullptr;
    return bytes == 0 || data != nullptr;
  };
  if (real.pack_a && !allocate(real.a_bytes, real.pack_a->to)) return false;
  if (real.pack_b && !allocate(real.b_bytes, real.pack_b->to)) return false;
  if (real.combine && !allocate(real.sum_bytes, p.c.data)) return false;
  if (real.pack_a) {
    run_pack(*real.pack_a, context);
    p.a.data = real.pack_a->to;
  }
  if (real.pack_b) {
    run_pack(*real.pack_b, context);
    p.b.data = real.pack_b->to;
  }
  if (!launch(best, p, context)) return false;
  if (real.combine) {
    real.combine->problem.a.data = p.c.data;
    run_combine(*real.combine, context);
  }
  return true;
}

}  // namespace tiled
