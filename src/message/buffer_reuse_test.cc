// Short messages from buffers that are used again: what is gathered, what is copied, and that the
// bytes are those of the buffer at the time of the send.
#include "src/message/buffer_reuse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/message/messengers_for_test.h"

namespace verbena::message {
namespace {

using testing::HasSubstr;

constexpr uint64_t kPageOfBuffer = 4096;
constexpr uint64_t kLargeBytes = 8192;
// The paper's 32 for 8 KiB by WRITE, and 49 by SEND, of which a quarter.
constexpr uint32_t kDueByRing = 8;
constexpr uint32_t kDueBySend = 13;

MessengerOptions reusing(uint32_t polling_set = 8) {
  MessengerOptions options;
  options.slot_bytes = 8320;
  options.polling_set = polling_set;
  options.reused_buffers = ReusedBuffers::kPaper;
  return options;
}

class MappedBuffer {
 public:
  explicit MappedBuffer(uint64_t bytes = kLargeBytes) : bytes_(bytes) { map(nullptr); }
  ~MappedBuffer() { munmap(memory_, bytes_); }
  MappedBuffer(const MappedBuffer&) = delete;
  MappedBuffer& operator=(const MappedBuffer&) = delete;

  char* data() const { return memory_; }
  void fill(char byte) { std::memset(memory_, byte, bytes_); }
  // Other pages at the same address.
  void replace() {
    munmap(memory_, bytes_);
    map(memory_);
  }

 private:
  void map(void* where) {
    void* const mapped =
        mmap(where, bytes_, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | (where != nullptr ? MAP_FIXED : 0), -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    memory_ = static_cast<char*>(mapped);
  }
  uint64_t bytes_;
  char* memory_ = nullptr;
};

// Two of them; 0 sends to 1.
class ReuseTest : public testing::TestWithParam<uint32_t> {
 protected:
  explicit ReuseTest() { open(reusing(GetParam())); }
  void open(const MessengerOptions& options) {
    all_.emplace(2, options);
    into_.assign(kLargeBytes, '\0');
    // Connected, and with a ring if there is one.
    do {
      ASSERT_TRUE(all().send(0, 1, 0, "hello", kMessageSilent));
      receive();
    } while (GetParam() > 0 && !sender().explain(all().peer(0, 1), 8, nullptr).by_ring);
  }
  MessengersForTest& all() { return *all_; }
  Messenger& sender() { return all()[0]; }
  uint32_t due() const { return GetParam() > 0 ? kDueByRing : kDueBySend; }

  // Sends and receives one; true once the send has completed, if it says so at all.
  void exchange(const char* bytes, uint64_t size, uint32_t flags = 0) {
    post(bytes, size, flags);
    receive();
    const bool silent = (flags & kMessageSilent) != 0;
    if (!silent) {
      ASSERT_TRUE(all().until([&] { return !all().done(0).empty(); }));
      EXPECT_EQ(all().done(0).front().outcome, MessageOutcome::kOk);
      EXPECT_EQ(all().done(0).front().event, MessageEvent::kSent);
      EXPECT_EQ(all().done(0).front().tag, 7u);
    }
    all().done(0).clear();
  }
  void post(const char* bytes, uint64_t size, uint32_t flags = 0) {
    const iovec piece{const_cast<char*>(bytes), size};
    ASSERT_TRUE(
        all().send(0, {.peer = all().peer(0, 1), .tag = 7, .pieces = {&piece, 1}, .flags = flags}));
  }
  void receive() {
    const iovec piece{into_.data(), into_.size()};
    ASSERT_EQ(all()[1].receive({.source = kAnyPeer, .ignore = ~uint64_t{0}, .pieces = {&piece, 1}}),
              PostResult::kPosted);
    ASSERT_TRUE(all().until([&] { return !all().done(1).empty(); }));
    received_ = all().done(1).front();
    all().done(1).clear();
    EXPECT_EQ(received_.outcome, MessageOutcome::kOk);
  }
  std::string text() const { return into_.substr(0, received_.bytes); }
  // Until the next one from there is gathered.
  void use_often(const char* bytes, uint64_t size) {
    const uint64_t before = sender().statistics().gathered;
    for (uint32_t i = 0; i < 3 * due() && sender().statistics().gathered == before; ++i) {
      exchange(bytes, size);
    }
    ASSERT_GT(sender().statistics().gathered, before);
  }

  std::optional<MessengersForTest> all_;
  std::string into_;
  MessageCompletion received_;
};

TEST_P(ReuseTest, WhatIsUsedOftenIsGathered) {
  MappedBuffer buffer;
  for (uint32_t i = 0; i < 40; ++i) {
    buffer.fill(static_cast<char>('a' + i % 26));
    const MessageExplanation next = sender().explain(all().peer(0, 1), kLargeBytes, buffer.data());
    EXPECT_EQ(next.gathered, i >= due()) << next.text;
    EXPECT_THAT(next.text, HasSubstr(i >= due() ? "gathered by the device" : "copied to a slot"));
    exchange(buffer.data(), kLargeBytes);
    EXPECT_EQ(text(), std::string(buffer.data(), kLargeBytes));
    EXPECT_EQ(sender().statistics().gathered, i < due() ? 0 : i + 1 - due());
  }
  const PeerStatistics counts = sender().peer_statistics(all().peer(0, 1));
  EXPECT_EQ(counts.gathered, 40 - due());
  EXPECT_GE(GetParam() > 0 ? counts.eager_by_ring : counts.eager_by_queue, 40u);
  EXPECT_EQ(sender().statistics().registrations, 1u);
}

TEST_P(ReuseTest, WhatMayChangeAtOnceIsCopied) {
  MappedBuffer buffer;
  use_often(buffer.data(), kLargeBytes);
  const uint64_t before = sender().statistics().gathered;
  for (const uint32_t flags : {unsigned{kMessageSilent}, unsigned{kMessageCopied}}) {
    buffer.fill('x');
    post(buffer.data(), kLargeBytes, flags);
    buffer.fill('y');
    receive();
    EXPECT_EQ(text(), std::string(kLargeBytes, 'x'));
  }
  EXPECT_EQ(sender().statistics().gathered, before);
}

TEST_P(ReuseTest, AConfirmedSendIsGatheredToo) {
  MappedBuffer buffer;
  use_often(buffer.data(), kLargeBytes);
  const uint64_t before = sender().statistics().gathered;
  all().done(0).clear();
  for (const char byte : {'p', 'q'}) {
    buffer.fill(byte);
    exchange(buffer.data(), kLargeBytes, kMessageDelivered);
    EXPECT_EQ(text(), std::string(kLargeBytes, byte));
  }
  EXPECT_EQ(sender().statistics().gathered, before + 2);
}

TEST_P(ReuseTest, SeveralPiecesAreCopied) {
  MappedBuffer buffer;
  buffer.fill('2');
  for (uint32_t i = 0; i < 4 * due(); ++i) {
    const iovec pieces[2] = {{buffer.data(), 4096}, {buffer.data() + 4096, 4000}};
    ASSERT_TRUE(all().send(0, {.peer = all().peer(0, 1), .tag = 7, .pieces = pieces}));
    receive();
    EXPECT_EQ(text(), std::string(8096, '2'));
  }
  EXPECT_EQ(sender().statistics().gathered, 0u);
}

// The same addresses with other pages: never the old ones' bytes.
TEST_P(ReuseTest, MemoryThatWasReplacedIsSentAsItIs) {
  MappedBuffer buffer;
  for (int round = 0; round < 4; ++round) {
    use_often(buffer.data(), kLargeBytes);
    buffer.replace();
    const char byte = static_cast<char>('0' + round);
    buffer.fill(byte);
    exchange(buffer.data(), kLargeBytes);
    EXPECT_EQ(text(), std::string(kLargeBytes, byte));
  }
}

TEST_P(ReuseTest, ALostPeerEndsWhatIsOnItsWay) {
  MappedBuffer buffer;
  use_often(buffer.data(), kLargeBytes);
  const PeerNumber peer = all().peer(0, 1);
  all().close(1);
  // Whatever is taken before the end is noticed has a completion.
  uint32_t posted = 0;
  const iovec piece{buffer.data(), kLargeBytes};
  ASSERT_TRUE(all().until([&] {
    if (sender().send({.peer = peer, .tag = 7, .pieces = {&piece, 1}}) == PostResult::kPosted) {
      ++posted;
    }
    return !sender().peer_status(peer).ok();
  }));
  ASSERT_TRUE(all().until([&] { return all().done(0).size() >= posted; }));
  EXPECT_EQ(all().done(0).size(), posted);
  EXPECT_EQ(sender().send({.peer = peer, .tag = 7, .pieces = {&piece, 1}}), PostResult::kFailed);
}

// Several buffers of bytes that look like marks, sizes that change, slots that are few, sends that
// are on their way together: every byte is checked.
TEST_P(ReuseTest, RandomMessagesOfUsedBuffersArriveWhole) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  MessengerOptions options = reusing(GetParam());
  options.ring_slots = 3;
  options.queue_credits = 6;
  options.reuse_speculation = 0.01;
  open(options);
  constexpr uint32_t kBuffers = 5;
  std::vector<std::unique_ptr<MappedBuffer>> buffers;
  std::vector<bool> busy(kBuffers);
  for (uint32_t i = 0; i < kBuffers; ++i) buffers.push_back(std::make_unique<MappedBuffer>());
  std::deque<std::string> expected;
  const char bytes[] = {0x5a, static_cast<char>(0xc3), 0, 1};
  const iovec into{into_.data(), into_.size()};
  uint32_t sent = 0;
  uint32_t received = 0;
  bool awaits = false;
  const auto step = [&] {
    const auto which = static_cast<uint32_t>(random.below(kBuffers));
    if (sent < 3000 && !busy[which]) {
      MappedBuffer& buffer = *buffers[which];
      const uint64_t size =
          random.below(4) == 0 ? random.below(200) : random.below(kLargeBytes + 1);
      std::memset(buffer.data(), bytes[random.below(sizeof(bytes))], size);
      for (uint64_t at = random.below(64); at < size; at += 1 + random.below(64)) {
        buffer.data()[at] = bytes[random.below(sizeof(bytes))];
      }
      const iovec piece{buffer.data(), size};
      if (sender().send({.peer = all().peer(0, 1),
                         .tag = 7,
                         .pieces = {&piece, 1},
                         .context = &buffers[which]}) == PostResult::kPosted) {
        expected.emplace_back(buffer.data(), size);
        busy[which] = true;
        ++sent;
      }
    }
    if (!awaits && random.below(3) != 0) {
      awaits =
          all()[1].receive({.ignore = ~uint64_t{0}, .pieces = {&into, 1}}) == PostResult::kPosted;
    }
    all().poll_all();
    for (const MessageCompletion& done : all().done(0)) {
      EXPECT_EQ(done.outcome, MessageOutcome::kOk);
      const auto* const buffer = static_cast<std::unique_ptr<MappedBuffer>*>(done.context);
      busy[static_cast<size_t>(buffer - buffers.data())] = false;
    }
    all().done(0).clear();
    for (const MessageCompletion& done : all().done(1)) {
      EXPECT_FALSE(expected.empty());
      if (expected.empty()) return true;
      EXPECT_TRUE(done.bytes == expected.front().size() &&
                  std::memcmp(into_.data(), expected.front().data(), done.bytes) == 0)
          << "message " << received << " of " << expected.front().size() << " bytes";
      expected.pop_front();
      ++received;
      awaits = false;
    }
    all().done(1).clear();
    return received == 3000 || HasFailure();
  };
  ASSERT_TRUE(all().until(step));
  EXPECT_GT(sender().statistics().gathered, 500u);
  EXPECT_EQ(sender().statistics().tails_cleared > 0, GetParam() > 0);
}

INSTANTIATE_TEST_SUITE_P(Channels, ReuseTest, testing::Values(8u, 0u),
                         [](const auto& test) { return test.param > 0 ? "rings" : "sends"; });

TEST(BufferReuseTest, IsOffUnlessAskedFor) {
  MessengersForTest all(2);
  const MessageExplanation next = all[0].explain(all.peer(0, 1), 1000, &all);
  EXPECT_FALSE(next.gathered);
  EXPECT_THAT(next.text, HasSubstr("the option reused_buffers asks for copies"));
}

TEST(BufferReuseTest, ExplainsWhatItMeasured) {
  MessengerOptions options = reusing();
  options.reused_buffers = ReusedBuffers::kMeasured;
  MessengersForTest all(2, options);
  // Whatever it is on this machine.
  const MessageExplanation next = all[0].explain(all.peer(0, 1), kLargeBytes, &all);
  EXPECT_THAT(next.text, testing::AnyOf(HasSubstr("measured: it takes"), HasSubstr("a copy")));
}

TEST(BufferReuseTest, OptionsThatMakeNoSenseAreRefused) {
  const test::Node node{test::must(Device::open("soft0"))};
  for (const double part : {0.0, 1.5, -1.0}) {
    MessengerOptions options = reusing();
    options.reuse_speculation = part;
    const auto opened = open_messenger(node.device, node.domain, JobSecret::random(), options);
    ASSERT_FALSE(opened.ok());
    EXPECT_THAT(opened.status().message(), HasSubstr("reuse_speculation"));
  }
  MessengerOptions options = reusing();
  options.reuse_buffers = 0;
  EXPECT_FALSE(open_messenger(node.device, node.domain, JobSecret::random(), options).ok());
}

class RestingTest : public testing::Test {
 protected:
  RestingTest() : node_{test::must(Device::open("soft0"))} {
    memory_.emplace(test::must(MessageMemory::create(node_.domain, 1 << 30, 1024)));
    MessengerOptions options = reusing();
    options.reuse_buffers = 16;
    EXPECT_TRUE(
        reuse_.open(options, step_costs(node_.device.info()), 0, kSourceAccess, *memory_).ok());
  }
  bool in_place(const char* buffer) {
    if (reuse_.skips()) return false;
    internal::CachedRegion* region =
        reuse_.take(*memory_, buffer, kLargeBytes, ReusePath::kEagerWrite);
    const bool taken = region != nullptr;
    MessageMemory::give_back(&region);
    return taken;
  }

  test::Node node_;
  std::optional<MessageMemory> memory_;
  BufferReuse reuse_;
};

// Buffers that are not in the table are looked for now and then only; those that are in it are
// noticed again.
TEST_F(RestingTest, LooksRarelyWhileItCannotTellAnything) {
  MappedBuffer buffer;
  const auto fresh = [](uint64_t i) { return reinterpret_cast<const char*>(i << 20); };
  for (uint32_t i = 0; i < 100; ++i) in_place(buffer.data());
  EXPECT_TRUE(in_place(buffer.data()));
  for (uint64_t i = 1; i <= 100'000; ++i) EXPECT_FALSE(in_place(fresh(i)));
  const BufferUseStatistics now = reuse_.statistics();
  EXPECT_EQ(now.buffers, 16u);
  EXPECT_LT(now.not_added, 100'000u / 20);
  EXPECT_GT(now.not_added, 100'000u / 400);
  uint32_t uses = 0;
  while (!in_place(buffer.data()) && uses < 100'000) ++uses;
  EXPECT_LT(uses, 20'000u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_TRUE(in_place(buffer.data()));
}

}  // namespace
}  // namespace verbena::message
