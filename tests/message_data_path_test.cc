// After connect: no allocation, no lock and no system call for a message that is copied, sent and
// received by either channel, expected or not; and no allocation and no lock for a long one whose
// memory has been used before. Counted, not inspected (data_path_counts.h).
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/data_path_counts.h"
#include "tests/message_support.h"

namespace verbena::message_test {
namespace {

using test::Counted;
using test::Counts;

constexpr uint64_t kWarmUp = 3000;
constexpr uint64_t kCountedMessages = 5000;

// Both sides send numbered messages of several tags and sizes, and receive the other's: some posted
// before, some unexpected, with and without wildcards. Between them, each puts, gets and adds to
// the other's memory.
class Exchange {
 public:
  // Messages of up to `most_bytes`.
  Exchange(Messenger& messenger, PeerNumber peer, uint32_t most_bytes)
      : messenger_(messenger), peer_(peer), most_bytes_(most_bytes), memory_(2 * most_bytes) {}

  // The memory of both sides has the same key.
  Status expose() {
    const iovec piece{exposed_, sizeof(exposed_)};
    return messenger_.exposed()
        .expose(
            {.pieces = {&piece, 1}, .access = kMemoryReadWrite, .has_key = true, .key = kMemoryKey})
        .status();
  }

  // Until so many more were sent and received, or the peer is lost.
  void run(uint64_t messages, Counted& counted) {
    const uint64_t sent_end = sent_ + messages;
    const uint64_t received_end = received_ + messages;
    while ((sent_ < sent_end || received_ < received_end) && messenger_.peer_status(peer_).ok()) {
      if (sent_ < sent_end) send();
      if (sent_ < sent_end) access();
      // At times behind, so that many are unexpected, and at times ahead; but nobody waits for
      // memory that only a receive of its own frees.
      if (posted_ < received_end && (sent_ % 64 < 32 || blocked_ || sent_ == sent_end)) receive();
      MessageCompletion done[8];
      const uint32_t found = messenger_.poll(done);
      for (uint32_t i = 0; i < found; ++i) {
        if (done[i].event == MessageEvent::kReceived) ++received_;
        if (done[i].outcome != MessageOutcome::kOk) ++failures_;
      }
      counted.polled(found);
    }
  }
  uint64_t failures() const { return failures_; }

 private:
  static uint64_t tag_of(uint64_t number) { return number % 3; }

  void send() {
    // The longest comes first: memory that is registered for it serves all others.
    const size_t rest_bytes = most_bytes_ - 9 - sent_ * 37 % (most_bytes_ - 8);
    const iovec pieces[2] = {{memory_.data(), 8}, {memory_.data() + 8, rest_bytes}};
    const bool reuses = messenger_.options().reused_buffers != ReusedBuffers::kCopied;
    const iovec whole{memory_.data(), pieces[0].iov_len + pieces[1].iov_len};
    const uint32_t flags = sent_ % 5 == 0 ? unsigned{kMessageDelivered}
                           : reuses       ? 0u
                                          : unsigned{kMessageSilent};
    const std::span<const iovec> all = reuses ? std::span(&whole, 1) : std::span(pieces);
    const PostResult result =
        messenger_.send({.peer = peer_, .tag = tag_of(sent_), .pieces = all, .flags = flags});
    blocked_ = result != PostResult::kPosted;
    if (!blocked_) ++sent_;
  }
  void access() {
    const iovec piece{accessed_, 8 + accesses_ * 13 % 200 * 8};
    const RemoteRange range{.address = 0, .bytes = piece.iov_len, .key = kMemoryKey};
    const OneSidedRequest request{.peer = peer_,
                                  .pieces = {&piece, 1},
                                  .remote = {&range, 1},
                                  .flags = accesses_ % 4 == 0 ? 0u : unsigned{kMessageSilent}};
    const iovec word{accessed_, 8};
    const RemoteRange there{.address = 0, .bytes = 8, .key = kMemoryKey};
    PostResult result = PostResult::kFailed;
    switch (accesses_ % 3) {
      case 0:
        result = messenger_.put(request);
        break;
      case 1:
        result = messenger_.get(request);
        break;
      default:
        result = messenger_.atomic(
            {.peer = peer_, .operands = {&word, 1}, .results = {&word, 1}, .remote = {&there, 1}});
    }
    if (result == PostResult::kPosted) ++accesses_;
  }
  void receive() {
    const iovec piece{memory_.data() + most_bytes_, most_bytes_};
    MessageInfo info;
    const ReceiveRequest request{.source = posted_ % 2 == 0 ? peer_ : kAnyPeer,
                                 .tag = tag_of(posted_),
                                 .ignore = posted_ % 7 == 0 ? uint64_t{1} << 40 : 0,
                                 .pieces = {&piece, 1}};
    if (posted_ % 11 == 0) static_cast<void>(messenger_.peek(request, &info));
    if (messenger_.receive(request) == PostResult::kPosted) ++posted_;
  }

  Messenger& messenger_;
  const PeerNumber peer_;
  uint64_t sent_ = 0;
  uint64_t posted_ = 0;
  uint64_t received_ = 0;
  uint64_t failures_ = 0;
  bool blocked_ = false;
  uint64_t accesses_ = 0;
  char exposed_[2048] = {};
  char accessed_[2048] = {};
  const uint32_t most_bytes_;
  std::vector<char> memory_;
};

Status run_side(ControlConnection control, const JobSecret& secret, const MessengerOptions& options,
                uint32_t most_bytes, Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto messenger, open_messenger(device, domain, secret, options));
  VERBENA_ASSIGN_OR_RETURN(const MessengerAddress address,
                           control.exchange(kAddressTag, messenger->address(), kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const PeerNumber peer, messenger->add_peer(address));
  Exchange exchange(*messenger, peer, most_bytes);
  VERBENA_RETURN_IF_ERROR(exchange.expose());
  VERBENA_RETURN_IF_ERROR(control.exchange(kAddressTag, uint32_t{1}, kTimeoutNs).status());
  Counted counted;
  exchange.run(kWarmUp, counted);
  counted.begin();
  exchange.run(kCountedMessages, counted);
  counts = counted.end(kCountedMessages);
  // The other side may still need something of this one.
  VERBENA_RETURN_IF_ERROR(control.send_value(kAddressTag, uint32_t{1}));
  Waiter waiter;
  while (messenger->peer_status(peer).ok() &&
         control.receive_value<uint32_t>(kAddressTag, 0).status().code() == StatusCode::kTimeout) {
    messenger->progress() > 0 ? waiter.progress() : waiter.idle();
  }
  if (options.reused_buffers != ReusedBuffers::kCopied &&
      (messenger->statistics().gathered < kCountedMessages ||
       messenger->statistics().stored < kCountedMessages / 6)) {
    return Status(StatusCode::kInternal, "nothing was sent from its place");
  }
  if (exchange.failures() > 0) return Status(StatusCode::kInternal, "an operation failed");
  return messenger->error();
}

constexpr uint32_t kShortBytes = 1500;
constexpr uint32_t kLongBytes = 40'000;
// Whether the memory of a message is still the one that is registered, of both sides (soft0).
constexpr uint64_t kCallsOfLong = 6;

void run(const MessengerOptions& options, uint32_t most_bytes = kShortBytes, uint64_t calls = 0) {
  if (VERBENA_COUNTS == 0) GTEST_SKIP() << "the sanitizers count differently";
  const JobSecret secret = JobSecret::random();
  auto listener = ControlListener::listen("127.0.0.1", 0, secret);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  const bool traced = test::run_counted(
      {{"one side", true,
        [&](Counts& counts) -> Status {
          VERBENA_ASSIGN_OR_RETURN(ControlConnection control, listener->accept(kTimeoutNs));
          return run_side(std::move(control), secret, options, most_bytes, counts);
        }},
       {"other side", true,
        [&](Counts& counts) -> Status {
          VERBENA_ASSIGN_OR_RETURN(
              ControlConnection control,
              ControlConnection::connect("127.0.0.1", listener->port(), secret, kTimeoutNs));
          return run_side(std::move(control), secret, options, most_bytes, counts);
        }}},
      kCountedMessages, calls);
  if (!traced) GTEST_SKIP() << "this system does not let a process trace its children";
}

TEST(MessageDataPathTest, NothingByRings) { run({}); }

TEST(MessageDataPathTest, NothingBySends) { run({.polling_set = 0}); }

TEST(MessageDataPathTest, NothingWhereMemoryIsShort) {
  run({.unexpected_bytes = 4096, .ring_slots = 4, .queue_credits = 6});
}

TEST(MessageDataPathTest, LongMessagesAllocateAndLockNothing) { run({}, kLongBytes, kCallsOfLong); }

// From memory that is registered already, and short gets into it, of which the device is asked
// whether it is still the same.
TEST(MessageDataPathTest, UsedBuffersAllocateAndLockNothing) {
  run({.reused_buffers = ReusedBuffers::kPaper, .reuse_speculation = 0.001}, kShortBytes,
      kCallsOfLong);
}

}  // namespace
}  // namespace verbena::message_test
