// What the data path counts of exchanges that are known (verbena/data_path.h): exactly so many
// polls, bytes and hand-overs, for every protocol and layout. Both sides are served by one thread,
// one after the other, so nothing depends on who comes first.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "tests/rpc_support.h"
#include "tests/support/parameter_names.h"
#include "verbena/client.h"
#include "verbena/data_path.h"
#include "verbena/dispatcher.h"
#include "verbena/server.h"

namespace verbena {

// So that a failure shows what was counted.
static std::ostream& operator<<(std::ostream& out, const DataPathStatistics& counted) {
  return out << "polls " << counted.polls << ", empty " << counted.empty_polls << ", copied "
             << counted.bytes_copied << ", cleared " << counted.bytes_cleared << ", hand-overs "
             << counted.hand_overs;
}
static bool operator==(const DataPathStatistics& one, const DataPathStatistics& other) {
  return one.polls == other.polls && one.empty_polls == other.empty_polls &&
         one.bytes_copied == other.bytes_copied && one.bytes_cleared == other.bytes_cleared &&
         one.hand_overs == other.hand_overs;
}

}  // namespace verbena

namespace verbena::rpc_test {
namespace {

constexpr uint32_t kRequestBytes = 48;
constexpr uint32_t kResponseBytes = 21;
// Fewer than fill a send queue: its completions would be polled then, too.
constexpr uint64_t kMessages = 8;

DataPathStatistics times(const DataPathStatistics& one, uint64_t count) {
  return {one.polls * count, one.empty_polls * count, one.bytes_copied * count,
          one.bytes_cleared * count, one.hand_overs * count};
}
void add(DataPathStatistics& sum, const DataPathStatistics& more) {
  sum = {sum.polls + more.polls, sum.empty_polls + more.empty_polls,
         sum.bytes_copied + more.bytes_copied, sum.bytes_cleared + more.bytes_cleared,
         sum.hand_overs + more.hand_overs};
}

// What `work` costs this thread.
template <typename Work>
DataPathStatistics counted(Work&& work) {
  const DataPathStatistics before = data_path_statistics();
  work();
  return data_path_statistics() - before;
}

// Connects both sides at once, as each waits for the other.
template <typename Accept, typename Request>
void connect_both(Accept&& accept, Request&& request) {
  const JobSecret secret = JobSecret::random();
  Result<ControlListener> listener = ControlListener::listen("127.0.0.1", 0, secret);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  Thread accepting = start_thread("responder", [&] {
    Result<ControlConnection> control = listener->accept(kTimeoutNs);
    ASSERT_TRUE(control.ok()) << control.status().message();
    accept(std::move(*control));
  });
  Result<ControlConnection> control =
      ControlConnection::connect("127.0.0.1", listener->port(), secret, kTimeoutNs);
  if (control.ok()) request(std::move(*control));
  accepting.join();
  ASSERT_TRUE(control.ok()) << control.status().message();
}

class RpcStatisticsTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<Device> device = Device::open("soft0");
    if (!device.ok()) GTEST_SKIP() << "no soft0 here: " << device.status().message();
    device_.emplace(std::move(*device));
    domain_.emplace(ProtectionDomain::create(*device_).value());
  }

  void connect(const Case& c) {
    readable_ = readable_memory();
    Result<std::unique_ptr<Responder>> responder =
        make_responder(c.protocol, c.layout, *device_, *domain_, responder_options(c, readable_));
    ASSERT_TRUE(responder.ok()) << responder.status().message();
    responder_ = std::move(*responder);
    connect_both(
        [&](ControlConnection control) {
          accepted_.emplace(std::move(control));
          const Status status = responder_->connect(*accepted_);
          EXPECT_TRUE(status.ok()) << status.message();
        },
        [&](ControlConnection control) {
          control_.emplace(std::move(control));
          auto requester = make_requester(c.protocol, c.layout, *device_, *domain_, *control_,
                                          requester_options(c));
          ASSERT_TRUE(requester.ok()) << requester.status().message();
          requester_ = std::move(*requester);
        });
    ASSERT_NE(requester_, nullptr);
  }

  void respond() {
    responder_->poll([](const Request&, std::span<char>) { return kResponseBytes; });
  }

  std::optional<Device> device_;
  std::optional<ProtectionDomain> domain_;
  std::vector<char> readable_;
  std::optional<ControlConnection> accepted_;
  std::optional<ControlConnection> control_;
  std::unique_ptr<Responder> responder_;
  std::unique_ptr<Requester> requester_;
};

// What one exchange costs each side, with one slot.
struct Expected {
  Protocol protocol;
  MarkLayout layout;
  DataPathStatistics requester;
  DataPathStatistics responder;
};

std::ostream& operator<<(std::ostream& out, const Expected& expected) {
  return out << protocol_name(expected.protocol) << " " << mark_layout_name(expected.layout);
}

// Of LengthMarkersMark: length, payload and marker, in whole words.
constexpr uint64_t cleared(uint32_t bytes) { return 8 + (bytes + 8) / 8 * 8; }

constexpr DataPathStatistics kNothing = {};
constexpr DataPathStatistics kOneWord = {.polls = 1};
constexpr DataPathStatistics kTwoWords = {.polls = 2};    // header and mark
constexpr DataPathStatistics kDense = {.polls = 2};       // the connection's bytes, and the byte
constexpr DataPathStatistics kDenseBoard = {.polls = 3};  // and before, those of all connections
constexpr DataPathStatistics kCompletion = {.polls = 1};
// Goes on until there is no more.
constexpr DataPathStatistics kAllCompletions = {.polls = 2, .empty_polls = 1};

class OfEveryDesign : public RpcStatisticsTest, public testing::WithParamInterface<Expected> {};

TEST_P(OfEveryDesign, AnExchangeCostsExactlySoMuch) {
  const Expected& expected = GetParam();
  Case c;
  c.protocol = expected.protocol;
  c.layout = expected.layout;
  c.request_max_bytes = kRequestBytes;
  c.response_max_bytes = kResponseBytes;
  connect(c);
  if (HasFatalFailure()) return;
  const ReadRequest read = {0, kResponseBytes};
  fill_pattern({requester_->request_buffer(0), kRequestBytes}, 1);
  if (c.protocol == Protocol::kRead) {
    std::memcpy(requester_->request_buffer(0), &read, sizeof(read));
  }
  uint64_t answered = 0;
  DataPathStatistics requester;
  DataPathStatistics responder;
  for (uint64_t message = 0; message < kMessages + 1; ++message) {
    // The first one frees no slot that was used before.
    if (message == 1) requester = responder = kNothing;
    add(requester,
        counted([&] { ASSERT_EQ(requester_->try_post(0, kRequestBytes), PostResult::kPosted); }));
    add(responder, counted([&] { respond(); }));
    add(requester, counted([&] {
          answered += requester_->poll([](uint32_t, std::span<const char> bytes) {
            EXPECT_EQ(bytes.size(), kResponseBytes);
          });
        }));
  }
  EXPECT_EQ(answered, kMessages + 1);
  EXPECT_EQ(requester, times(expected.requester, kMessages));
  EXPECT_EQ(responder, times(expected.responder, kMessages));
}

INSTANTIATE_TEST_SUITE_P(
    Designs, OfEveryDesign,
    testing::Values(
        Expected{Protocol::kSendSend, MarkLayout::kLastBit, kCompletion, kAllCompletions},
        Expected{Protocol::kSendWrite, MarkLayout::kLastBit, kOneWord, kAllCompletions},
        Expected{Protocol::kWriteSend, MarkLayout::kLastBit, kCompletion, kOneWord},
        Expected{Protocol::kWriteWrite, MarkLayout::kLastBit, kOneWord, kOneWord},
        Expected{Protocol::kWriteWrite, MarkLayout::kHeadTail, kTwoWords, kTwoWords},
        Expected{Protocol::kWriteWrite,
                 MarkLayout::kLengthMarkers,
                 {.polls = 2, .bytes_cleared = cleared(kResponseBytes)},
                 {.polls = 2, .bytes_cleared = cleared(kRequestBytes)}},
        Expected{Protocol::kWriteWrite, MarkLayout::kDense, kDense, kDenseBoard},
        Expected{Protocol::kWriteWrite, MarkLayout::kImmediate, kCompletion, kAllCompletions},
        Expected{Protocol::kRead,
                 MarkLayout::kLastBit,
                 {.polls = 2, .empty_polls = 1, .bytes_copied = sizeof(ReadRequest)},
                 kNothing}),
    test::printed_name<Expected>);

TEST_F(RpcStatisticsTest, EmptyPollsAreCountedForEachSlotThatIsPolled) {
  Case c;
  c.pending = 4;
  connect(c);
  if (HasFatalFailure()) return;
  // The slot that is next, and one more in turn.
  EXPECT_EQ(counted([&] { respond(); }), (DataPathStatistics{.polls = 2, .empty_polls = 2}));
  // No slot waits for a response.
  EXPECT_EQ(counted([&] { requester_->poll([](uint32_t, std::span<const char>) {}); }), kNothing);
}

TEST_F(RpcStatisticsTest, ADispatcherHandsEachMessageOverTwice) {
  Case c;
  c.pending = 6;
  c.response_max_bytes = kResponseBytes;
  connect(c);
  if (HasFatalFailure()) return;
  Dispatcher<> dispatcher({requester_.get()}, {.workers = 3, .pending = 2});
  auto& worker = dispatcher.worker(0);
  uint32_t answered = 0;
  const auto take = [&](uint32_t, uint32_t, std::span<const char>) { ++answered; };
  EXPECT_EQ(counted([&] { EXPECT_TRUE(worker.hand_over(0, 0, 8)); }),
            DataPathStatistics{.hand_overs = 1});
  // All six mailboxes, of which one is full, and the slot in which the response will come.
  EXPECT_EQ(counted([&] { EXPECT_EQ(dispatcher.poll(), 1u); }),
            (DataPathStatistics{.polls = 7, .empty_polls = 6}));
  EXPECT_EQ(counted([&] { worker.poll(take); }),
            (DataPathStatistics{.polls = 1, .empty_polls = 1}));
  respond();
  EXPECT_EQ(counted([&] { EXPECT_EQ(dispatcher.poll(), 1u); }),
            (DataPathStatistics{.polls = 7, .empty_polls = 6, .hand_overs = 1}));
  EXPECT_EQ(counted([&] { worker.poll(take); }), DataPathStatistics{.polls = 1});
  EXPECT_EQ(answered, 1u);
}

// Every header is written once and read once; a payload that lies elsewhere is copied into the slot
// by call_with(), and what does not fit its slot is put together by whoever receives it.
TEST_F(RpcStatisticsTest, ACallCopiesItsHeadersAndWhatLiesElsewhere) {
  constexpr uint32_t kSlotBytes = 64;
  constexpr uint32_t kLargeBytes = 3 * kSlotBytes;
  ServerOptions served;
  served.request_slot_bytes = kSlotBytes;
  served.response_slot_bytes = kSlotBytes;
  served.request_max_bytes = kLargeBytes;
  served.pending = 1;
  Result<std::unique_ptr<verbena::Server>> server =
      verbena::Server::create(*device_, *domain_, served);
  ASSERT_TRUE(server.ok()) << server.status().message();
  (*server)->handle(1, [](const Call&, Reply& reply) {
    reply.buffer(kResponseBytes);
    return CallResult::kOk;
  });
  std::unique_ptr<verbena::Client> client;
  connect_both(
      [&](ControlConnection control) {
        accepted_.emplace(std::move(control));
        EXPECT_TRUE((*server)->connect(*accepted_).ok());
      },
      [&](ControlConnection control) {
        control_.emplace(std::move(control));
        ClientOptions options;
        options.request_slot_bytes = kSlotBytes;
        options.response_slot_bytes = kSlotBytes;
        options.pending = 1;
        Result<std::unique_ptr<verbena::Client>> made =
            verbena::Client::connect(*device_, *domain_, *control_, options);
        ASSERT_TRUE(made.ok()) << made.status().message();
        client = std::move(*made);
      });
  ASSERT_NE(client, nullptr);
  const std::vector<char> large(kLargeBytes, 'x');
  struct Sides {
    uint64_t client_bytes = 0;
    uint64_t server_bytes = 0;
  };
  const auto call = [&](std::span<const char> request) {
    bool done = false;
    Sides copied;
    copied.client_bytes +=
        counted([&] {
          EXPECT_TRUE(client->call_with(1, request, [&](const CallOutcome& outcome) {
            done = true;
            EXPECT_EQ(outcome.result, CallResult::kOk);
          }));
        }).bytes_copied;
    for (int round = 0; round < 10 && !done; ++round) {
      copied.server_bytes += counted([&] { (*server)->poll(); }).bytes_copied;
      copied.client_bytes += counted([&] { client->poll(); }).bytes_copied;
    }
    EXPECT_TRUE(done);
    return copied;
  };
  const Sides small = call(std::span(large).first(kRequestBytes));
  EXPECT_EQ(small.client_bytes, kRequestBytes + 2 * kServiceHeaderBytes);
  EXPECT_EQ(small.server_bytes, 2 * kServiceHeaderBytes);
  // Three parts, each with a header each way.
  const Sides parts = call(large);
  EXPECT_EQ(parts.client_bytes, kLargeBytes + 3 * 2 * kServiceHeaderBytes);
  EXPECT_EQ(parts.server_bytes, kLargeBytes + 3 * 2 * kServiceHeaderBytes);
}

}  // namespace
}  // namespace verbena::rpc_test
