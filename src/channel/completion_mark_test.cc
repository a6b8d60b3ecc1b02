// The three mark layouts against a transport that tears: bytes of a message arrive in address
// order, a few at a time, on top of whatever earlier messages left in the slot.
#include "src/channel/completion_mark.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/channel/head_tail_mark.h"
#include "src/channel/last_bit_mark.h"
#include "src/channel/length_markers_mark.h"

namespace verbena::channel {
namespace {

// One slot on each side, and the WRITE between them.
template <CompletionMark Mark>
class SlotPair {
 public:
  explicit SlotPair(uint32_t capacity_bytes)
      : shape_(Mark::shape(capacity_bytes)),
        local_(allocate(shape_.slot_bytes)),
        remote_(allocate(shape_.slot_bytes)) {}
  ~SlotPair() {
    std::free(local_);
    std::free(remote_);
  }
  SlotPair(const SlotPair&) = delete;
  SlotPair& operator=(const SlotPair&) = delete;

  const SlotShape& shape() const { return shape_; }
  char* payload() { return local_ + Mark::kPayloadOffset; }
  char* remote() { return remote_; }
  Sealed seal(uint32_t bytes) { return Mark::seal(local_, shape_, bytes); }
  void deliver(const Sealed& sealed, uint32_t from, uint32_t to) {
    std::memcpy(remote_ + sealed.remote_offset + from, local_ + sealed.local_offset + from,
                to - from);
  }
  Probe probe() const { return Mark::probe(remote_, shape_); }
  void clear(uint32_t bytes) { Mark::clear(remote_, shape_, bytes); }

 private:
  static char* allocate(uint32_t bytes) {
    char* memory = static_cast<char*>(std::aligned_alloc(kCacheLineBytes, bytes));
    std::memset(memory, 0, bytes);
    return memory;
  }
  SlotShape shape_;
  char* local_;
  char* remote_;
};

// Bytes that look like marks as often as not.
void fill_nastily(char* bytes, uint32_t count, Random& random) {
  static constexpr unsigned char kNasty[] = {0x00, 0x5a, 0xc3, 0xa5, 0x80, 0xff, 0x01, 0x07};
  for (uint32_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<char>(random.below(2) == 0 ? kNasty[random.below(sizeof(kNasty))]
                                                      : random.below(256));
  }
}

template <typename Mark>
class CompletionMarkTest : public testing::Test {};
using Marks = testing::Types<LastBitMark, LengthMarkersMark, HeadTailMark>;
TYPED_TEST_SUITE(CompletionMarkTest, Marks);

TYPED_TEST(CompletionMarkTest, EmptySlotHoldsNoMessage) {
  SlotPair<TypeParam> slots(64);
  EXPECT_EQ(slots.probe().arrival, Arrival::kNone);
}

TYPED_TEST(CompletionMarkTest, SlotsKeepCacheLinesApart) {
  for (uint32_t capacity : {0u, 1u, 47u, 48u, 55u, 56u, 57u, 64u, 4096u, kWordBytes << 20}) {
    const SlotShape shape = TypeParam::shape(capacity);
    EXPECT_EQ(shape.slot_bytes % kCacheLineBytes, 0u);
    EXPECT_GE(shape.slot_bytes, capacity + 1);
    EXPECT_LE(shape.slot_bytes, capacity + 2 * kWordBytes + kCacheLineBytes);
  }
  EXPECT_EQ(TypeParam::shape(48).slot_bytes, kCacheLineBytes) << "a small message takes one line";
}

TYPED_TEST(CompletionMarkTest, EverySizeArrivesWholeWithTheMarkInAWordsLastByte) {
  constexpr uint32_t kCapacity = 200;
  SlotPair<TypeParam> slots(kCapacity);
  for (uint32_t bytes = 0; bytes <= kCapacity; ++bytes) {
    for (uint32_t i = 0; i < bytes; ++i) slots.payload()[i] = static_cast<char>(i * 7 + bytes);
    const Sealed sealed = slots.seal(bytes);
    EXPECT_EQ((sealed.remote_offset + sealed.bytes) % kWordBytes, 0u);
    ASSERT_LE(sealed.remote_offset + sealed.bytes, slots.shape().slot_bytes);
    ASSERT_LE(sealed.local_offset + sealed.bytes, slots.shape().slot_bytes);
    slots.deliver(sealed, 0, sealed.bytes - 1);
    ASSERT_EQ(slots.probe().arrival, Arrival::kNone) << "the last byte decides, size " << bytes;
    slots.deliver(sealed, sealed.bytes - 1, sealed.bytes);
    const Probe probe = slots.probe();
    ASSERT_EQ(probe.arrival, Arrival::kMessage);
    ASSERT_EQ(probe.bytes, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(probe.payload) % kWordBytes, 0u);
    ASSERT_EQ(std::memcmp(probe.payload, slots.payload(), bytes), 0);
    slots.clear(bytes);
    ASSERT_EQ(slots.probe().arrival, Arrival::kNone);
    if (TypeParam::kClearKeepsPayload) {
      EXPECT_EQ(std::memcmp(probe.payload, slots.payload(), bytes), 0);
    }
  }
}

// The property that everything rests on: whatever lay in the slot before, and in however small
// pieces a message arrives, it is seen when its last byte is there and not before.
TYPED_TEST(CompletionMarkTest, TornDeliveryNeverShowsAMessageEarly) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 60; ++round) {
    const auto capacity = static_cast<uint32_t>(random.below(round % 2 == 0 ? 24 : 400));
    SlotPair<TypeParam> slots(capacity);
    std::vector<char> expected;
    for (int message = 0; message < 200; ++message) {
      const auto bytes = static_cast<uint32_t>(random.below(capacity + 1));
      fill_nastily(slots.payload(), bytes, random);
      expected.assign(slots.payload(), slots.payload() + bytes);
      const Sealed sealed = slots.seal(bytes);
      uint32_t arrived = 0;
      while (arrived < sealed.bytes) {
        const Probe probe = slots.probe();
        ASSERT_EQ(probe.arrival, Arrival::kNone)
            << arrived << " of " << sealed.bytes << " bytes there, message " << message;
        const uint32_t left = sealed.bytes - arrived;
        const auto piece = static_cast<uint32_t>(
            1 + random.below(random.below(4) == 0 ? left : std::min(left, 3u)));
        slots.deliver(sealed, arrived, arrived + piece);
        arrived += piece;
      }
      const Probe probe = slots.probe();
      ASSERT_EQ(probe.arrival, Arrival::kMessage);
      ASSERT_EQ(probe.bytes, bytes);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), probe.payload));
      slots.clear(bytes);
    }
  }
}

// A slot whose bytes a hostile peer chose: any outcome but a payload outside the slot.
TYPED_TEST(CompletionMarkTest, HostileBytesNeverYieldAPayloadOutsideTheSlot) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  int messages = 0;
  int violations = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto capacity = static_cast<uint32_t>(random.below(300));
    SlotPair<TypeParam> slots(capacity);
    fill_nastily(slots.remote(), slots.shape().slot_bytes, random);
    // Make the words that matter likely to be nearly right.
    static constexpr uint64_t kMarks[] = {0x5a, 0xc3, 0xa5, 0x80};
    const uint64_t mark = kMarks[random.below(4)] << 56;
    const uint64_t length = random.below(2) == 0 ? random.below(400) : random.next();
    const uint64_t shift = random.below(2) == 0 ? 0 : 24;
    const uint64_t word = mark | ((length << shift) & ~(uint64_t{0xff} << 56));
    std::memcpy(slots.remote(), &word, sizeof(word));
    std::memcpy(slots.remote() + slots.shape().slot_bytes - kWordBytes, &word, sizeof(word));

    const Probe probe = slots.probe();
    if (probe.arrival == Arrival::kViolation) ++violations;
    if (probe.arrival != Arrival::kMessage) continue;
    ++messages;
    ASSERT_LE(probe.bytes, capacity);
    ASSERT_GE(probe.payload, slots.remote());
    ASSERT_LE(probe.payload + probe.bytes, slots.remote() + slots.shape().slot_bytes);
    slots.clear(probe.bytes);  // must stay inside as well; the address sanitizer watches
  }
  EXPECT_GT(violations, 0);
  EXPECT_GT(messages, 0);
}

TYPED_TEST(CompletionMarkTest, LengthBeyondTheSlotIsAViolation) {
  SlotPair<TypeParam> big(4096);
  SlotPair<TypeParam> small(100);
  const Sealed sealed = big.seal(101);  // a mark as a sender with larger slots makes it
  // Where the small slot's receiver looks: its first and its last word.
  uint64_t first;
  uint64_t last;
  std::memcpy(&first, big.payload() - TypeParam::kPayloadOffset, sizeof(first));
  std::memcpy(
      &last,
      big.payload() - TypeParam::kPayloadOffset + sealed.local_offset + sealed.bytes - kWordBytes,
      sizeof(last));
  std::memcpy(small.remote(), &first, sizeof(first));
  std::memcpy(small.remote() + small.shape().slot_bytes - kWordBytes, &last, sizeof(last));
  EXPECT_EQ(small.probe().arrival, Arrival::kViolation);
}

// The layout of the bytes, as documented: two releases must agree on it.
TEST(LastBitMarkTest, Layout) {
  SlotPair<LastBitMark> slots(56);
  std::memcpy(slots.payload(), "abcde", 5);
  const Sealed sealed = slots.seal(5);
  EXPECT_EQ(sealed.bytes, 16u);
  EXPECT_EQ(sealed.remote_offset, 48u);
  slots.deliver(sealed, 0, sealed.bytes);
  EXPECT_EQ(std::string(slots.remote() + 48, 5), "abcde");
  EXPECT_EQ(slots.remote()[56], 5);
  EXPECT_EQ(static_cast<uint8_t>(slots.remote()[63]), 0x80) << "the very last bit of the slot";
}

TEST(LengthMarkersMarkTest, Layout) {
  SlotPair<LengthMarkersMark> slots(48);
  std::memcpy(slots.payload(), "abcde", 5);
  const Sealed sealed = slots.seal(5);
  EXPECT_EQ(sealed.remote_offset, 3u);
  slots.deliver(sealed, 0, sealed.bytes);
  EXPECT_EQ(slots.remote()[3], 5) << "length, four bytes";
  EXPECT_EQ(static_cast<uint8_t>(slots.remote()[7]), 0xa5) << "first marker: the fifth byte";
  EXPECT_EQ(std::string(slots.remote() + 8, 5), "abcde");
  EXPECT_EQ(static_cast<uint8_t>(slots.remote()[15]), 0xa5) << "last marker";
  slots.clear(5);
  EXPECT_EQ(std::count(slots.remote(), slots.remote() + 64, 0), 64) << "all of it zeroed";
}

TEST(HeadTailMarkTest, FlagValuesAlternateAgainstWhatTheTailHolds) {
  SlotPair<HeadTailMark> slots(48);
  const auto send = [&slots](uint32_t bytes) {
    const Sealed sealed = slots.seal(bytes);
    slots.deliver(sealed, 0, sealed.bytes);
    const auto flag = static_cast<uint8_t>(slots.remote()[7]);
    EXPECT_EQ(static_cast<uint8_t>(slots.remote()[sealed.bytes - 1]), flag);
    slots.clear(bytes);
    return flag;
  };
  std::memcpy(slots.payload(), "abcde", 5);
  EXPECT_EQ(send(5), 0x5a) << "primary on a fresh slot";
  EXPECT_EQ(send(5), 0xc3) << "the tail holds the primary value";
  EXPECT_EQ(send(5), 0x5a) << "and now the secondary";
  // A longer message leaves a payload byte where the shorter one's tail goes.
  std::memset(slots.payload(), 0x5a, 20);
  EXPECT_EQ(send(20), 0x5a);
  EXPECT_EQ(send(5), 0xc3);
}

}  // namespace
}  // namespace verbena::channel
