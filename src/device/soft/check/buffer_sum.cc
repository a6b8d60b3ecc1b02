#include "src/device/soft/check/buffer_sum.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace verbena::soft::check {
namespace {

constexpr size_t kEndBytes = 4096;
constexpr size_t kSampleBytes = 1024;
constexpr size_t kSamples = 8;
static_assert(2 * kEndBytes + kSamples * kSampleBytes <= kWholeSumBytes);

struct Parts {
  std::array<iovec, kSamples + 2> list{};
  size_t count = 0;
  size_t size_bytes = 0;

  void add(uint64_t address, size_t part_bytes) {
    list[count++] = {reinterpret_cast<void*>(address), part_bytes};
    size_bytes += part_bytes;
  }
};

Parts parts_of(uint64_t address, size_t size_bytes) {
  Parts parts;
  if (size_bytes <= kWholeSumBytes) {
    parts.add(address, size_bytes);
    return parts;
  }
  parts.add(address, kEndBytes);
  const size_t stride = (size_bytes - 2 * kEndBytes) / kSamples;
  for (size_t i = 0; i < kSamples; ++i) parts.add(address + kEndBytes + i * stride, kSampleBytes);
  parts.add(address + size_bytes - kEndBytes, kEndBytes);
  return parts;
}

// Four sums side by side, as the multiplications of one would wait for each other.
uint64_t sum_bytes(const unsigned char* bytes, size_t size_bytes) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;
  std::array<uint64_t, 4> sums = {1, 2, 3, size_bytes};
  const auto mix = [](uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * kPrime;
    return sum ^ (sum >> 32);
  };
  size_t at = 0;
  for (; at + 32 <= size_bytes; at += 32) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), bytes + at, sizeof(words));
    for (size_t i = 0; i < words.size(); ++i) sums[i] = mix(sums[i], words[i]);
  }
  for (; at < size_bytes; ++at) sums[0] = mix(sums[0], bytes[at]);
  return mix(mix(mix(sums[0], sums[1]), sums[2]), sums[3]);
}

}  // namespace

std::optional<uint64_t> sum_buffer(uint64_t address, size_t size_bytes) {
  if (size_bytes == 0) return 0;
  const Parts parts = parts_of(address, size_bytes);
  // Neither on a stack, which may be small, nor per thread: a library that is loaded late has
  // little room for that.
  const std::unique_ptr<unsigned char[]> copy(new unsigned char[parts.size_bytes]);
  const int before = errno;
  const iovec local{copy.get(), parts.size_bytes};
  // By way of the kernel: the program may have unmapped it.
  const ssize_t got = process_vm_readv(getpid(), &local, 1, parts.list.data(), parts.count, 0);
  errno = before;
  // In a sandbox that forbids it, nothing is compared.
  if (got != static_cast<ssize_t>(parts.size_bytes)) return std::nullopt;
  return sum_bytes(copy.get(), parts.size_bytes);
}

}  // namespace verbena::soft::check
