#pragma once
// Solves a complex problem by the kernel of a real one, and the passes before and after it.

#include <string_view>
#include <vector>

#include "core/complex.h"
#include "core/context.h"
#include "select/ladder.h"

namespace tiled {

// How a complex problem would be solved.
struct ComplexPlan {
  RealProblem real;
  std::vector<Choice> choices;    // of the real problem
  bool reads_b_in_place = false;  // by the first choice, without a pass over B
  bool reads_a_in_place = false;  // and without one over A, if A's rows are not contiguous
};

// Throws the sentence of choices() (ladder.h) if `algorithm` takes no such operands.
ComplexPlan plan_complex(std::string_view algorithm, const ComplexProblem& z,
                         const Context& context);

// Returns false, with C untouched, if there is no memory for a workspace.
bool launch_complex(const ComplexPlan& plan, const ComplexProblem& z, const Context& context);

// Writes what prepared_pack() describes.
void run_pack(const Pack& pack, const Context& context);

// Computes an epilogue alone.
void run_combine(const Combine& combine, const Context& context);

}  // namespace tiled
