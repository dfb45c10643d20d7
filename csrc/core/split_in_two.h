#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "core/problem.h"

namespace tiled {

// Splits a problem in two along its batch, or else its rows or its columns; the first part is not
// the smaller one, and has a multiple of `least` rows or columns. Nothing if there are no more
// than that. Elements have `element_bytes`.
std::optional<std::pair<Problem, Problem>> split_in_two(const Problem& p, bool along_m,
                                                        int64_t least, int64_t element_bytes);

}  // namespace tiled
