#pragma once
// Launching kernels: shared memory, grids, clusters, programmatic dependent launch.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <source_location>

#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"
#include "kernels/common/check.h"

#define UNROLL _Pragma("unroll")

namespace tiled {

// The coordinates of a tile. Tiles of C over the whole batch are numbered row by row, matrix by
// matrix.
struct TileIndex {
  int64_t batch, row, col;  // which matrix, and the first row and column of the tile
};

template <class Tile>
__device__ TileIndex tile_index(const Problem& p, int64_t tile) {
  const int64_t tiles_n = ceil_div(p.n, Tile::kN);
  const int64_t tiles_m = ceil_div(p.m, Tile::kM);
  return {.batch = tile / tiles_n / tiles_m,
          .row = tile / tiles_n % tiles_m * Tile::kM,
          .col = tile % tiles_n * Tile::kN};
}

// is_vector_aligned() of core/problem.h, for vectors of float32.
template <typename Vector, class Void>
bool is_vector_aligned(const Batch& batch, const MatrixOf<Void>& matrix, int64_t inner,
                       int64_t outer) {
  return is_vector_aligned(batch, matrix, inner, outer, sizeof(Vector) / sizeof(float));
}

// Raises a kernel's limit of dynamic shared memory. The limit is global to the process, so every
// launch of a kernel must pass the same one.
template <typename... Params>
void allow_shared_memory(void (*kernel)(Params...), size_t bytes,
                         std::source_location where = std::source_location::current()) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        where);
}

// The dynamic shared memory that a block needs, padded so that at most `blocks` fit on an SM of
// Hopper.
inline size_t shared_memory_for(size_t needed, int blocks) {
  constexpr size_t kReserved = 1 << 10;  // that the system takes for each block
  return std::max(needed, (kMaxSharedMemory + kReserved) / static_cast<size_t>(blocks) - kReserved);
}

// The number of clusters of `cluster` blocks that run at once on the current device.
template <typename... Params>
int max_active_clusters(void (*kernel)(Params...), unsigned cluster, int threads,
                        size_t smem_bytes) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = cluster;
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = smem_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  check(cudaOccupancyMaxActiveClusters(&count, kernel, &config));
  return count;
}

// Launches a kernel with programmatic dependent launch: on Hopper it may start before the previous
// kernel on the stream has finished, and must call ptx::pdl_wait() before it touches that one's
// results. Blocks along the grid's x form clusters of `cluster`.
template <typename... Params, typename... Args>
void launch_clusters_pdl(void (*kernel)(Params...), unsigned cluster, dim3 blocks, int threads,
                         size_t smem_bytes, const Context& context, const Args&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = smem_bytes;
  config.stream = static_cast<cudaStream_t>(context.stream);
  config.attrs = attributes;
  if (context.on_hopper()) config.numAttrs = cluster > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, Params(args)...));
}

// launch_clusters_pdl() without clusters.
template <typename... Params, typename... Args>
void launch_pdl(void (*kernel)(Params...), dim3 blocks, int threads, size_t smem_bytes,
                const Context& context, const Args&... args) {
  launch_clusters_pdl(kernel, 1, blocks, threads, smem_bytes, context, args...);
}

// Calls launch(first, blocks) for consecutive ranges of blocks that fit in a grid's x, and checks
// each launch.
template <typename F>
void for_grids(int64_t all, F&& launch,
               std::source_location where = std::source_location::current()) {
  constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
  for (int64_t first = 0; first < all; first += kMaxGrid) {
    launch(first, static_cast<unsigned>(std::min(all - first, kMaxGrid)));
    check(cudaGetLastError(), where);
  }
}

// Calls launch(batch, row, col, grid) for grids of tiles of C that begin there: columns of tiles
// along x, rows along y and matrices along z.
template <typename F>
void for_tile_grids(const Problem& p, int rows, int cols, F&& launch) {
  constexpr int64_t kMaxGrid = 65535;  // in y and z, and enough in x
  auto tiles = [&](int64_t left, int each) {
    return static_cast<unsigned>(std::min(ceil_div(left, each), kMaxGrid));
  };
  for (int64_t batch = 0; batch < p.batch.count; batch += kMaxGrid) {
    for (int64_t row = 0; row < p.m; row += kMaxGrid * rows) {
      for (int64_t col = 0; col < p.n; col += kMaxGrid * cols) {
        launch(
            batch, row, col,
            dim3(tiles(p.n - col, cols), tiles(p.m - row, rows), tiles(p.batch.count - batch, 1)));
      }
    }
  }
}

// Launches kernel(p, first_tile) with one block a tile, in as many grids as it takes.
template <class Tile>
void launch_tiles(void (*kernel)(Problem, int64_t), const Problem& p, const Context& context,
                  std::source_location where = std::source_location::current()) {
  for_grids(
      count_tiles(p, Tile::kM, Tile::kN),
      [&](int64_t first, unsigned blocks) {
        kernel<<<blocks, Tile::kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(p, first);
      },
      where);
}

}  // namespace tiled
