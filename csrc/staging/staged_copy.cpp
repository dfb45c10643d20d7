#include "staging/staged_copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "staging/team.h"

namespace tiled {
namespace {

// Many short copies cost the driver's time. Long pieces would not stay in the cache of the core
// that fills them until the GPU reads them.
constexpr int64_t kSlotBytes = 1 << 20;

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Rows and columns that fit in a slot.
struct Piece {
  int64_t row, rows, col, cols;
};

// How a matrix is cut: into whole rows, or each row into several pieces.
class Cut {
 public:
  Cut(const MatrixCopy& copy, int64_t slot_bytes) : rows_(copy.rows), cols_(copy.cols) {
    rows_each_ = std::max<int64_t>(slot_bytes / (cols_ * copy.element), 1);
    cols_each_ = ceil_div(cols_, ceil_div(cols_, slot_bytes / copy.element));
    across_ = ceil_div(cols_, cols_each_);
  }
  int64_t count() const { return ceil_div(rows_, rows_each_) * across_; }
  Piece operator[](int64_t i) const {
    const int64_t row = i / across_ * rows_each_, col = i % across_ * cols_each_;
    return {row, std::min(rows_each_, rows_ - row), col, std::min(cols_each_, cols_ - col)};
  }

 private:
  int64_t rows_, cols_, rows_each_, cols_each_, across_;
};

// Copies to memory that nobody reads soon. Stores past the cache write whole lines, which a plain
// copy would read first.
void copy_past_cache(char* to, const char* from, int64_t bytes) {
#ifdef __SSE2__
  const auto misaligned = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) & 63);
  const int64_t head = std::min(misaligned, bytes), body = head + (bytes - head) / 64 * 64;
  std::memcpy(to, from, static_cast<size_t>(head));
  for (int64_t i = head; i < body; i += sizeof(__m128i)) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), value);
  }
  std::memcpy(to + body, from + body, static_cast<size_t>(bytes - body));
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

// Orders what was stored past the cache before what follows.
void end_stores() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

template <int kBytes>
void copy_elements(char* to, int64_t to_step, const char* from, int64_t from_step, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, kBytes);
}

// Copies elements with gaps between them on one side.
void copy_apart(char* to, int64_t to_step, const char* from, int64_t from_step, int64_t count,
                int64_t element) {
  switch (element) {
    case 1: return copy_elements<1>(to, to_step, from, from_step, count);
    case 2: return copy_elements<2>(to, to_step, from, from_step, count);
    case 4: return copy_elements<4>(to, to_step, from, from_step, count);
    case 8: return copy_elements<8>(to, to_step, from, from_step, count);
    default: return copy_elements<16>(to, to_step, from, from_step, count);
  }
}

// Copies a piece between the host's side and a slot, in which its rows follow one another.
void copy_piece(const MatrixCopy& copy, const Piece& piece, char* slot) {
  const CopySide& host = copy.host;
  const int64_t row_bytes = piece.cols * copy.element;
  const bool is_adjacent = host.step == copy.element;
  const bool is_range = is_adjacent && host.pitch == row_bytes;
  const int64_t parts = is_range ? 1 : piece.rows;
  const int64_t bytes = is_range ? row_bytes * piece.rows : row_bytes;
  for (int64_t i = 0; i < parts; ++i) {
    char* in_slot = slot + i * row_bytes;
    char* on_host = host.at(piece.row + i, piece.col);
    if (is_adjacent && copy.to_gpu) {
      std::memcpy(in_slot, on_host, static_cast<size_t>(bytes));
    } else if (is_adjacent) {
      copy_past_cache(on_host, in_slot, bytes);
    } else if (copy.to_gpu) {
      copy_apart(in_slot, copy.element, on_host, host.step, piece.cols, copy.element);
    } else {
      copy_apart(on_host, host.step, in_slot, copy.element, piece.cols, copy.element);
    }
  }
  end_stores();
}

// Copies pieces that no other thread has taken, through the slots of one thread in turn.
void copy_pieces(const MatrixCopy& copy, const Cut& cut, std::atomic<int64_t>& next, char* slots,
                 int64_t slot_bytes, SlotCopies& copies) {
  std::array<std::optional<Piece>, kSlots> under_way;  // from the GPU
  const auto finish = [&](int slot) {
    copies.wait(slot);
    auto& piece = under_way.at(static_cast<size_t>(slot));
    if (piece) copy_piece(copy, *piece, slots + slot * slot_bytes);
    piece.reset();
  };
  const int64_t count = cut.count();
  int slot = 0;
  for (int64_t i = next++; i < count; i = next++, slot = (slot + 1) % kSlots) {
    const Piece piece = cut[i];
    char* in_slot = slots + slot * slot_bytes;
    finish(slot);
    if (copy.to_gpu) {
      copy_piece(copy, piece, in_slot);
    } else {
      under_way.at(static_cast<size_t>(slot)) = piece;
    }
    copies.copy(slot, in_slot, copy.gpu.at(piece.row, piece.col), copy.gpu.pitch,
                piece.cols * copy.element, piece.rows);
  }
  if (copy.to_gpu) return;
  for (int i = 0; i < kSlots; ++i) finish((slot + i) % kSlots);
}

class HostSlotCopies : public SlotCopies {
 public:
  explicit HostSlotCopies(bool to_gpu) : to_gpu_(to_gpu) {}
  void copy(int /*slot*/, char* in_slot, char* on_gpu, int64_t gpu_pitch, int64_t row_bytes,
            int64_t rows) override {
    for (int64_t i = 0; i < rows; ++i) {
      char *packed = in_slot + i * row_bytes, *row = on_gpu + i * gpu_pitch;
      std::memcpy(to_gpu_ ? row : packed, to_gpu_ ? packed : row, static_cast<size_t>(row_bytes));
    }
  }
  void wait(int /*slot*/) override {}

 private:
  bool to_gpu_;
};

}  // namespace

std::unique_ptr<SlotCopies> host_slot_copies(bool to_gpu) {
  return std::make_unique<HostSlotCopies>(to_gpu);
}

void copy_staged(const MatrixCopy& copy, char* memory, int64_t bytes, int64_t threads,
                 const MakeSlotCopies& make_copies) {
  const int64_t slot_bytes = std::min(bytes / threads / kSlots / 64 * 64, kSlotBytes);
  const Cut cut(copy, slot_bytes);
  std::atomic<int64_t> next = 0;
  Team::of_thread().run(static_cast<int>(std::min(threads, cut.count())), [&](int member) {
    const auto copies = make_copies();
    copy_pieces(copy, cut, next, memory + member * kSlots * slot_bytes, slot_bytes, *copies);
  });
}

}  // namespace tiled
