// What MPIs ask of the provider, call by call.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/ofi/provider_for_test.h"
#include "verbena/message.h"

namespace verbena::ofi_test {
namespace {

using testing::HasSubstr;

TEST_F(ProviderTest, MessagesOfEverySizeArrive) {
  for (const size_t size_bytes : {0u, 1u, 8u, 1024u, 2000u, 2048u, 4096u, 100'000u, 3'000'000u}) {
    const std::string text = text_of(size_bytes, size_bytes + 1);
    std::string got(size_bytes + 1, 'x');
    int contexts[2];
    receive(b_, got.data(), got.size(), 7, &contexts[1]);
    send(a_, text, 7, FI_COMPLETION, &contexts[0]);
    const Done received = next(b_);
    ASSERT_EQ(received.error.err, 0);
    EXPECT_EQ(received.entry.op_context, &contexts[1]);
    EXPECT_EQ(received.entry.flags, FI_TAGGED | FI_RECV);
    EXPECT_EQ(received.entry.len, size_bytes);
    EXPECT_EQ(received.entry.tag, 7u);
    EXPECT_EQ(received.source, b_.other);
    EXPECT_EQ(got, text + "x");
    const Done sent = next(a_);
    EXPECT_EQ(sent.error.err, 0);
    EXPECT_EQ(sent.entry.op_context, &contexts[0]);
    EXPECT_EQ(sent.entry.flags, FI_TAGGED | FI_SEND);
  }
  EXPECT_TRUE(nothing_more());
}

// Memory of any size that is the same few bytes again and again.
class RepeatedMemory {
 public:
  static constexpr size_t kPeriodBytes = 3 << 22;  // no divisor of a power of two

  explicit RepeatedMemory(size_t size_bytes) : size_bytes_(size_bytes) {
    const int file = memfd_create("repeated", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file, kPeriodBytes), 0);
    void* const place =
        mmap(nullptr, size_bytes + kPeriodBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(place, MAP_FAILED);
    data_ = static_cast<char*>(place);
    for (size_t at = 0; at < size_bytes; at += kPeriodBytes) {
      EXPECT_EQ(
          mmap(data_ + at, kPeriodBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0),
          data_ + at);
    }
    close(file);
  }
  ~RepeatedMemory() { munmap(data_, size_bytes_ + kPeriodBytes); }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  char* data() const { return data_; }

 private:
  size_t size_bytes_;
  char* data_ = nullptr;
};

TEST_F(ProviderTest, AMessageOfMoreThanOneReadArrives) {
  constexpr size_t kBytes = (size_t{1} << 30) + 5'000'000;
  const RepeatedMemory from(kBytes);
  const RepeatedMemory into(kBytes);
  const std::string text = text_of(RepeatedMemory::kPeriodBytes, 12);
  memcpy(from.data(), text.data(), text.size());
  receive(b_, into.data(), kBytes, 14);
  must_post([&] {
    return fi_tsend(a_.endpoint.get(), from.data(), kBytes, nullptr, a_.other, 14, nullptr);
  });
  const Done received = next(b_);
  EXPECT_EQ(received.error.err, 0);
  EXPECT_EQ(received.entry.len, kBytes);
  EXPECT_EQ(memcmp(into.data(), text.data(), text.size()), 0);
  EXPECT_EQ(fi_cntr_wait(a_.sends.get(), 1, 60'000), 0);
}

TEST_F(ProviderTest, AnEndpointSendsToItself) {
  char got[8] = {};
  receive(a_, got, sizeof(got), 1);
  must_post([&] { return fi_tinject(a_.endpoint.get(), "itself", 7, a_.self, 1); });
  const Done received = next(a_);
  EXPECT_STREQ(got, "itself");
  EXPECT_EQ(received.source, a_.self);
}

TEST_F(ProviderTest, AMessageTooLongForItsReceiveIsTruncated) {
  for (const size_t size_bytes : {100u, 10'000u}) {
    const std::string text = text_of(size_bytes, 3);
    std::string got(65, 'x');
    int context = 0;
    receive(b_, got.data(), 64, 2, &context);
    send(a_, text, 2);
    const Done received = next(b_);
    EXPECT_EQ(received.error.err, FI_ETRUNC);
    EXPECT_EQ(received.error.op_context, &context);
    EXPECT_EQ(received.error.len, 64u);
    EXPECT_EQ(received.error.olen, size_bytes - 64);
    EXPECT_THAT(fi_cq_strerror(b_.queue.get(), received.error.prov_errno, nullptr, nullptr, 0),
                HasSubstr("longer than its receive"));
    EXPECT_EQ(got, text.substr(0, 64) + "x");
  }
}

TEST_F(ProviderTest, WhatLeavesNoEntryIsCounted) {
  char got[3][8] = {};
  for (auto& buffer : got) receive(b_, buffer, sizeof(buffer), 3);
  must_post([&] { return fi_tinject(a_.endpoint.get(), "one", 4, a_.other, 3); });
  send(a_, std::string("two\0", 4), 3);  // selective: no entry without the flag
  send(a_, std::string("three\0", 6), 3, FI_COMPLETION);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(b_).error.err, 0);
  EXPECT_STREQ(got[0], "one");
  EXPECT_STREQ(got[1], "two");
  EXPECT_STREQ(got[2], "three");
  EXPECT_EQ(next(a_).entry.flags, FI_TAGGED | FI_SEND);
  EXPECT_TRUE(nothing_more());
  EXPECT_EQ(fi_cntr_wait(a_.sends.get(), 3, 60'000), 0);
  EXPECT_EQ(fi_cntr_read(a_.sends.get()), 3u);
  EXPECT_EQ(fi_cntr_readerr(a_.sends.get()), 0u);
}

TEST_F(ProviderTest, DataComeWithTheMessage) {
  char got[8] = {};
  receive(b_, got, sizeof(got), 4);
  send(a_, "data", 4, FI_REMOTE_CQ_DATA, nullptr, 0x1234'5678'9abc'def0);
  const Done received = next(b_);
  EXPECT_EQ(received.entry.flags, FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA);
  EXPECT_EQ(received.entry.data, 0x1234'5678'9abc'def0u);
}

TEST_F(ProviderTest, ASendThatIsConfirmedCompletesOnceItIsReceived) {
  send(a_, "late", 5, FI_COMPLETION | FI_DELIVERY_COMPLETE);
  EXPECT_TRUE(nothing_more());
  char got[8] = {};
  receive(b_, got, sizeof(got), 5);
  EXPECT_EQ(next(b_).error.err, 0);
  EXPECT_EQ(next(a_).error.err, 0);
  EXPECT_STREQ(got, "late");
}

TEST_F(ProviderTest, APeekFindsAMessageAndLeavesIt) {
  receive(b_, nullptr, 0, 6, nullptr, FI_PEEK | FI_COMPLETION);
  EXPECT_EQ(next(b_).error.err, FI_ENOMSG);
  send(a_, "found", 6);
  Done found;
  const uint64_t start_ns = now_ns();
  do {
    receive(b_, nullptr, 0, 6, nullptr, FI_PEEK | FI_COMPLETION);
    found = next(b_);
  } while (found.error.err == FI_ENOMSG && now_ns() - start_ns < kLongestWaitNs);
  ASSERT_EQ(found.error.err, 0);
  EXPECT_EQ(found.entry.len, 5u);
  EXPECT_EQ(found.entry.tag, 6u);
  EXPECT_EQ(found.source, b_.other);
  char got[8] = {};
  receive(b_, got, sizeof(got), 6);
  EXPECT_EQ(next(b_).entry.len, 5u);
  EXPECT_STREQ(got, "found");
}

TEST_F(ProviderTest, AClaimedMessageIsReceivedByItsClaimAlone) {
  for (const char* text : {"first", "second", "third"}) send(a_, text, 7);
  fi_context claim{};
  Done found;
  const uint64_t start_ns = now_ns();
  do {
    receive(b_, nullptr, 0, 7, &claim, FI_PEEK | FI_CLAIM | FI_COMPLETION);
    found = next(b_);
  } while (found.error.err == FI_ENOMSG && now_ns() - start_ns < kLongestWaitNs);
  ASSERT_EQ(found.entry.len, 5u);
  char got[2][8] = {};
  receive(b_, got[0], sizeof(got[0]), 7);
  EXPECT_EQ(next(b_).entry.len, 6u);
  EXPECT_STREQ(got[0], "second");
  receive(b_, got[1], sizeof(got[1]), 7, &claim, FI_CLAIM | FI_COMPLETION);
  EXPECT_EQ(next(b_).entry.op_context, &claim);
  EXPECT_STREQ(got[1], "first");
  receive(b_, nullptr, 0, 7, nullptr, FI_PEEK | FI_DISCARD | FI_COMPLETION);
  EXPECT_EQ(next(b_).error.err, 0);
  receive(b_, nullptr, 0, 7, nullptr, FI_PEEK | FI_COMPLETION);
  EXPECT_EQ(next(b_).error.err, FI_ENOMSG);
}

// The context of a claim is the provider's until the message is received.
TEST_F(ProviderTest, AClaimThatTheProgramHasOverwrittenIsRefused) {
  const auto take = [this](fi_context* context, uint64_t flags) {
    const fi_msg_tagged message{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 7, 0, context, 0};
    return fi_trecvmsg(b_.endpoint.get(), &message, flags | FI_CLAIM | FI_COMPLETION);
  };
  fi_context never{};
  EXPECT_EQ(take(&never, 0), -FI_EINVAL);
  EXPECT_EQ(take(&never, FI_DISCARD), -FI_EINVAL);
  for (const uint64_t flags : {uint64_t{0}, uint64_t{FI_DISCARD}}) {
    send(a_, "first", 7);
    fi_context claim{};
    Done found;
    const uint64_t start_ns = now_ns();
    do {
      receive(b_, nullptr, 0, 7, &claim, FI_PEEK | FI_CLAIM | FI_COMPLETION);
      found = next(b_);
    } while (found.error.err == FI_ENOMSG && now_ns() - start_ns < kLongestWaitNs);
    ASSERT_EQ(found.entry.len, 5u);
    for (const int fill : {0x00, 0x01, 0xff}) {
      fi_context spoilt = claim;
      memset(static_cast<void*>(&spoilt), fill, sizeof(spoilt));
      EXPECT_EQ(take(&spoilt, flags), -FI_EINVAL);
    }
    fi_context copy = claim;
    ASSERT_EQ(take(&claim, flags), 0);
    next(b_);
    // It is used once, by a copy of what the context had as well.
    EXPECT_EQ(take(&claim, flags), -FI_EINVAL);
    EXPECT_EQ(take(&copy, flags), -FI_EINVAL);
  }
}

TEST_F(ProviderTest, WhatIsOfAnotherDomainIsRefused) {
  fid_domain* other_domain = nullptr;
  ASSERT_EQ(fi_domain(fabric_.get(), info_.get(), &other_domain, nullptr), 0);
  {
    const Owned<fid_domain> closes_last(other_domain);
    fi_av_attr vector_attributes{};
    fid_av* opened_vector = nullptr;
    ASSERT_EQ(fi_av_open(other_domain, &vector_attributes, &opened_vector, nullptr), 0);
    const Owned<fid_av> vector(opened_vector);
    fi_cq_attr queue_attributes{};
    queue_attributes.format = FI_CQ_FORMAT_TAGGED;
    fid_cq* opened_queue = nullptr;
    ASSERT_EQ(fi_cq_open(other_domain, &queue_attributes, &opened_queue, nullptr), 0);
    const Owned<fid_cq> queue(opened_queue);
    fi_cntr_attr counter_attributes{};
    fid_cntr* opened_counter = nullptr;
    ASSERT_EQ(fi_cntr_open(other_domain, &counter_attributes, &opened_counter, nullptr), 0);
    const Owned<fid_cntr> counter(opened_counter);
    char bytes[64];
    fid_mr* registered = nullptr;
    ASSERT_EQ(fi_mr_reg(other_domain, bytes, sizeof(bytes), FI_REMOTE_READ, 0, 77, 0, &registered,
                        nullptr),
              0);
    const Owned<fid_mr> memory(registered);
    fid_ep* opened = nullptr;
    ASSERT_EQ(fi_endpoint(domain_.get(), info_.get(), &opened, nullptr), 0);
    const Owned<fid_ep> endpoint(opened);
    testing::internal::CaptureStderr();
    EXPECT_EQ(fi_ep_bind(opened, &vector->fid, 0), -FI_EINVAL);
    EXPECT_EQ(fi_ep_bind(opened, &queue->fid, FI_TRANSMIT | FI_RECV), -FI_EINVAL);
    EXPECT_EQ(fi_ep_bind(opened, &counter->fid, FI_SEND), -FI_EINVAL);
    EXPECT_EQ(fi_mr_bind(registered, &opened->fid, 0), -FI_EINVAL);
    EXPECT_EQ(fi_mr_bind(registered, &a_.sends->fid, FI_REMOTE_READ), -FI_EINVAL);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 5) << said;
    EXPECT_THAT(said,
                HasSubstr("fi_ep_bind: the address vector and the endpoint are of two domains"));
  }
}

TEST_F(ProviderTest, OneBufferTakesSeveralMessages) {
  size_t least_bytes = 16;
  ASSERT_EQ(fi_setopt(&b_.endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least_bytes,
                      sizeof(least_bytes)),
            0);
  char buffer[48] = {};
  int context = 0;
  const iovec piece{buffer, sizeof(buffer)};
  const fi_msg message{.msg_iov = &piece,
                       .desc = nullptr,
                       .iov_count = 1,
                       .addr = FI_ADDR_UNSPEC,
                       .context = &context,
                       .data = 0};
  must_post([&] { return fi_recvmsg(b_.endpoint.get(), &message, FI_MULTI_RECV | FI_COMPLETION); });
  for (int i = 0; i < 3; ++i) {
    const std::string text(12, static_cast<char>('a' + i));
    must_post([&] { return fi_inject(a_.endpoint.get(), text.data(), text.size(), a_.other); });
  }
  bool released = false;
  for (int i = 0; i < 3; ++i) {
    const Done received = next(b_);
    EXPECT_EQ(received.entry.op_context, &context);
    ASSERT_EQ(received.entry.buf, buffer + 12 * i);
    EXPECT_EQ(std::string(buffer + 12 * i, 12), std::string(12, static_cast<char>('a' + i)));
    EXPECT_FALSE(released);
    released = (received.entry.flags & FI_MULTI_RECV) != 0;
  }
  EXPECT_TRUE(released);  // 12 bytes are left, less than 16
}

// The queue is bound with FI_SELECTIVE_COMPLETION.
TEST_F(ProviderTest, ReceivesWithoutEntriesTellOfTheirBuffersReleaseAndOfErrors) {
  char buffer[180] = {};
  int context = 0;
  const iovec piece{buffer, sizeof(buffer)};
  const fi_msg message{.msg_iov = &piece,
                       .desc = nullptr,
                       .iov_count = 1,
                       .addr = FI_ADDR_UNSPEC,
                       .context = &context,
                       .data = 0};
  must_post([&] { return fi_recvmsg(b_.endpoint.get(), &message, FI_MULTI_RECV); });
  for (int i = 0; i < 3; ++i) {
    const std::string text(40, static_cast<char>('a' + i));
    must_post([&] { return fi_inject(a_.endpoint.get(), text.data(), text.size(), a_.other); });
  }
  const Done released = next(b_);  // 60 bytes are left, less than 64
  EXPECT_EQ(released.error.err, 0);
  EXPECT_EQ(released.entry.op_context, &context);
  EXPECT_EQ(released.entry.flags & FI_MULTI_RECV, FI_MULTI_RECV);
  EXPECT_EQ(std::string(buffer, 40), std::string(40, 'a'));

  must_post([&] { return fi_recvmsg(b_.endpoint.get(), &message, FI_MULTI_RECV); });
  EXPECT_EQ(fi_cancel(&b_.endpoint->fid, &context), 0);
  const Done cancelled = next(b_);
  EXPECT_EQ(cancelled.error.err, FI_ECANCELED);
  EXPECT_EQ(cancelled.error.op_context, &context);

  char got[4];
  receive(b_, got, sizeof(got), 1, &context, /*flags=*/0);
  send(a_, "more than there is room for", 1);
  const Done truncated = next(b_);
  EXPECT_EQ(truncated.error.err, FI_ETRUNC);
  EXPECT_EQ(truncated.error.op_context, &context);
  receive(b_, got, sizeof(got), 2, &context, /*flags=*/0);
  send(a_, "fits", 2);
  EXPECT_TRUE(nothing_more());
}

// As MPICH's active messages: a header and a payload, gathered, into buffers that take many.
TEST_F(ProviderTest, BuffersOfSeveralMessagesTakeAnyMixOfSizes) {
  constexpr uint64_t kMessages = 2000;
  constexpr uint64_t kInFlight = 64;
  size_t least_bytes = 20'000;
  ASSERT_EQ(fi_setopt(&b_.endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least_bytes,
                      sizeof(least_bytes)),
            0);
  std::vector<char> buffers[2];
  const auto post = [&](std::vector<char>& buffer) {
    buffer.assign(100'000, 'x');
    const iovec piece{buffer.data(), buffer.size()};
    const fi_msg message{.msg_iov = &piece,
                         .desc = nullptr,
                         .iov_count = 1,
                         .addr = FI_ADDR_UNSPEC,
                         .context = &buffer,
                         .data = 0};
    must_post(
        [&] { return fi_recvmsg(b_.endpoint.get(), &message, FI_MULTI_RECV | FI_COMPLETION); });
  };
  for (auto& buffer : buffers) post(buffer);

  struct Sent {
    uint64_t header[2];  // number and size
    std::string payload;
  };
  Random random(11);
  std::vector<std::unique_ptr<Sent>> sent;
  uint64_t posted = 0;
  uint64_t confirmed = 0;
  uint64_t received = 0;
  std::vector<bool> seen(kMessages);
  const uint64_t start_ns = now_ns();
  while ((received < kMessages || confirmed < kMessages) && !HasFatalFailure() &&
         now_ns() - start_ns < kLongestWaitNs) {
    if (posted < kMessages && posted - confirmed < kInFlight) {
      const size_t size_bytes = random.below(4) == 0 ? random.below(100) : random.below(16'000);
      auto one = std::make_unique<Sent>(Sent{{posted, size_bytes}, text_of(size_bytes, posted)});
      const iovec pieces[] = {{one->header, sizeof(one->header)},
                              {one->payload.data(), one->payload.size()}};
      const fi_msg message{.msg_iov = pieces,
                           .desc = nullptr,
                           .iov_count = 2,
                           .addr = a_.other,
                           .context = one.get(),
                           .data = 0};
      must_post([&] { return fi_sendmsg(a_.endpoint.get(), &message, FI_COMPLETION); });
      sent.push_back(std::move(one));
      ++posted;
    }
    for (End* end : {&a_, &b_}) take(*end);
    confirmed += kept_[0].size();
    for (const Done& done : kept_[0]) ASSERT_EQ(done.error.err, 0);
    kept_[0].clear();
    for (const Done& done : std::exchange(kept_[1], {})) {
      ASSERT_EQ(done.error.err, 0) << "of " << done.error.len << " bytes, " << done.error.olen;
      const auto* at = static_cast<const char*>(done.entry.buf);
      uint64_t header[2];
      memcpy(header, at, sizeof(header));
      ASSERT_LT(header[0], kMessages);
      ASSERT_FALSE(seen[header[0]]);
      seen[header[0]] = true;
      ASSERT_EQ(done.entry.len, header[1] + sizeof(header));
      ASSERT_EQ(std::string(at + sizeof(header), header[1]), text_of(header[1], header[0]));
      ++received;
      if ((done.entry.flags & FI_MULTI_RECV) != 0) {
        post(*static_cast<std::vector<char>*>(done.entry.op_context));
      }
    }
  }
  EXPECT_EQ(received, kMessages);
  EXPECT_EQ(confirmed, kMessages);
}

// As of a program that posts all of its sends before its first receive: MPICH would wait inside of
// a send for which there is no room.
TEST_F(ProviderTest, ManyMessagesThatNobodyReceivesYetLeaveRoomForMore) {
  constexpr uint64_t kMessages = 20'000;
  const std::string text(1000, 'm');
  for (uint64_t i = 0; i < kMessages && !HasFatalFailure(); ++i) {
    send(a_, text, i, FI_COMPLETION | FI_DELIVERY_COMPLETE);
  }
  EXPECT_TRUE(kept_[0].empty());
  std::string got(text.size(), '-');
  for (uint64_t i = kMessages; i > 0 && !HasFatalFailure(); --i) {
    receive(b_, got.data(), got.size(), i - 1);
    ASSERT_EQ(next(b_).entry.tag, i - 1);
    ASSERT_EQ(next(a_).error.err, 0);
  }
  EXPECT_EQ(got, text);
}

// The first of them before there is a connection, and none with the help of the receiver.
TEST_F(ProviderTest, AsManySendsAsItPromisesWaitForTheirReceiver) {
  const uint64_t promised = info_->tx_attr->size;
  std::vector<uint64_t> values(3 * promised);
  uint64_t posted = 0;
  ssize_t result = 0;
  for (; posted < values.size(); ++posted) {
    values[posted] = posted;
    if (posted % 2 == 0) {
      uint64_t copied = posted;
      result = fi_tinject(a_.endpoint.get(), &copied, sizeof(copied), a_.other, 15);
      copied = ~uint64_t{0};
    } else {
      result = fi_tsend(a_.endpoint.get(), &values[posted], sizeof(values[posted]), nullptr,
                        a_.other, 15, nullptr);
    }
    if (result != 0) break;
  }
  EXPECT_EQ(result, -FI_EAGAIN);
  EXPECT_GE(posted, promised);
  for (uint64_t i = 0; i < posted && !HasFatalFailure(); ++i) {
    uint64_t got = 0;
    receive(b_, &got, sizeof(got), 15);
    ASSERT_EQ(next(b_).error.err, 0);
    ASSERT_EQ(got, i);
  }
  EXPECT_EQ(fi_cntr_wait(a_.sends.get(), posted, 60'000), 0);
}

TEST_F(ProviderTest, SendsThatWaitFailWithTheirPeer) {
  char name[32];
  size_t size_bytes = sizeof(name);
  ASSERT_EQ(fi_getname(&b_.endpoint->fid, name, &size_bytes), 0);
  name[31] = static_cast<char>(~name[31]);  // another process had this port before
  fi_addr_t nobody = 0;
  ASSERT_EQ(fi_av_insert(a_.vector.get(), name, 1, &nobody, 0, nullptr), 1);
  int contexts[3];
  for (int& context : contexts) {
    const fi_msg_tagged message{nullptr, nullptr, 0, nobody, 0, 0, &context, 0};
    ASSERT_EQ(fi_tsendmsg(a_.endpoint.get(), &message, FI_COMPLETION), 0);
  }
  for (int& context : contexts) {
    const Done failed = next(a_);
    EXPECT_EQ(failed.error.err, FI_ECONNABORTED);
    EXPECT_EQ(failed.error.op_context, &context);
    EXPECT_EQ(failed.error.flags, FI_TAGGED | FI_SEND);
  }
  EXPECT_EQ(fi_tinject(a_.endpoint.get(), name, 1, nobody, 0), -FI_ECONNABORTED);
  EXPECT_EQ(fi_cntr_readerr(a_.sends.get()), 3u);
}

TEST_F(ProviderTest, AnEndpointThatIsClosedSendsWhatWaits) {
  constexpr uint64_t kMessages = 500;
  for (uint64_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(fi_tinject(a_.endpoint.get(), &i, sizeof(i), a_.other, 16), 0);
  }
  std::atomic<bool> closed{false};
  Thread closer = start_thread("closer", [&] {
    a_.endpoint.reset();
    closed = true;
  });
  const uint64_t start_ns = now_ns();
  for (uint64_t i = 0; i < kMessages && !HasFatalFailure(); ++i) {
    uint64_t got = 0;
    const iovec piece{&got, sizeof(got)};
    const fi_msg_tagged message{&piece, nullptr, 1, FI_ADDR_UNSPEC, 16, 0, nullptr, 0};
    EXPECT_EQ(fi_trecvmsg(b_.endpoint.get(), &message, FI_COMPLETION), 0);
    while (kept_[1].empty() && now_ns() - start_ns < kLongestWaitNs) take(b_);
    ASSERT_EQ(kept_[1].size(), 1u);
    EXPECT_EQ(kept_[1][0].error.err, 0);
    EXPECT_EQ(got, i);
    kept_[1].clear();
  }
  while (!closed && now_ns() - start_ns < kLongestWaitNs) take(b_);
  closer.join();
}

// Nobody else looks after the endpoint that has to take them.
TEST_F(ProviderTest, AnEndpointThatIsClosedSendsWhatWaitsToOneOfTheSameThread) {
  constexpr uint64_t kMessages = 500;
  for (uint64_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(fi_tinject(a_.endpoint.get(), &i, sizeof(i), a_.other, 17), 0);
  }
  a_.endpoint.reset();
  for (uint64_t i = 0; i < kMessages && !HasFatalFailure(); ++i) {
    uint64_t got = ~uint64_t{0};
    receive(b_, &got, sizeof(got), 17);
    ASSERT_EQ(next(b_).error.err, 0);
    ASSERT_EQ(got, i);
  }
}

TEST_F(ProviderTest, AnEndpointThatIsClosedConfirmsWhatItReceivedToOneOfTheSameThread) {
  // Until there is a ring, by which more messages go than there are credits for their answers.
  constexpr uint64_t kFirst = 100;
  const uint64_t count = MessengerOptions{}.queue_credits + 10;
  for (uint64_t i = 0; i < kFirst && !HasFatalFailure(); ++i) {
    receive(b_, nullptr, 0, 18);
    send(a_, "", 18);
    ASSERT_EQ(next(b_).error.err, 0);
  }
  for (uint64_t i = 0; i < count; ++i) {
    receive(b_, nullptr, 0, 19);
    const fi_msg_tagged message{nullptr, nullptr, 0, a_.other, 19, 0, nullptr, 0};
    ASSERT_EQ(fi_tsendmsg(a_.endpoint.get(), &message, FI_COMPLETION | FI_DELIVERY_COMPLETE), 0);
  }
  // The sender looks at nothing meanwhile.
  const uint64_t start_ns = now_ns();
  while (kept_[1].size() < count && now_ns() - start_ns < kLongestWaitNs) take(b_);
  ASSERT_EQ(kept_[1].size(), count);
  b_.endpoint.reset();
  for (uint64_t i = 0; i < count && !HasFatalFailure(); ++i) EXPECT_EQ(next(a_).error.err, 0);
}

TEST_F(ProviderTest, AReceiveBoundToASourceTakesNoOthersMessage) {
  char got[2][8] = {};
  int contexts[2];
  must_post([&] {
    const iovec piece{got[0], sizeof(got[0])};
    const fi_msg_tagged message{&piece, nullptr, 1, a_.self, 8, 0, &contexts[0], 0};
    return fi_trecvmsg(a_.endpoint.get(), &message, FI_COMPLETION);
  });
  receive(a_, got[1], sizeof(got[1]), 8, &contexts[1]);
  send(b_, "other", 8);
  EXPECT_EQ(next(a_).entry.op_context, &contexts[1]);
  must_post([&] { return fi_tinject(a_.endpoint.get(), "self", 5, a_.self, 8); });
  EXPECT_EQ(next(a_).entry.op_context, &contexts[0]);
  EXPECT_STREQ(got[0], "self");
}

TEST_F(ProviderTest, ACancelledReceiveSaysSo) {
  char got[8];
  int context = 0;
  receive(b_, got, sizeof(got), 9, &context);
  EXPECT_EQ(fi_cancel(&b_.endpoint->fid, &context), 0);
  const Done cancelled = next(b_);
  EXPECT_EQ(cancelled.error.err, FI_ECANCELED);
  EXPECT_EQ(cancelled.error.op_context, &context);
  EXPECT_EQ(fi_cancel(&b_.endpoint->fid, &context), -FI_ENOENT);
}

TEST_F(ProviderTest, AnAddressThatWasRemovedAndComesBackHasItsNewNumberAsASource) {
  const auto source_of_next = [&] {
    char got[8];
    receive(b_, got, sizeof(got), 10);
    send(a_, "hello", 10);
    return next(b_).source;
  };
  EXPECT_EQ(source_of_next(), b_.other);
  char name[64];
  size_t size_bytes = sizeof(name);
  ASSERT_EQ(fi_getname(&a_.endpoint->fid, name, &size_bytes), 0);
  fi_addr_t again[2] = {};
  for (fi_addr_t& number : again) {
    ASSERT_EQ(fi_av_insert(b_.vector.get(), name, 1, &number, 0, nullptr), 1);
  }
  ASSERT_EQ(fi_av_remove(b_.vector.get(), &b_.other, 1, 0), 0);
  EXPECT_EQ(source_of_next(), again[0]);
  ASSERT_EQ(fi_av_remove(b_.vector.get(), &again[0], 1, 0), 0);
  EXPECT_EQ(source_of_next(), again[1]);
  EXPECT_EQ(fi_tinject(b_.endpoint.get(), name, 1, again[0], 10), -FI_EINVAL);
  ASSERT_EQ(fi_av_remove(b_.vector.get(), &again[1], 1, 0), 0);
  EXPECT_EQ(source_of_next(), FI_ADDR_NOTAVAIL);
}

// Programs wait for room to send while there are entries that they have not read.
TEST_F(ProviderTest, ReadingNoEntriesMakesProgress) {
  char got[8];
  receive(b_, got, sizeof(got), 11);
  send(a_, "connect", 11);
  EXPECT_EQ(next(b_).error.err, 0);
  for (int i = 0; i < 2; ++i) {
    receive(b_, got, sizeof(got), 12);
    must_post([&] { return fi_tinject(b_.endpoint.get(), "self", 5, b_.self, 12); });
  }
  EXPECT_EQ(next(b_).error.err, 0);  // the second entry is in the queue, too
  receive(b_, got, sizeof(got), 13);
  send(a_, "confirm", 13, FI_COMPLETION | FI_DELIVERY_COMPLETE);
  ASSERT_TRUE(kept_[1].empty());
  const uint64_t start_ns = now_ns();
  while (kept_[0].empty() && now_ns() - start_ns < kLongestWaitNs) {
    EXPECT_EQ(fi_cq_read(b_.queue.get(), nullptr, 0), -FI_EAGAIN);
    take(a_);
  }
  ASSERT_EQ(kept_[0].size(), 1u);
  EXPECT_EQ(kept_[0][0].error.err, 0);
}

TEST_F(ProviderTest, WhatCannotBeIsRefused) {
  char bytes[4096] = {};
  EXPECT_EQ(fi_tsend(a_.endpoint.get(), bytes, 1, nullptr, 77, 0, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_tinject(a_.endpoint.get(), bytes, info_->tx_attr->inject_size + 1, a_.other, 0),
            -FI_EMSGSIZE);
  const std::vector<iovec> pieces(5, iovec{bytes, 1});
  EXPECT_EQ(fi_tsendv(a_.endpoint.get(), pieces.data(), nullptr, 5, a_.other, 0, nullptr),
            -FI_EINVAL);
  EXPECT_EQ(fi_trecvv(a_.endpoint.get(), pieces.data(), nullptr, 5, a_.other, 0, 0, nullptr),
            -FI_EINVAL);
  fi_context claim{};
  const fi_msg_tagged message{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 0, 0, &claim, 0};
  EXPECT_EQ(fi_trecvmsg(a_.endpoint.get(), &message, FI_DISCARD), -FI_EINVAL);
  EXPECT_EQ(fi_trecvmsg(a_.endpoint.get(), &message, FI_PEEK | FI_CLAIM | FI_DISCARD), -FI_EINVAL);
  const fi_msg untagged{nullptr, nullptr, 0, FI_ADDR_UNSPEC, &claim, 0};
  EXPECT_EQ(fi_recvmsg(a_.endpoint.get(), &untagged, FI_PEEK), -FI_EBADFLAGS);
  EXPECT_EQ(fi_close(&domain_->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&a_.queue->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&a_.vector->fid), -FI_EBUSY);
  size_t size_bytes = 3;
  EXPECT_EQ(fi_getname(&a_.endpoint->fid, bytes, &size_bytes), -FI_ETOOSMALL);
  EXPECT_EQ(size_bytes, 32u);
  char text[128];
  size_bytes = sizeof(text);
  EXPECT_THAT(fi_av_straddr(a_.vector.get(), bytes, text, &size_bytes), HasSubstr("verbena://"));
  fi_addr_t number = a_.other;
  EXPECT_EQ(fi_av_remove(a_.vector.get(), &number, 1, 0), 0);
  EXPECT_EQ(fi_av_remove(a_.vector.get(), &number, 1, 0), -FI_EINVAL);
}

// Else a program would take what it gets for what it asked for.
TEST_F(ProviderTest, CountsOfBytesAndNamesOfTheProgramsAreRefused) {
  fi_cntr_attr counter_attributes{};
  constexpr int kBytes = FI_CNTR_EVENTS_COMP + 1;  // FI_CNTR_EVENTS_BYTES of libfabric 2
  counter_attributes.events = static_cast<fi_cntr_events>(kBytes);
  fid_cntr* counter = nullptr;
  EXPECT_EQ(fi_cntr_open(domain_.get(), &counter_attributes, &counter, nullptr), -FI_ENOSYS);

  fi_av_attr vector_attributes{};
  vector_attributes.flags = FI_AV_USER_ID;
  fid_av* vector = nullptr;
  EXPECT_EQ(fi_av_open(domain_.get(), &vector_attributes, &vector, nullptr), -FI_ENOSYS);
  char name[64];
  size_t size_bytes = sizeof(name);
  ASSERT_EQ(fi_getname(&b_.endpoint->fid, name, &size_bytes), 0);
  fi_addr_t number = 1234;
  EXPECT_EQ(fi_av_insert(a_.vector.get(), name, 1, &number, FI_AV_USER_ID, nullptr), -FI_EBADFLAGS);
  EXPECT_EQ(number, 1234u);
}

// Else a queue without the endpoint would have its completions: read in vain, and closed before it.
TEST_F(ProviderTest, ABindingThatIsRefusedBindsNothing) {
  fi_cq_attr attributes{};
  attributes.format = FI_CQ_FORMAT_TAGGED;
  fid_cq* queues[2] = {};
  Owned<fid_cq> owned_queues[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fi_cq_open(domain_.get(), &attributes, &queues[i], nullptr), 0);
    owned_queues[i].reset(queues[i]);
  }
  fi_cntr_attr counter_attributes{};
  fid_cntr* counters[2] = {};
  Owned<fid_cntr> owned_counters[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fi_cntr_open(domain_.get(), &counter_attributes, &counters[i], nullptr), 0);
    owned_counters[i].reset(counters[i]);
  }
  fid_ep* endpoint = nullptr;
  ASSERT_EQ(fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr), 0);
  const Owned<fid_ep> owned_endpoint(endpoint);
  ASSERT_EQ(fi_ep_bind(endpoint, &a_.vector->fid, 0), 0);
  ASSERT_EQ(fi_ep_bind(endpoint, &queues[0]->fid, FI_RECV), 0);
  EXPECT_EQ(fi_ep_bind(endpoint, &queues[1]->fid, FI_TRANSMIT | FI_RECV), -FI_EINVAL);
  EXPECT_EQ(fi_close(&owned_queues[1].release()->fid), 0);
  ASSERT_EQ(fi_ep_bind(endpoint, &counters[0]->fid, FI_RECV), 0);
  EXPECT_EQ(fi_ep_bind(endpoint, &counters[1]->fid, FI_SEND | FI_RECV), -FI_EINVAL);
  EXPECT_EQ(fi_close(&owned_counters[1].release()->fid), 0);

  ASSERT_EQ(fi_ep_bind(endpoint, &queues[0]->fid, FI_TRANSMIT), 0);
  ASSERT_EQ(fi_ep_bind(endpoint, &counters[0]->fid, FI_SEND), 0);
  ASSERT_EQ(fi_enable(endpoint), 0);
  char name[64];
  size_t size_bytes = sizeof(name);
  ASSERT_EQ(fi_getname(&endpoint->fid, name, &size_bytes), 0);
  fi_addr_t self = 0;
  ASSERT_EQ(fi_av_insert(a_.vector.get(), name, 1, &self, 0, nullptr), 1);
  int context = 0;
  ASSERT_EQ(fi_tsend(endpoint, "x", 1, nullptr, self, 1, &context), 0);
  fi_cq_tagged_entry entry{};
  const uint64_t start_ns = now_ns();
  while (fi_cq_read(queues[0], &entry, 1) == -FI_EAGAIN && now_ns() - start_ns < kLongestWaitNs) {
  }
  EXPECT_EQ(entry.op_context, &context);
  EXPECT_EQ(fi_cntr_read(counters[0]), 1u);
}

// An endpoint that sends to itself, and whose queue for receives nobody reads.
TEST_F(ProviderTest, AFullQueueKeepsNoOthersEntriesAndCounts) {
  constexpr size_t kReceives = 66;
  fid_cq* opened[2] = {};
  Owned<fid_cq> queues[2];
  for (int i = 0; i < 2; ++i) {
    fi_cq_attr attributes{};
    attributes.format = FI_CQ_FORMAT_TAGGED;
    attributes.size = 64;
    ASSERT_EQ(fi_cq_open(domain_.get(), &attributes, &opened[i], nullptr), 0);
    ASSERT_LT(attributes.size, kReceives);
    queues[i].reset(opened[i]);
  }
  fi_cntr_attr counter_attributes{};
  fid_cntr* counter = nullptr;
  ASSERT_EQ(fi_cntr_open(domain_.get(), &counter_attributes, &counter, nullptr), 0);
  const Owned<fid_cntr> receives(counter);
  fid_ep* endpoint = nullptr;
  ASSERT_EQ(fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr), 0);
  const Owned<fid_ep> owned_endpoint(endpoint);
  ASSERT_EQ(fi_ep_bind(endpoint, &a_.vector->fid, 0), 0);
  ASSERT_EQ(fi_ep_bind(endpoint, &opened[0]->fid, FI_TRANSMIT), 0);
  ASSERT_EQ(fi_ep_bind(endpoint, &opened[1]->fid, FI_RECV), 0);
  ASSERT_EQ(fi_ep_bind(endpoint, &counter->fid, FI_RECV), 0);
  ASSERT_EQ(fi_enable(endpoint), 0);
  char name[64];
  size_t size_bytes = sizeof(name);
  ASSERT_EQ(fi_getname(&endpoint->fid, name, &size_bytes), 0);
  fi_addr_t self = 0;
  ASSERT_EQ(fi_av_insert(a_.vector.get(), name, 1, &self, 0, nullptr), 1);

  char got[8];
  int contexts[kReceives] = {};
  for (int& context : contexts) {
    ASSERT_EQ(fi_trecv(endpoint, got, sizeof(got), nullptr, FI_ADDR_UNSPEC, 1, 0, &context), 0);
  }
  for (size_t i = 1; i < kReceives; ++i) ASSERT_EQ(fi_tinject(endpoint, "x", 1, self, 1), 0);
  int sent = 0;
  ASSERT_EQ(fi_tsend(endpoint, "y", 1, nullptr, self, 1, &sent), 0);
  fi_cq_tagged_entry entry{};
  const auto read = [&](fid_cq* queue) {
    const uint64_t start_ns = now_ns();
    ssize_t result = 0;
    do {
      result = fi_cq_read(queue, &entry, 1);
    } while (result == -FI_EAGAIN && now_ns() - start_ns < kLongestWaitNs);
    return result;
  };
  ASSERT_EQ(read(opened[0]), 1);
  EXPECT_EQ(entry.op_context, &sent);
  EXPECT_EQ(fi_cntr_wait(receives.get(), kReceives, 60'000), 0);
  // In their order, and none is lost.
  for (int& context : contexts) {
    ASSERT_EQ(read(opened[1]), 1);
    EXPECT_EQ(entry.op_context, &context);
  }
  EXPECT_EQ(fi_cq_read(opened[1], &entry, 1), -FI_EAGAIN);
}

// A vector with FI_EVENT, whose queue has room for two events.
class AddressEventsTest : public ProviderTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(set_up());
    fi_eq_attr events_attributes{};
    events_attributes.size = 2;
    fid_eq* events = nullptr;
    ASSERT_EQ(fi_eq_open(fabric_.get(), &events_attributes, &events, nullptr), 0);
    events_.reset(events);
    fi_av_attr attributes{};
    attributes.flags = FI_EVENT;
    fid_av* vector = nullptr;
    ASSERT_EQ(fi_av_open(domain_.get(), &attributes, &vector, nullptr), 0);
    vector_.reset(vector);
    ASSERT_EQ(fi_av_bind(vector, &events->fid, 0), 0);
    size_t size_bytes = sizeof(names_[0]);
    ASSERT_EQ(fi_getname(&a_.endpoint->fid, names_[0], &size_bytes), 0);
  }

  Owned<fid_eq> events_;
  Owned<fid_av> vector_;
  char names_[4][32] = {};  // the first is one
};

TEST_F(AddressEventsTest, EachAddressThatIsNoneIsAnErrorBeforeTheLastEvent) {
  int context = 0;
  fi_addr_t numbers[4] = {};
  // Of synchronous insertions alone: there the context is memory for errors.
  ASSERT_EQ(fi_av_insert(vector_.get(), names_, 4, numbers, FI_SYNC_ERR, &context), 0);
  EXPECT_EQ(context, 0);
  EXPECT_EQ(numbers[0], 0u);
  uint32_t event = 0;
  fi_eq_entry entry{};
  fi_eq_err_entry error{};
  for (uint64_t index = 1; index < 4; ++index) {
    EXPECT_EQ(numbers[index], FI_ADDR_NOTAVAIL);
    ASSERT_EQ(fi_eq_read(events_.get(), &event, &entry, sizeof(entry), 0), -FI_EAVAIL);
    ASSERT_EQ(fi_eq_sread(events_.get(), &event, &entry, sizeof(entry), 0, 0), -FI_EAVAIL);
    ASSERT_EQ(fi_eq_readerr(events_.get(), &error, 0), ssize_t{sizeof(error)});
    EXPECT_EQ(error.fid, &vector_->fid);
    EXPECT_EQ(error.context, &context);
    EXPECT_EQ(error.data, index);
    EXPECT_EQ(error.err, FI_EINVAL);
    EXPECT_THAT(fi_eq_strerror(events_.get(), error.prov_errno, nullptr, nullptr, 0),
                HasSubstr("Invalid"));
  }
  EXPECT_EQ(fi_eq_readerr(events_.get(), &error, 0), -FI_EAGAIN);
  ASSERT_EQ(fi_eq_read(events_.get(), &event, &entry, sizeof(entry), 0), ssize_t{sizeof(entry)});
  EXPECT_EQ(event, uint32_t{FI_AV_COMPLETE});
  EXPECT_EQ(entry.context, &context);
  EXPECT_EQ(entry.data, 1u);
  EXPECT_EQ(fi_eq_read(events_.get(), &event, &entry, sizeof(entry), 0), -FI_EAGAIN);
}

TEST_F(AddressEventsTest, NothingIsInsertedThatCannotBeTold) {
  fi_addr_t number = 0;
  for (fi_addr_t i = 0; i < 2; ++i) {
    ASSERT_EQ(fi_av_insert(vector_.get(), names_, 1, &number, 0, nullptr), 0);
    EXPECT_EQ(number, i);
  }
  EXPECT_EQ(fi_av_insert(vector_.get(), names_, 1, &number, 0, nullptr), -FI_EAGAIN);
  uint32_t event = 0;
  fi_eq_entry entry{};
  ASSERT_GT(fi_eq_read(events_.get(), &event, &entry, sizeof(entry), 0), 0);
  ASSERT_EQ(fi_av_insert(vector_.get(), names_, 1, &number, 0, nullptr), 0);
  EXPECT_EQ(number, 2u);
}

TEST_F(AddressEventsTest, AQueueIsNotClosedBeforeItsVectors) {
  EXPECT_EQ(fi_av_bind(vector_.get(), &events_->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_close(&events_->fid), -FI_EBUSY);
  vector_.reset();
  EXPECT_EQ(fi_close(&events_.release()->fid), 0);
}

}  // namespace
}  // namespace verbena::ofi_test
