#pragma once
// Solves a complex problem by the kernel of a real one, and the passes before and after it.

#include <string_view>

#include "core/complex.h"
#include "core/context.h"

namespace tiled {

// Throws the sentence of choices() (ladder.h) where `algorithm` takes no such operands.
void check_algorithm(std::string_view algorithm, const ComplexProblem& z, const Context& context);

// Returns false, with C untouched, where there is no memory for a workspace.
bool launch_complex(std::string_view algorithm, const ComplexProblem& z, const Context& context);

// Writes what prepared_pack() describes.
void run_pack(const Pack& pack, const Context& context);

// Computes an epilogue alone.
void run_combine(const Combine& combine, const Context& context);

}  // namespace tiled
