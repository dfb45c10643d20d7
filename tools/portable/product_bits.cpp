// Prints the bits of products by every kernel of the host: a line for each product, with a digest
// of C. It is compiled for two architectures from one source, and the lines are compared.
//
//   product_bits               the products
//   product_bits .../_C.so     the same, after the library was loaded: its relocations, its symbol
//                              versions, and the constructors that register operators and kernels
//
// All NaNs have one digest, since the bits of NaN are not promised. For the same reason the only
// activation is ReLU: others call functions of libm.

#include <dlfcn.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <set>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "core/element.h"
#include "select/ladder.h"
#include "select/presplit.h"

namespace tiled {
namespace {

enum class Values { kUniform, kWide, kSubnormal, kNonFinite };
constexpr Values kValues[] = {Values::kUniform, Values::kWide, Values::kSubnormal,
                              Values::kNonFinite};
const char* const kValueNames[] = {"uniform", "wide", "subnormal", "non-finite"};
const char* const kDTypeNames[] = {"float32", "float64", "float16", "bfloat16"};

// Empty sizes, primes, and sizes at the edges of tiles (16, 32, 64), of chunks (1024, 8192), of
// tensor-core sums (16) and of the least K of fp16x3 (128) and tf32 (64).
struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {
    {0, 3, 5},     {4, 3, 0},    {1, 1, 1},     {3, 2, 15},   {16, 16, 16},   {17, 13, 63},
    {65, 64, 64},  {31, 33, 65}, {33, 32, 127}, {7, 47, 128}, {64, 65, 129},  {1, 19, 1023},
    {13, 3, 1024}, {2, 5, 1025}, {5, 1, 2053},  {3, 3, 8191}, {2, 33, 16411},
};

constexpr int64_t kBatch = 2;
constexpr int kGap = 3;  // elements between rows that are not of the matrix

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Returns element `index` of an operand of that element type. Only exact functions are used.
template <typename T>
T element(Values values, uint64_t seed, int64_t index, int64_t k) {
  using Acc = accumulator_t<T>;
  const uint64_t random = mix(mix(seed) + static_cast<uint64_t>(index));
  const double uniform = static_cast<double>(static_cast<int32_t>(random)) * 0x1p-31;
  const auto range = static_cast<int>(random >> 32 & 0xffff);
  constexpr bool kIsHalf = std::is_same_v<T, Half>;
  constexpr bool kIsDouble = std::is_same_v<T, double>;
  switch (values) {
    case Values::kUniform: break;
    case Values::kWide: {
      constexpr int kSpan = kIsHalf ? 10 : kIsDouble ? 200 : 30;
      return narrow<T>(static_cast<Acc>(std::ldexp(uniform, range % (2 * kSpan) - kSpan)));
    }
    case Values::kSubnormal: {  // a few of A's are subnormal, and so are most products
      constexpr int kLeast = kIsHalf ? -18 : kIsDouble ? -1060 : -140;
      const int exponent = seed % 2 == 0 ? range % 12 + kLeast : -range % 8;
      return narrow<T>(static_cast<Acc>(std::ldexp(uniform, exponent)));
    }
    case Values::kNonFinite: {
      if (mix(random) % static_cast<uint64_t>(4 * k + 8) != 0) break;
      constexpr Acc kInfinity = std::numeric_limits<Acc>::infinity();
      const Acc special[] = {kInfinity, -kInfinity, std::numeric_limits<Acc>::quiet_NaN(),
                             Acc(-0.0), std::numeric_limits<Acc>::max()};
      return narrow<T>(special[range % std::size(special)]);
    }
  }
  return narrow<T>(static_cast<Acc>(uniform));
}

template <typename T>
struct Operand {
  std::vector<T> data;
  Matrix matrix;

  // A batch of (rows, cols), or of their transposes as they are stored, or one for all of the
  // batch.
  Operand(Values values, uint64_t seed, int64_t rows, int64_t cols, int64_t k, bool transposed,
          bool shared) {
    const int64_t pitch = (transposed ? rows : cols) + kGap;
    const int64_t count = pitch * (transposed ? cols : rows) + kGap;
    data.resize(static_cast<size_t>(count * (shared ? 1 : kBatch)));
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = element<T>(values, seed, static_cast<int64_t>(i), k);
    }
    matrix.data = data.data();
    matrix.row_stride = transposed ? 1 : pitch;
    matrix.col_stride = transposed ? pitch : 1;
    matrix.batch_stride[0] = shared ? 0 : count;
  }
};

struct Digest {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, by 64 bits
  int64_t nan = 0, infinite = 0;

  void add(uint64_t bits) { hash = (hash ^ bits) * 0x100000001b3u; }
  template <typename T>
  void add_number(T x) {
    const auto value = widen(x);
    nan += std::isnan(value);
    infinite += std::isinf(value);
    add(std::isnan(value) ? ~uint64_t{0} : std::bit_cast<uint64_t>(static_cast<double>(value)));
  }
};

void run_in_order(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  if (count > 0) body(0, count);
}

template <typename T, typename Out>
void print_product(Problem p, const Context& context, const std::vector<Choice>& choices,
                   const char* description) {
  std::vector<Out> c(static_cast<size_t>(kBatch * p.m * (p.n + kGap)));
  for (size_t i = 0; i < c.size(); ++i) {
    c[i] = element<Out>(Values::kUniform, 7, static_cast<int64_t>(i), p.k);
  }
  p.c = {.data = c.data(), .row_stride = p.n + kGap, .col_stride = 1};
  p.c.batch_stride[0] = p.m * (p.n + kGap);
  *context.recomputed = 0;
  if (!launch(choices, p, context)) throw std::runtime_error("a kernel computed nothing");
  Digest digest;
  for (const Out x : c) digest.add_number(x);
  std::printf("%s %s %s %lldx%lldx%lld: %016llx, %lld NaN, %lld Inf, %lld recomputed\n",
              choices.front().kernel->name.data(), kDTypeNames[static_cast<int>(p.dtype)],
              description, static_cast<long long>(p.m), static_cast<long long>(p.n),
              static_cast<long long>(p.k), static_cast<unsigned long long>(digest.hash),
              static_cast<long long>(digest.nan), static_cast<long long>(digest.infinite),
              static_cast<long long>(*context.recomputed));
}

// Splits B beforehand where that kernel can use it, and prints the product.
void print_presplit_product(Problem p, const Context& context, const std::vector<Choice>& choices) {
  Presplit presplit{.rows = p.n, .k = p.k};
  std::vector<uint8_t> hi_lo(static_cast<size_t>(presplit.matrix_bytes()));
  std::vector<float> inverse_scales(static_cast<size_t>(presplit.matrix_groups()));
  presplit.hi_lo = hi_lo.data();
  presplit.inverse_scales = inverse_scales.data();
  write_presplit(transposed(p.b), presplit, context);
  Digest digest;
  for (const uint8_t byte : hi_lo) digest.add(byte);
  for (const float scale : inverse_scales) digest.add_number(scale);
  std::printf("B split beforehand: %016llx\n", static_cast<unsigned long long>(digest.hash));
  p.b_presplit = presplit;
  print_product<float, float>(p, context, choices, "split beforehand");
}

// Every kernel's product of one shape, dtype and kind of values. `seed` chooses the layout and the
// epilogue, too.
template <typename T>
void print_products(Problem p, Values values, uint64_t seed) {
  int64_t recomputed = 0;
  const Context context{.parallel_for = run_in_order, .recomputed = &recomputed};
  const uint64_t random = mix(seed);
  const bool b_shared = (random & 4) != 0;
  const Operand<T> a(values, 2 * seed, p.m, p.k, p.k, (random & 1) != 0, false);
  const Operand<T> b(values, 2 * seed + 1, p.k, p.n, p.k, (random & 2) != 0, b_shared);
  const Operand<T> bias(Values::kUniform, 5, 1, p.n, p.k, false, true);
  p.a = a.matrix;
  p.b = b.matrix;
  p.batch = {.rank = 1, .count = kBatch, .size = {kBatch}};
  if (random >> 3 & 1) {
    p.epilogue = {.alpha = 0.7, .beta = -0.3, .bias = bias.data.data(), .bias_stride = 1};
  }
  if (random >> 4 & 1) p.epilogue.activation = Activation::kRelu;

  std::set<std::pair<Launch, Order>> printed;  // kernels that share a twin have the same bits
  for (const std::string& algorithm : algorithms()) {
    for (const Precision precision : {Precision::kIeee, Precision::kFp32, Precision::kTf32}) {
      p.precision = precision;
      std::vector<Choice> chosen;
      try {
        chosen = choices(algorithm, p, context);
      } catch (const std::runtime_error&) {
        continue;  // the kernel takes other dtypes or precisions
      }
      const Kernel& kernel = *chosen.front().kernel;
      if (!printed.insert({kernel.cpu, kernel.order}).second) continue;
      const char* description = kValueNames[static_cast<int>(values)];
      p.out_dtype = p.dtype;
      print_product<T, T>(p, context, chosen, description);
      if constexpr (sizeof(T) == 2) {
        p.out_dtype = DType::kFloat32;
        print_product<T, float>(p, context, chosen, "with float32 C,");
      }
      if constexpr (std::is_same_v<T, float>) {
        const bool splits = kernel.order == Order::kFp16x3 && b_shared;
        if (splits) print_presplit_product(p, context, chosen);
      }
    }
  }
}

void print_all() {
  uint64_t seed = 0;
  for (const Shape& shape : kShapes) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      for (const Values values : kValues) {
        const Problem p{.op = "product_bits",
                        .dtype = dtype,
                        .m = shape.m,
                        .n = shape.n,
                        .k = shape.k,
                        .batch = {},
                        .a = {},
                        .b = {},
                        .c = {},
                        .b_presplit = {},
                        .epilogue = {}};
        with_element_type(dtype, [&]<typename T>() { print_products<T>(p, values, seed); });
        ++seed;
      }
    }
  }
}

}  // namespace
}  // namespace tiled

int main(int count, char** arguments) {
  if (count > 1 && dlopen(arguments[1], RTLD_NOW) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  tiled::print_all();
}
