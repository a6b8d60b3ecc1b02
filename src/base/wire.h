// Control messages as bytes: little-endian, every length checked against what is really there.
//
//   WireWriter writer;
//   writer.u32(queue_pair_number);
//   writer.string(device_name);
//   connection.send(writer.bytes());
//
//   WireReader reader(frame);
//   const uint32_t number = reader.u32();
//   const std::string name = reader.string(64);
//   VERBENA_RETURN_IF_ERROR(reader.finish("device message"));
//
// A reader that runs out of bytes yields zeros and remembers; finish() then says so. So a decoder
// checks once, at its end, and must not act on what it read before that.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbena/status.h"

namespace verbena {

template <std::unsigned_integral T>
void store_little_endian(std::byte* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

template <std::unsigned_integral T>
T load_little_endian(const std::byte* from) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= std::to_integer<uint64_t>(from[i]) << (8 * i);
  }
  return static_cast<T>(value);
}

class WireWriter {
 public:
  void u8(uint8_t value) { put(value); }
  void u16(uint16_t value) { put(value); }
  void u32(uint32_t value) { put(value); }
  void u64(uint64_t value) { put(value); }
  void raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  // A 32-bit length, then the characters.
  void string(std::string_view text) {
    u32(static_cast<uint32_t>(text.size()));
    raw(std::as_bytes(std::span(text)));
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  template <std::unsigned_integral T>
  void put(T value) {
    bytes_.resize(bytes_.size() + sizeof(T));
    store_little_endian(bytes_.data() + bytes_.size() - sizeof(T), value);
  }

  std::vector<std::byte> bytes_;
};

// Reads from bytes that it does not own.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes), size_(bytes.size()) {}

  uint8_t u8() { return get<uint8_t>(); }
  uint16_t u16() { return get<uint16_t>(); }
  uint32_t u32() { return get<uint32_t>(); }
  uint64_t u64() { return get<uint64_t>(); }

  // The next `size_bytes` bytes, inside the bytes read from; empty if there are fewer.
  std::span<const std::byte> raw(size_t size_bytes) {
    if (failed_ || size_bytes > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::span<const std::byte> taken = rest_.first(size_bytes);
    rest_ = rest_.subspan(size_bytes);
    return taken;
  }

  // What WireWriter::string() wrote; a longer one than `max_bytes` is a failure.
  std::string string(size_t max_bytes) {
    const uint32_t size_bytes = u32();
    if (size_bytes > max_bytes) failed_ = true;
    const std::span<const std::byte> taken = raw(size_bytes);
    return std::string(reinterpret_cast<const char*>(taken.data()), taken.size());
  }

  bool failed() const { return failed_; }
  size_t rest_bytes() const { return rest_.size(); }

  // Ok if every read found its bytes and none are left over.
  Status finish(std::string_view what) const {
    if (failed_) {
      return Status(
          StatusCode::kProtocolViolation,
          fmt::format("the {} of {} bytes is cut short or has a length beyond its limit; run the "
                      "same release on both sides",
                      what, size_));
    }
    if (!rest_.empty()) {
      return Status(StatusCode::kProtocolViolation,
                    fmt::format("the {} of {} bytes has {} bytes too many; run the same release on "
                                "both sides",
                                what, size_, rest_.size()));
    }
    return Status::ok_status();
  }

 private:
  template <std::unsigned_integral T>
  T get() {
    const std::span<const std::byte> taken = raw(sizeof(T));
    return taken.empty() ? T{0} : load_little_endian<T>(taken.data());
  }

  std::span<const std::byte> rest_;
  size_t size_;
  bool failed_ = false;
};

}  // namespace verbena
