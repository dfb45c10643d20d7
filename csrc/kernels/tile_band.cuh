#pragma once
// Which tile of C a block computes that goes from one to the next.

#include <cstdint>

#include "kernels/divisor.cuh"
#include "launch.h"
#include "problem.h"

namespace tiled::cuda {

struct Position {
  int64_t batch;
  int row, col;  // of the tile's first element
};

// Tiles in bands of so many rows, down a column of the band first: blocks that run together share
// what they read of A and of B in the cache. C is in memory: a matrix has less than 2^31 tiles.
struct Bands {
  Divisor matrix, band, last;  // by tiles of a matrix, of a band, of the last band's columns

  template <class Tile>
  static Bands of(const Problem& p) {
    const auto tiles_m = static_cast<uint32_t>(ceil_div(p.m, Tile::kM));
    const auto tiles_n = static_cast<uint32_t>(ceil_div(p.n, Tile::kN));
    const uint32_t left = tiles_m % Tile::kBand;
    return {Divisor::of(tiles_m * tiles_n), Divisor::of(Tile::kBand * tiles_n),
            Divisor::of(left == 0 ? Tile::kBand : left)};
  }
};

template <class Tile>
__device__ Position locate(const Bands& bands, int64_t index) {
  const int64_t batch = bands.matrix.divide(index);
  const auto in_matrix = static_cast<uint32_t>(index - batch * bands.matrix.by);
  const uint32_t band = bands.band.divide(in_matrix), in_band = in_matrix - band * bands.band.by;
  const bool is_last = (band + 1) * bands.band.by > bands.matrix.by;
  const uint32_t height = is_last ? bands.last.by : Tile::kBand;
  const uint32_t col = is_last ? bands.last.divide(in_band) : in_band / Tile::kBand;
  const uint32_t row = band * Tile::kBand + in_band - col * height;
  return {batch, static_cast<int>(row * Tile::kM), static_cast<int>(col * Tile::kN)};
}

}  // namespace tiled::cuda
