#include "src/device/soft/copy.h"

#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"

namespace verbena::soft {
namespace {

struct Way {
  const char* name;
  void (*copy)(std::byte*, const std::byte*, size_t);
};

std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

void last_byte_last(std::byte* to, const std::byte* from, size_t bytes) {
  copy_last_byte_last(to, from, bytes, false);
}
void streamed_last_byte_last(std::byte* to, const std::byte* from, size_t bytes) {
  copy_last_byte_last(to, from, bytes, true);
}

class CopyTest : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, CopyTest,
                         testing::Values(Way{"small", copy_small}, Way{"bytes", copy_bytes},
                                         Way{"streamed", stream_bytes},
                                         Way{"last_byte_last", last_byte_last},
                                         Way{"streamed_last_byte_last", streamed_last_byte_last}),
                         testing::PrintToStringParamName());

TEST_P(CopyTest, CopiesExactlyTheBytes) {
  constexpr size_t kRoom = 512;
  constexpr std::byte kGuard{0xa5};
  std::vector<std::byte> source(kRoom);
  for (size_t i = 0; i < kRoom; ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  for (size_t size = 0; size <= 300; ++size) {
    for (size_t offset = 0; offset < 66; ++offset) {
      std::vector<std::byte> target(kRoom, kGuard);
      GetParam().copy(target.data() + offset, source.data() + 3, size);
      for (size_t i = 0; i < kRoom; ++i) {
        const bool inside = i >= offset && i < offset + size;
        ASSERT_EQ(target[i], inside ? source[3 + i - offset] : kGuard)
            << "byte " << i << " of " << size << " at " << offset;
      }
    }
  }
}

// A thread that polls the last byte finds all others.
class LastByteTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Streams, LastByteTest, testing::Bool(), testing::PrintToStringParamName());

TEST_P(LastByteTest, LandsLastForAPollingThread) {
#if VERBENA_THREAD_SANITIZER
  GTEST_SKIP() << "the bytes before the last are no atomics, which is the point";
#endif
  constexpr size_t kRoom = 8192;
  alignas(64) static std::byte target[kRoom];
  static std::byte source[kRoom];
  std::atomic<uint64_t> turn{0};
  struct Message {
    size_t offset;
    size_t size;
    unsigned char mark;
  };
  // Each round hands the CPU over twice where there is but one free: as many as there is time for.
  constexpr uint64_t kRounds = 30'000;
  const uint64_t end_ns = now_ns() + 10'000'000'000;
  const auto message = [](uint64_t round) {
    Random random(run_seed() + round);
    const size_t size = 1 + (random.below(4) == 0 ? random.below(4096) : random.below(200));
    return Message{random.below(128), size, static_cast<unsigned char>(1 + round % 250)};
  };
  std::atomic<uint64_t> rounds{kRounds};
  Thread writer = start_thread("writer", [&] {
    for (uint64_t round = 0; round < rounds; ++round) {
      const Message next = message(round);
      memset(source, next.mark, next.size);
      Waiter waiter;
      while (turn.load(std::memory_order_acquire) != round) waiter.idle();
      if (round == rounds) return;
      copy_last_byte_last(target + next.offset, source, next.size, GetParam());
    }
  });
  uint64_t wrong = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    const Message next = message(round);
    const auto* bytes = reinterpret_cast<const unsigned char*>(target) + next.offset;
    Waiter waiter;
    while (load_acquire(bytes + next.size - 1) != next.mark) waiter.idle();
    for (size_t i = 0; i < next.size; ++i) wrong += bytes[i] != next.mark ? 1 : 0;
    memset(target, 0, kRoom);
    if (now_ns() > end_ns) rounds = round + 1;
    turn.store(round + 1, std::memory_order_release);
  }
  writer.join();
  EXPECT_EQ(wrong, 0u) << "VERBENA_SEED=" << run_seed();
}

}  // namespace
}  // namespace verbena::soft
