// Bytes in several pieces of the user's memory, gathered and scattered one behind the other.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "src/message/message_header.h"
#include "verbena/data_path.h"

namespace verbena::message {

// As copy_bytes(), without a call for a word.
inline void copy_payload(char* to, const char* from, uint64_t bytes) {
  if (bytes == sizeof(uint64_t)) {
    copy_bytes(to, from, sizeof(uint64_t));
  } else {
    copy_bytes(to, from, bytes);
  }
}

// Copies what the pieces have, one behind the other, to `to`; where that ends. Mostly there is one.
inline char* copy_pieces(char* to, std::span<const iovec> pieces) {
  if (pieces.size() == 1 && pieces[0].iov_len > 0) [[likely]] {
    copy_payload(to, static_cast<const char*>(pieces[0].iov_base), pieces[0].iov_len);
    return to + pieces[0].iov_len;
  }
  for (const iovec& piece : pieces) {
    if (piece.iov_len == 0) continue;
    copy_payload(to, static_cast<const char*>(piece.iov_base), piece.iov_len);
    to += piece.iov_len;
  }
  return to;
}

// Walks through pieces that stay where they are.
class PieceCursor {
 public:
  PieceCursor(const iovec* pieces, uint32_t count) : pieces_(pieces), count_(count) { settle(); }

  bool at_end() const { return piece_ == count_; }
  uint32_t piece() const { return piece_; }
  // What is left of the current piece.
  char* data() const { return static_cast<char*>(pieces_[piece_].iov_base) + offset_; }
  uint64_t rest() const { return pieces_[piece_].iov_len - offset_; }
  void advance(uint64_t bytes) {
    offset_ += bytes;
    settle();
  }

  // Copies so many bytes, which have to be there, to `to`.
  void get(char* to, uint64_t bytes) {
    while (bytes > 0) {
      const uint64_t step = std::min(bytes, rest());
      copy_bytes(to, data(), step);
      to += step;
      bytes -= step;
      advance(step);
    }
  }
  // Copies as much of `from` as there is room for.
  uint64_t put(const char* from, uint64_t bytes) {
    uint64_t done = 0;
    while (done < bytes && !at_end()) {
      const uint64_t step = std::min(bytes - done, rest());
      copy_bytes(data(), from + done, step);
      done += step;
      advance(step);
    }
    return done;
  }

 private:
  void settle() {
    while (piece_ < count_ && offset_ == pieces_[piece_].iov_len) {
      ++piece_;
      offset_ = 0;
    }
  }

  const iovec* pieces_;
  uint32_t count_;
  uint32_t piece_ = 0;
  uint64_t offset_ = 0;
};

// From the byte at `offset` of all pieces on, which has to be there.
inline PieceCursor cursor_at(const iovec* pieces, uint32_t count, uint64_t offset) {
  uint32_t first = 0;
  while (first < count && offset >= pieces[first].iov_len) offset -= pieces[first++].iov_len;
  PieceCursor cursor(pieces + first, count - first);
  if (offset > 0) cursor.advance(offset);
  return cursor;
}

// The most that can be counted where they have more: no sum is less than one of its pieces.
inline uint64_t total_bytes(std::span<const iovec> pieces) {
  uint64_t total = 0;
  for (const iovec& piece : pieces) {
    if (__builtin_add_overflow(total, piece.iov_len, &total)) [[unlikely]]
      return ~uint64_t{0};
  }
  return total;
}

}  // namespace verbena::message
