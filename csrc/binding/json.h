#pragma once
// Writes JSON, in which operators answer with fields. Texts are names, which need no escapes.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tiled {

inline std::string json(std::string_view text) { return '"' + std::string(text) + '"'; }
inline std::string json(int64_t value) { return std::to_string(value); }
inline std::string json_bool(bool value) { return value ? "true" : "false"; }
inline std::string json_number(double value) {  // read back, it is the same number
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return value == 0 && std::signbit(value) ? "-0.0" : text;  // "-0" would be read as an integer
}

inline std::string json_list(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + value;
  return '[' + text + ']';
}

// Names, and values that are JSON.
using Fields = std::vector<std::pair<std::string_view, std::string>>;
inline std::string json(const Fields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) {
    text += (text.empty() ? "" : ", ") + json(name) + ": " + value;
  }
  return '{' + text + '}';
}

}  // namespace tiled
