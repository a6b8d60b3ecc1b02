// Remote memory and atomics as the provider has them, call by call.
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <complex>
#include <cstdint>
#include <deque>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/ofi/provider_for_test.h"

namespace verbena::ofi_test {
namespace {

class OneSidedProviderTest : public ProviderTest {
 protected:
  Owned<fid_mr> register_memory(void* memory, size_t size_bytes, uint64_t key,
                                uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE) {
    fid_mr* made = nullptr;
    EXPECT_EQ(fi_mr_reg(domain_.get(), memory, size_bytes, access, 0, key, 0, &made, nullptr), 0);
    return Owned<fid_mr>(made);
  }
  Owned<fid_mr> register_memory(std::string& memory, uint64_t key,
                                uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE) {
    return register_memory(memory.data(), memory.size(), key, access);
  }

  // Of one piece on each side.
  void transfer(bool reads, End& from, std::string& text, uint64_t address, uint64_t key,
                uint64_t flags, void* context = nullptr, uint64_t data = 0) {
    const iovec piece{text.data(), text.size()};
    const fi_rma_iov range{address, text.size(), key};
    const fi_msg_rma message{.msg_iov = &piece,
                             .desc = nullptr,
                             .iov_count = 1,
                             .addr = from.other,
                             .rma_iov = &range,
                             .rma_iov_count = 1,
                             .context = context,
                             .data = data};
    must_post([&] {
      return reads ? fi_readmsg(from.endpoint.get(), &message, flags)
                   : fi_writemsg(from.endpoint.get(), &message, flags);
    });
  }
  // The text stays until the test is over: it may be read until the operation has ended.
  void write(End& from, std::string text, uint64_t address, uint64_t key,
             uint64_t flags = FI_COMPLETION) {
    transfer(false, from, written_.emplace_back(std::move(text)), address, key, flags);
  }
  // Until the counter is there, while both make progress.
  void await(fid_cntr* counter, uint64_t value) {
    const uint64_t start_ns = now_ns();
    while (fi_cntr_read(counter) < value && now_ns() - start_ns < kLongestWaitNs) {
      for (End* end : {&a_, &b_}) take(*end);
    }
    ASSERT_EQ(fi_cntr_read(counter), value);
  }

 private:
  std::deque<std::string> written_;
};

TEST_F(OneSidedProviderTest, BytesAreWrittenAndRead) {
  for (const size_t size_bytes : {0u, 1u, 8u, 1024u, 1888u, 1889u, 4096u, 100'000u, 3'000'000u}) {
    SCOPED_TRACE(size_bytes);
    std::string memory(size_bytes + 20, 'm');
    const Owned<fid_mr> region = register_memory(memory, 7);
    EXPECT_EQ(fi_mr_key(region.get()), 7u);
    std::string text = text_of(size_bytes, size_bytes + 1);
    int contexts[2];
    transfer(false, a_, text, 10, 7, FI_COMPLETION | FI_DELIVERY_COMPLETE, &contexts[0]);
    Done done = next(a_);
    ASSERT_EQ(done.error.err, 0);
    EXPECT_EQ(done.entry.op_context, &contexts[0]);
    EXPECT_EQ(done.entry.flags, FI_RMA | FI_WRITE);
    EXPECT_EQ(memory, std::string(10, 'm') + text + std::string(10, 'm'));
    std::string got(size_bytes, 'x');
    transfer(true, a_, got, 10, 7, FI_COMPLETION, &contexts[1]);
    done = next(a_);
    ASSERT_EQ(done.error.err, 0);
    EXPECT_EQ(done.entry.op_context, &contexts[1]);
    EXPECT_EQ(done.entry.flags, FI_RMA | FI_READ);
    EXPECT_EQ(got, text);
  }
  EXPECT_TRUE(nothing_more());
  await(a_.writes.get(), 9);
  await(a_.reads.get(), 9);
  await(b_.remote.get(), 18);
}

TEST_F(OneSidedProviderTest, MemoryHasCountersOfItsOwn) {
  std::string memory[2] = {std::string(100, 'm'), std::string(3'000'000, 'n')};
  Owned<fid_mr> regions[2] = {register_memory(memory[0], 7), register_memory(memory[1], 8)};
  Owned<fid_cntr> writes[2];
  Owned<fid_cntr> reads;
  for (Owned<fid_cntr>* counter : {&writes[0], &writes[1], &reads}) {
    fi_cntr_attr attributes{};
    fid_cntr* opened = nullptr;
    ASSERT_EQ(fi_cntr_open(domain_.get(), &attributes, &opened, nullptr), 0);
    counter->reset(opened);
  }
  write(a_, "before", 0, 7);
  EXPECT_EQ(next(a_).error.err, 0);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fi_mr_bind(regions[i].get(), &writes[i]->fid, FI_REMOTE_WRITE), 0);
    ASSERT_EQ(fi_mr_bind(regions[i].get(), &reads->fid, FI_REMOTE_READ), 0);
    EXPECT_EQ(fi_mr_bind(regions[i].get(), &reads->fid, FI_REMOTE_READ), -FI_EINVAL);
  }
  EXPECT_EQ(fi_mr_bind(regions[0].get(), &reads->fid, FI_SEND), -FI_EINVAL);
  EXPECT_EQ(fi_mr_bind(regions[0].get(), &a_.queue->fid, FI_REMOTE_WRITE), -FI_EINVAL);
  write(a_, "short", 0, 7);
  write(a_, std::string(3'000'000, 'w'), 0, 8);  // by the device
  std::string got(100, 'x');
  transfer(true, a_, got, 0, 8, FI_COMPLETION);
  // One operation, although it has two ranges of the region.
  const iovec from{const_cast<char*>("abcdef"), 6};
  const fi_rma_iov ranges[2] = {{10, 2, 7}, {20, 4, 7}};
  const fi_msg_rma message{.msg_iov = &from,
                           .desc = nullptr,
                           .iov_count = 1,
                           .addr = a_.other,
                           .rma_iov = ranges,
                           .rma_iov_count = 2,
                           .context = nullptr,
                           .data = 0};
  must_post([&] { return fi_writemsg(a_.endpoint.get(), &message, FI_COMPLETION); });
  write(a_, "too far", 99, 7);
  int failed = 0;
  for (int i = 0; i < 5; ++i) failed += next(a_).error.err == 0 ? 0 : 1;
  EXPECT_EQ(failed, 1);
  // What an atomic modifies is written, also where it fetches.
  uint64_t value = 1;
  uint64_t before = 0;
  must_post([&] {
    return fi_fetch_atomic(a_.endpoint.get(), &value, 1, nullptr, &before, nullptr, a_.other, 48, 7,
                           FI_UINT64, FI_SUM, nullptr);
  });
  await(a_.reads.get(), 2);
  must_post([&] {
    return fi_fetch_atomic(a_.endpoint.get(), nullptr, 1, nullptr, &before, nullptr, a_.other, 48,
                           7, FI_UINT64, FI_ATOMIC_READ, nullptr);
  });
  await(a_.reads.get(), 3);
  // Of no endpoint, so all of the domain make progress for them.
  EXPECT_EQ(fi_cntr_wait(writes[0].get(), 3, 10'000), 0);
  EXPECT_EQ(fi_cntr_read(writes[0].get()), 3u);
  EXPECT_EQ(fi_cntr_read(writes[1].get()), 1u);
  EXPECT_EQ(fi_cntr_read(reads.get()), 2u);
  await(b_.remote.get(), 7);
  EXPECT_EQ(fi_close(&writes[0].get()->fid), -FI_EBUSY);
  regions[0].reset();
  write(a_, "again", 0, 8);
  EXPECT_EQ(next(a_).error.err, 0);
  EXPECT_EQ(fi_cntr_read(writes[0].get()), 3u);
  await(writes[1].get(), 2);
  regions[1].reset();
}

// Nothing but the wait lets both ends go on, also asleep.
TEST_F(OneSidedProviderTest, WhoWaitsForAMemorysCounterMakesProgress) {
  std::string memory(100, 'm');
  fi_cntr_attr attributes{};
  fid_cntr* opened = nullptr;
  ASSERT_EQ(fi_cntr_open(domain_.get(), &attributes, &opened, nullptr), 0);
  const Owned<fid_cntr> writes(opened);
  const Owned<fid_mr> region = register_memory(memory, 7);
  ASSERT_EQ(fi_mr_bind(region.get(), &writes->fid, FI_REMOTE_WRITE), 0);
  EXPECT_EQ(fi_cntr_wait(writes.get(), 1, 20), -FI_ETIMEDOUT);
  write(a_, "text", 0, 7, FI_COMPLETION);
  EXPECT_EQ(fi_cntr_wait(writes.get(), 1, 10'000), 0);
  EXPECT_EQ(memory.substr(0, 5), "textm");
}

// The answer is there before the wait, whose own progress is the first to see it.
TEST_F(OneSidedProviderTest, AWaitForACountEndsAtAnErrorThatItsFirstProgressTakes) {
  std::string memory(100, 'm');
  const Owned<fid_mr> region = register_memory(memory, 7);
  write(a_, "connect", 0, 7);
  EXPECT_EQ(next(a_).error.err, 0);
  char got[8];
  receive(b_, got, sizeof(got), 1);
  must_post([&] { return fi_write(a_.endpoint.get(), "x", 1, nullptr, a_.other, 0, 99, nullptr); });
  // Messages are behind it: who has this one has answered.
  must_post([&] { return fi_tinject(a_.endpoint.get(), "behind", 6, a_.other, 1); });
  const uint64_t start_ns = now_ns();
  while (kept_[1].empty() && now_ns() - start_ns < kLongestWaitNs) take(b_);
  EXPECT_EQ(next(b_).error.err, 0);
  ASSERT_TRUE(kept_[0].empty());
  EXPECT_EQ(fi_cntr_wait(a_.writes.get(), 2, 2'000), -FI_EAVAIL);
  EXPECT_EQ(next(a_).error.err, FI_EKEYREJECTED);
}

TEST_F(OneSidedProviderTest, EveryCallDoesItsPart) {
  std::string memory(100, 'm');
  const Owned<fid_mr> region = register_memory(memory, 7);
  const fi_addr_t peer = a_.other;
  fid_ep* const endpoint = a_.endpoint.get();
  // Completions of calls without flags are counted only: the queue is bound with
  // FI_SELECTIVE_COMPLETION, and the endpoint has no flags.
  must_post([&] { return fi_write(endpoint, "0123456789", 10, nullptr, peer, 0, 7, nullptr); });
  const iovec from[2] = {{const_cast<char*>("abc"), 3}, {const_cast<char*>("defgh"), 5}};
  must_post([&] { return fi_writev(endpoint, from, nullptr, 2, peer, 20, 7, nullptr); });
  must_post([&] { return fi_inject_write(endpoint, "inject", 6, peer, 40, 7); });
  must_post(
      [&] { return fi_writedata(endpoint, "data", 4, nullptr, 0x1234, peer, 60, 7, nullptr); });
  must_post([&] { return fi_inject_writedata(endpoint, "both", 4, 0x5678, peer, 80, 7); });
  await(a_.writes.get(), 5);
  EXPECT_EQ(memory.substr(0, 11), "0123456789m");
  EXPECT_EQ(memory.substr(20, 9), "abcdefghm");
  EXPECT_EQ(memory.substr(40, 7), "injectm");
  EXPECT_EQ(memory.substr(60, 5), "datam");
  EXPECT_EQ(memory.substr(80, 5), "bothm");
  for (const uint64_t data : {0x1234u, 0x5678u}) {
    const Done written = next(b_);
    EXPECT_EQ(written.error.err, 0);
    EXPECT_EQ(written.entry.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
    EXPECT_EQ(written.entry.data, data);
    EXPECT_EQ(written.entry.len, 4u);
    EXPECT_EQ(written.source, b_.other);
  }
  char got[2][16] = {};
  must_post([&] { return fi_read(endpoint, got[0], 10, nullptr, peer, 0, 7, nullptr); });
  const iovec into[2] = {{got[1], 2}, {got[1] + 8, 6}};
  must_post([&] { return fi_readv(endpoint, into, nullptr, 2, peer, 20, 7, nullptr); });
  await(a_.reads.get(), 2);
  EXPECT_STREQ(got[0], "0123456789");
  EXPECT_STREQ(got[1], "ab");
  EXPECT_STREQ(got[1] + 8, "cdefgh");
  EXPECT_TRUE(nothing_more());
}

TEST_F(OneSidedProviderTest, ListsOnBothSides) {
  std::string memory[2] = {std::string(3000, 'm'), std::string(3000, 'n')};
  const iovec exposed[2] = {{memory[0].data(), 3000}, {memory[1].data(), 3000}};
  fid_mr* made = nullptr;
  ASSERT_EQ(fi_mr_regv(domain_.get(), exposed, 2, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 8, 0, &made,
                       nullptr),
            0);
  const Owned<fid_mr> region(made);
  for (const size_t part_bytes : {100u, 1000u}) {
    std::string text = text_of(4 * part_bytes, part_bytes);
    const iovec pieces[2] = {{text.data(), 3 * part_bytes},
                             {text.data() + 3 * part_bytes, part_bytes}};
    // The second one crosses into the second piece.
    const fi_rma_iov ranges[3] = {
        {0, part_bytes, 8}, {3000 - part_bytes, 2 * part_bytes, 8}, {5000, part_bytes, 8}};
    fi_msg_rma message{.msg_iov = pieces,
                       .desc = nullptr,
                       .iov_count = 2,
                       .addr = a_.other,
                       .rma_iov = ranges,
                       .rma_iov_count = 3,
                       .context = nullptr,
                       .data = 0};
    must_post([&] { return fi_writemsg(a_.endpoint.get(), &message, FI_COMPLETION); });
    ASSERT_EQ(next(a_).error.err, 0);
    EXPECT_EQ(memory[0].substr(0, part_bytes), text.substr(0, part_bytes));
    EXPECT_EQ(memory[0].substr(3000 - part_bytes) + memory[1].substr(0, part_bytes),
              text.substr(part_bytes, 2 * part_bytes));
    EXPECT_EQ(memory[1].substr(2000, part_bytes), text.substr(3 * part_bytes));
    std::string got(4 * part_bytes, 'x');
    const iovec into[2] = {{got.data(), part_bytes}, {got.data() + part_bytes, 3 * part_bytes}};
    message.msg_iov = into;
    must_post([&] { return fi_readmsg(a_.endpoint.get(), &message, FI_COMPLETION); });
    ASSERT_EQ(next(a_).error.err, 0);
    EXPECT_EQ(got, text);
  }
}

TEST_F(OneSidedProviderTest, WhatIsNotAllowedIsAnErrorOfItsOperationAlone) {
  std::string memory(10'000, 'm');
  const Owned<fid_mr> both = register_memory(memory, 1);
  const Owned<fid_mr> reading = register_memory(memory, 2, FI_REMOTE_READ);
  const Owned<fid_mr> writing = register_memory(memory, 3, FI_REMOTE_WRITE);
  for (const size_t size_bytes : {8u, 5000u}) {
    std::string text(size_bytes, 't');
    int context = 0;
    const auto error_of = [&](bool reads, uint64_t address, uint64_t key) {
      transfer(reads, a_, text, address, key, FI_COMPLETION, &context);
      const Done done = next(a_);
      EXPECT_EQ(done.error.op_context, &context);
      return done.error.err;
    };
    EXPECT_EQ(error_of(false, 0, 99), FI_EKEYREJECTED);
    EXPECT_EQ(error_of(true, 0, 99), FI_EKEYREJECTED);
    EXPECT_EQ(error_of(false, 0, 2), FI_EACCES);
    EXPECT_EQ(error_of(true, 0, 3), FI_EACCES);
    EXPECT_EQ(error_of(false, 10'000 - size_bytes + 1, 1), FI_EINVAL);
    EXPECT_EQ(error_of(true, ~uint64_t{0} - 7, 1), FI_EINVAL);
    EXPECT_EQ(text, std::string(size_bytes, 't'));
  }
  EXPECT_EQ(memory, std::string(10'000, 'm'));
  EXPECT_EQ(fi_cntr_readerr(a_.writes.get()), 6u);
  // Injected ones tell of errors, too, with the endpoint's context.
  for (const fi_addr_t peer : {a_.other, a_.self}) {
    must_post([&] { return fi_inject_write(a_.endpoint.get(), "x", 1, peer, 0, 99); });
    const Done done = next(a_);
    EXPECT_EQ(done.error.err, FI_EKEYREJECTED);
    EXPECT_EQ(done.error.op_context, &a_);
  }
  // And with their context those that leave no entry else.
  int context = 0;
  for (const fi_addr_t peer : {a_.other, a_.self}) {
    must_post([&] { return fi_write(a_.endpoint.get(), "x", 1, nullptr, peer, 0, 99, &context); });
    const Done done = next(a_);
    EXPECT_EQ(done.error.err, FI_EKEYREJECTED);
    EXPECT_EQ(done.error.op_context, &context);
  }
  write(a_, "fine", 0, 1);
  EXPECT_EQ(next(a_).error.err, 0);
  EXPECT_EQ(memory.substr(0, 5), "finem");
}

TEST_F(OneSidedProviderTest, CallsThatCannotBeAreRefused) {
  char bytes[2048] = {};
  const std::vector<iovec> pieces(5, iovec{bytes, 1});
  const std::vector<fi_rma_iov> ranges(5, fi_rma_iov{0, 1, 1});
  fid_ep* const endpoint = a_.endpoint.get();
  EXPECT_EQ(fi_write(endpoint, bytes, 1, nullptr, 77, 0, 1, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_inject_write(endpoint, bytes, info_->tx_attr->inject_size + 1, a_.other, 0, 1),
            -FI_EMSGSIZE);
  EXPECT_EQ(fi_writev(endpoint, pieces.data(), nullptr, 5, a_.other, 0, 1, nullptr), -FI_EINVAL);
  const fi_msg_rma message{pieces.data(), nullptr, 1, a_.other, ranges.data(), 5, nullptr, 0};
  EXPECT_EQ(fi_writemsg(endpoint, &message, 0), -FI_EINVAL);
  fid_mr* made = nullptr;
  const Owned<fid_mr> first = register_memory(bytes, sizeof(bytes), 1);
  EXPECT_EQ(fi_mr_reg(domain_.get(), bytes, 1, FI_REMOTE_READ, 0, 1, 0, &made, nullptr),
            -FI_ENOKEY);
  EXPECT_EQ(fi_mr_regv(domain_.get(), pieces.data(), 5, FI_REMOTE_READ, 0, 2, 0, &made, nullptr),
            -FI_EINVAL);
  EXPECT_EQ(fi_close(&domain_->fid), -FI_EBUSY);
  // Memory that nobody else reaches needs no key of its own.
  const Owned<fid_mr> local = register_memory(bytes, sizeof(bytes), 1, FI_SEND | FI_RECV);
  EXPECT_NE(local, nullptr);
  EXPECT_EQ(fi_mr_bind(first.get(), &endpoint->fid, 0), 0);
  EXPECT_EQ(fi_mr_enable(first.get()), 0);
  size_t count = 0;
  EXPECT_EQ(fi_atomicvalid(endpoint, FI_DOUBLE, FI_BOR, &count), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_atomicvalid(endpoint, FI_UINT64, FI_ATOMIC_READ, &count), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_atomicvalid(endpoint, FI_UINT64, FI_CSWAP, &count), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_fetch_atomicvalid(endpoint, FI_UINT64, FI_MSWAP, &count), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_compare_atomicvalid(endpoint, FI_UINT64, FI_SUM, &count), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_atomicvalid(endpoint, FI_DATATYPE_LAST, FI_SUM, &count), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_atomic(endpoint, bytes, 1, nullptr, a_.other, 0, 1, FI_DOUBLE, FI_BOR, nullptr),
            -FI_EOPNOTSUPP);
  ASSERT_EQ(fi_atomicvalid(endpoint, FI_UINT64, FI_SUM, &count), 0);
  EXPECT_EQ(
      fi_atomic(endpoint, bytes, count + 1, nullptr, a_.other, 0, 1, FI_UINT64, FI_SUM, nullptr),
      -FI_EMSGSIZE);
  fi_atomic_attr attributes{};
  EXPECT_EQ(fi_query_atomic(domain_.get(), FI_INT32, FI_CSWAP, &attributes, FI_COMPARE_ATOMIC), 0);
  EXPECT_EQ(attributes.size, 4u);
  EXPECT_EQ(attributes.count, 2 * count);
  EXPECT_EQ(fi_query_atomic(domain_.get(), FI_INT32, FI_CSWAP, &attributes, FI_FETCH_ATOMIC),
            -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_query_atomic(domain_.get(), FI_INT32, FI_SUM, &attributes, FI_TAGGED),
            -FI_EBADFLAGS);
}

TEST_F(OneSidedProviderTest, AnEndpointReachesItself) {
  std::string memory(64, 'm');
  const Owned<fid_mr> region = register_memory(memory, 7);
  must_post([&] {
    return fi_writedata(a_.endpoint.get(), "self", 4, nullptr, 5, a_.self, 0, 7, nullptr);
  });
  const Done written = next(a_);
  EXPECT_EQ(written.entry.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
  EXPECT_EQ(written.entry.data, 5u);
  EXPECT_EQ(written.source, a_.self);
  await(a_.writes.get(), 1);
  EXPECT_EQ(memory.substr(0, 5), "selfm");
  char got[4];
  must_post([&] { return fi_read(a_.endpoint.get(), got, 4, nullptr, a_.self, 0, 7, nullptr); });
  await(a_.reads.get(), 1);
  EXPECT_EQ(std::string(got, 4), "self");
  uint64_t value = 40;
  const Owned<fid_mr> word = register_memory(&value, sizeof(value), 8);
  const uint64_t two = 2;
  uint64_t before = 0;
  must_post([&] {
    return fi_fetch_atomic(a_.endpoint.get(), &two, 1, nullptr, &before, nullptr, a_.self, 0, 8,
                           FI_UINT64, FI_SUM, nullptr);
  });
  await(a_.reads.get(), 2);
  EXPECT_EQ(before, 40u);
  EXPECT_EQ(value, 42u);
}

// With FI_FENCE, what comes after a long one does not overtake it.
TEST_F(OneSidedProviderTest, AFenceKeepsTheOrder) {
  std::string memory(2'000'000, 'm');
  const Owned<fid_mr> region = register_memory(memory, 7);
  std::string text(memory.size(), 't');
  for (int i = 0; i < 5; ++i) {
    transfer(false, a_, text, 0, 7, 0);
    write(a_, "after", 100, 7, FI_FENCE | FI_COMPLETION);
    EXPECT_EQ(next(a_).error.err, 0);
    EXPECT_EQ(memory.substr(99, 7), "taftert");
  }
  // A message, too.
  transfer(false, a_, text, 0, 7, 0);
  send(a_, "behind", 5, FI_FENCE);
  char got[8] = {};
  receive(b_, got, sizeof(got), 5);
  EXPECT_EQ(next(b_).error.err, 0);
  EXPECT_EQ(memory[100], 't');
}

TEST_F(OneSidedProviderTest, AFenceWaitsForAMessageToOneself) {
  std::string memory(8, 'm');
  const Owned<fid_mr> region = register_memory(memory, 7);
  const std::string text(100'000, 't');
  int context = 0;
  must_post([&] {
    return fi_tsend(a_.endpoint.get(), text.data(), text.size(), nullptr, a_.self, 5, &context);
  });
  const iovec piece{const_cast<char*>("after"), 5};
  const fi_rma_iov remote{.addr = 0, .len = 5, .key = 7};
  const fi_msg_rma message{.msg_iov = &piece,
                           .desc = nullptr,
                           .iov_count = 1,
                           .addr = a_.self,
                           .rma_iov = &remote,
                           .rma_iov_count = 1,
                           .context = nullptr,
                           .data = 0};
  const auto write_behind_it = [&] { return fi_writemsg(a_.endpoint.get(), &message, FI_FENCE); };
  EXPECT_EQ(write_behind_it(), -FI_EAGAIN);
  const fi_msg_tagged other{.msg_iov = &piece,
                            .desc = nullptr,
                            .iov_count = 1,
                            .addr = a_.self,
                            .tag = 6,
                            .ignore = 0,
                            .context = nullptr,
                            .data = 0};
  EXPECT_EQ(fi_tsendmsg(a_.endpoint.get(), &other, FI_FENCE), -FI_EAGAIN);
  std::string got(text.size(), '\0');
  receive(a_, got.data(), got.size(), 5);
  EXPECT_EQ(next(a_).error.err, 0);
  EXPECT_EQ(got, text);
  must_post(write_behind_it);
  await(a_.writes.get(), 1);
  EXPECT_EQ(memory, "aftermmm");
}

// FI_ORDER_RAW and so on.
TEST_F(OneSidedProviderTest, ReadsAndWritesAreInOrder) {
  constexpr size_t kBytes = 20'000;
  EXPECT_GE(info_->ep_attr->max_order_waw_size, kBytes);
  EXPECT_GE(info_->ep_attr->max_order_raw_size, kBytes);
  EXPECT_GE(info_->ep_attr->max_order_war_size, kBytes);
  std::string memory(kBytes, 'm');
  const Owned<fid_mr> region = register_memory(memory, 7);
  constexpr size_t kRounds = 300;
  std::vector<std::string> sent(kRounds);
  std::vector<std::string> got(kRounds);
  std::string reference = memory;
  std::vector<std::string> expected(kRounds);
  Random random(5);
  for (size_t i = 0; i < kRounds; ++i) {
    const size_t size_bytes = 1 + random.below(random.below(2) == 0 ? kBytes : 100);
    const size_t at = random.below(kBytes - size_bytes + 1);
    sent[i] = text_of(size_bytes, i);
    transfer(false, a_, sent[i], at, 7, 0);
    reference.replace(at, size_bytes, sent[i]);
    got[i].assign(1 + random.below(random.below(2) == 0 ? kBytes : 100), 'x');
    expected[i] = reference.substr(0, got[i].size());
    transfer(true, a_, got[i], 0, 7, 0);
  }
  await(a_.reads.get(), kRounds);
  await(a_.writes.get(), kRounds);
  for (size_t i = 0; i < kRounds; ++i) EXPECT_TRUE(got[i] == expected[i]) << i;
  EXPECT_TRUE(memory == reference);
}

TEST_F(OneSidedProviderTest, EveryAtomicThatIsValidWorks) {
  std::string memory(4096, '\0');
  const Owned<fid_mr> region = register_memory(memory, 7);
  fid_ep* const endpoint = a_.endpoint.get();
  uint32_t works = 0;
  for (int type = 0; type <= FI_LONG_DOUBLE_COMPLEX; ++type) {
    for (int operation = 0; operation <= FI_MSWAP; ++operation) {
      SCOPED_TRACE("type " + std::to_string(type) + ", operation " + std::to_string(operation));
      const auto of = static_cast<fi_datatype>(type);
      const auto what = static_cast<fi_op>(operation);
      size_t count = 0;
      const bool base = fi_atomicvalid(endpoint, of, what, &count) == 0;
      const bool fetch = fi_fetch_atomicvalid(endpoint, of, what, &count) == 0;
      const bool compare = fi_compare_atomicvalid(endpoint, of, what, &count) == 0;
      if (!base && !fetch && !compare) continue;
      ++works;
      const size_t bytes = 896 / count;
      // Zero operands on a zero value: what it was before is zero, and so, but for swaps on less or
      // greater, is what comes. What each does is the business of atomic_operations_test.
      std::fill(memory.begin(), memory.end(), '\0');
      std::string zeros(bytes * count, '\0');
      std::string before(bytes * count, 'x');
      if (base) {
        const uint64_t done = fi_cntr_read(a_.writes.get());
        must_post([&] {
          return fi_atomic(endpoint, zeros.data(), count, nullptr, a_.other, 0, 7, of, what,
                           nullptr);
        });
        await(a_.writes.get(), done + 1);
      }
      const uint64_t done = fi_cntr_read(a_.reads.get());
      must_post([&] {
        return compare ? fi_compare_atomic(endpoint, zeros.data(), count, nullptr, zeros.data(),
                                           nullptr, before.data(), nullptr, a_.other, 0, 7, of,
                                           what, nullptr)
                       : fi_fetch_atomic(endpoint, zeros.data(), count, nullptr, before.data(),
                                         nullptr, a_.other, 0, 7, of, what, nullptr);
      });
      await(a_.reads.get(), done + 1);
      EXPECT_TRUE(before == zeros);
      EXPECT_TRUE(memory == std::string(4096, '\0'));
    }
  }
  EXPECT_EQ(works, 8 * 19u + 3 * 15u + 3 * 9u);
}

TEST_F(OneSidedProviderTest, AtomicsByEveryCall) {
  std::array<int32_t, 8> memory{};
  const Owned<fid_mr> region = register_memory(memory.data(), sizeof(memory), 7);
  fid_ep* const endpoint = a_.endpoint.get();
  const fi_addr_t peer = a_.other;
  int32_t values[4] = {1, 2, 3, 4};
  fi_ioc operands[2] = {{values, 1}, {values + 1, 3}};
  must_post([&] {
    return fi_atomicv(endpoint, operands, nullptr, 2, peer, 0, 7, FI_INT32, FI_SUM, nullptr);
  });
  must_post([&] { return fi_inject_atomic(endpoint, values, 4, peer, 16, 7, FI_INT32, FI_MAX); });
  const fi_rma_ioc ranges[2] = {{4, 2, 7}, {16, 2, 7}};
  int context = 0;
  const fi_msg_atomic message{.msg_iov = operands,
                              .desc = nullptr,
                              .iov_count = 2,
                              .addr = peer,
                              .rma_iov = ranges,
                              .rma_iov_count = 2,
                              .datatype = FI_INT32,
                              .op = FI_PROD,
                              .context = &context,
                              .data = 0};
  must_post([&] { return fi_atomicmsg(endpoint, &message, FI_COMPLETION); });
  Done done = next(a_);
  EXPECT_EQ(done.entry.flags, FI_ATOMIC | FI_WRITE);
  EXPECT_EQ(done.entry.op_context, &context);
  EXPECT_EQ(memory, (std::array<int32_t, 8>{1, 2, 6, 4, 3, 8, 3, 4}));

  int32_t before[4] = {};
  fi_ioc results[2] = {{before, 3}, {before + 3, 1}};
  must_post([&] {
    return fi_fetch_atomicv(endpoint, operands, nullptr, 2, results, nullptr, 2, peer, 0, 7,
                            FI_INT32, FI_ATOMIC_WRITE, nullptr);
  });
  await(a_.reads.get(), 1);
  EXPECT_EQ(std::vector<int32_t>(before, before + 4), (std::vector<int32_t>{1, 2, 6, 4}));
  fi_msg_atomic reading = message;
  reading.op = FI_ATOMIC_READ;
  reading.msg_iov = nullptr;
  reading.iov_count = 0;
  must_post(
      [&] { return fi_fetch_atomicmsg(endpoint, &reading, results, nullptr, 2, FI_COMPLETION); });
  done = next(a_);
  EXPECT_EQ(done.entry.flags, FI_ATOMIC | FI_READ);
  EXPECT_EQ(std::vector<int32_t>(before, before + 4), (std::vector<int32_t>{2, 3, 3, 8}));

  int32_t compared[4] = {1, 9, 3, 9};
  fi_ioc comparing[1] = {{compared, 4}};
  int32_t news[4] = {11, 12, 13, 14};
  fi_ioc swapped[1] = {{news, 4}};
  must_post([&] {
    return fi_compare_atomicv(endpoint, swapped, nullptr, 1, comparing, nullptr, 1, results,
                              nullptr, 2, peer, 0, 7, FI_INT32, FI_CSWAP, nullptr);
  });
  await(a_.reads.get(), 3);
  EXPECT_EQ(memory, (std::array<int32_t, 8>{11, 2, 13, 4, 3, 8, 3, 4}));
  EXPECT_EQ(std::vector<int32_t>(before, before + 4), (std::vector<int32_t>{1, 2, 3, 4}));
  fi_msg_atomic masked = message;
  masked.op = FI_MSWAP;
  masked.msg_iov = swapped;
  masked.iov_count = 1;
  int32_t masks[4] = {-1, 0, 1, -1};
  fi_ioc masking[1] = {{masks, 4}};
  must_post([&] {
    return fi_compare_atomicmsg(endpoint, &masked, masking, nullptr, 1, results, nullptr, 2,
                                FI_COMPLETION);
  });
  EXPECT_EQ(next(a_).error.err, 0);
  EXPECT_EQ(memory, (std::array<int32_t, 8>{11, 11, 13, 4, 3, 14, 3, 4}));
  EXPECT_EQ(std::vector<int32_t>(before, before + 4), (std::vector<int32_t>{2, 13, 3, 8}));
}

TEST_F(OneSidedProviderTest, AtomicsWithoutAccessAreErrors) {
  uint64_t value = 5;
  const Owned<fid_mr> reading = register_memory(&value, 8, 1, FI_REMOTE_READ);
  const Owned<fid_mr> writing = register_memory(&value, 8, 2, FI_REMOTE_WRITE);
  fid_ep* const endpoint = a_.endpoint.get();
  const uint64_t one = 1;
  uint64_t before = 0;
  const auto error_of = [&](uint64_t address, uint64_t key, fi_op operation) {
    const fi_ioc operand{const_cast<uint64_t*>(&one), 1};
    fi_ioc result{&before, 1};
    const fi_rma_ioc range{address, 1, key};
    const fi_msg_atomic message{&operand, nullptr,   1,         a_.other, &range,
                                1,        FI_UINT64, operation, nullptr,  0};
    must_post(
        [&] { return fi_fetch_atomicmsg(endpoint, &message, &result, nullptr, 1, FI_COMPLETION); });
    return next(a_).error.err;
  };
  EXPECT_EQ(error_of(0, 1, FI_SUM), FI_EACCES);
  EXPECT_EQ(error_of(0, 2, FI_SUM), FI_EACCES);
  EXPECT_EQ(error_of(0, 3, FI_SUM), FI_EKEYREJECTED);
  EXPECT_EQ(error_of(1, 1, FI_ATOMIC_READ), FI_EINVAL);
  EXPECT_EQ(value, 5u);
  EXPECT_EQ(error_of(0, 1, FI_ATOMIC_READ), 0);
  EXPECT_EQ(before, 5u);
  EXPECT_EQ(fi_cntr_readerr(a_.reads.get()), 4u);
}

// FI_MR_BASIC, as programs before 1.5 have it.
class BasicMemoryTest : public OneSidedProviderTest {
 protected:
  void SetUp() override { set_up(FI_MR_BASIC); }
};

TEST_F(BasicMemoryTest, KeysAreTheProvidersAndAddressesTheProcesss) {
  EXPECT_EQ(info_->domain_attr->mr_mode, FI_MR_BASIC);
  std::string memory(64, 'm');
  const Owned<fid_mr> one = register_memory(memory, 7);
  const Owned<fid_mr> two = register_memory(memory, 7);
  EXPECT_NE(fi_mr_key(one.get()), fi_mr_key(two.get()));
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  write(a_, "one", address, fi_mr_key(one.get()));
  EXPECT_EQ(next(a_).error.err, 0);
  write(b_, "two", address + 3, fi_mr_key(two.get()));
  EXPECT_EQ(next(b_).error.err, 0);
  EXPECT_EQ(memory.substr(0, 7), "onetwom");
  write(a_, "x", 0, fi_mr_key(one.get()));
  EXPECT_EQ(next(a_).error.err, FI_EINVAL);
}

// A domain and an endpoint more, as Open MPI's one-sided communication opens beside that for
// messages.
TEST_F(OneSidedProviderTest, AnEndpointForRemoteMemoryAlone) {
  const Info hints(fi_allocinfo());
  hints->caps = FI_RMA | FI_ATOMIC;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
  fi_info* found = nullptr;
  ASSERT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found), 0);
  const Info info(found);
  EXPECT_EQ(info->domain_attr->mr_mode, 0);
  EXPECT_EQ(info->domain_attr->mr_key_size, 8u);
  fid_domain* made = nullptr;
  ASSERT_EQ(fi_domain(fabric_.get(), info.get(), &made, nullptr), 0);
  const Owned<fid_domain> domain(made);
  fi_av_attr vector_attributes{};
  fid_av* vector = nullptr;
  ASSERT_EQ(fi_av_open(made, &vector_attributes, &vector, nullptr), 0);
  const Owned<fid_av> owned_vector(vector);
  fi_cq_attr queue_attributes{};
  fid_cq* queue = nullptr;
  ASSERT_EQ(fi_cq_open(made, &queue_attributes, &queue, nullptr), 0);
  const Owned<fid_cq> owned_queue(queue);
  fid_ep* endpoint = nullptr;
  ASSERT_EQ(fi_endpoint(made, info.get(), &endpoint, nullptr), 0);
  const Owned<fid_ep> owned_endpoint(endpoint);
  ASSERT_EQ(fi_ep_bind(endpoint, &vector->fid, 0), 0);
  ASSERT_EQ(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT), 0);
  ASSERT_EQ(fi_enable(endpoint), 0);
  char name[64];
  size_t size_bytes = sizeof(name);
  ASSERT_EQ(fi_getname(&b_.endpoint->fid, name, &size_bytes), 0);
  fi_addr_t peer = 0;
  ASSERT_EQ(fi_av_insert(vector, name, 1, &peer, 0, nullptr), 1);
  std::string memory(64, 'm');
  const Owned<fid_mr> region = register_memory(memory, 7);
  int context = 0;
  must_post([&] {
    // Both domains need progress.
    fi_cq_entry entry;
    static_cast<void>(fi_cq_read(queue, &entry, 0));
    return fi_write(endpoint, "second", 6, nullptr, peer, 0, 7, &context);
  });
  fi_cq_entry entry{};
  const uint64_t start_ns = now_ns();
  while (fi_cq_read(queue, &entry, 1) == -FI_EAGAIN && now_ns() - start_ns < kLongestWaitNs) {
    take(b_);
  }
  EXPECT_EQ(entry.op_context, &context);
  EXPECT_EQ(memory.substr(0, 7), "secondm");
}

TEST_F(OneSidedProviderTest, AnEndpointOfOneDirectionNeedsAQueueForThatAlone) {
  struct Case {
    uint64_t capabilities;
    uint64_t bound;
    uint64_t missing;  // with its queue for the other direction alone it cannot be enabled
  };
  for (const auto& [capabilities, bound, missing] :
       {Case{FI_RMA | FI_REMOTE_READ | FI_REMOTE_WRITE, FI_RECV, 0},
        Case{FI_TAGGED | FI_RECV, FI_RECV, FI_TRANSMIT},
        Case{FI_TAGGED | FI_SEND, FI_TRANSMIT, FI_RECV},
        Case{FI_RMA | FI_WRITE, FI_TRANSMIT, FI_RECV}}) {
    SCOPED_TRACE(capabilities);
    const Info hints(fi_allocinfo());
    hints->caps = capabilities;
    fi_info* found = nullptr;
    ASSERT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found), 0);
    const Info info(found);
    fi_av_attr vector_attributes{};
    fid_av* vector = nullptr;
    ASSERT_EQ(fi_av_open(domain_.get(), &vector_attributes, &vector, nullptr), 0);
    const Owned<fid_av> owned_vector(vector);
    fi_cq_attr queue_attributes{};
    fid_cq* queue = nullptr;
    ASSERT_EQ(fi_cq_open(domain_.get(), &queue_attributes, &queue, nullptr), 0);
    const Owned<fid_cq> owned_queue(queue);
    const auto open_with = [&](uint64_t flags) {
      fid_ep* endpoint = nullptr;
      EXPECT_EQ(fi_endpoint(domain_.get(), info.get(), &endpoint, nullptr), 0);
      EXPECT_EQ(fi_ep_bind(endpoint, &vector->fid, 0), 0);
      EXPECT_EQ(fi_ep_bind(endpoint, &queue->fid, flags), 0);
      return Owned<fid_ep>(endpoint);
    };
    if (missing != 0) {
      EXPECT_EQ(fi_enable(open_with(missing).get()), -FI_ENOCQ);
    }
    const Owned<fid_ep> endpoint = open_with(bound);
    ASSERT_EQ(fi_enable(endpoint.get()), 0);
    if ((capabilities & FI_REMOTE_WRITE) == 0) continue;
    char name[64];
    size_t size_bytes = sizeof(name);
    ASSERT_EQ(fi_getname(&endpoint->fid, name, &size_bytes), 0);
    fi_addr_t target = 0;
    ASSERT_EQ(fi_av_insert(a_.vector.get(), name, 1, &target, 0, nullptr), 1);
    std::string memory(64, 'm');
    const Owned<fid_mr> region = register_memory(memory, 7);
    const auto progress = [&] {
      fi_cq_entry entry;
      EXPECT_EQ(fi_cq_read(queue, &entry, 1), -FI_EAGAIN);
    };
    must_post([&] {
      progress();
      return fi_inject_write(a_.endpoint.get(), "target", 6, target, 0, 7);
    });
    const uint64_t start_ns = now_ns();
    while (fi_cntr_read(a_.writes.get()) == 0 && now_ns() - start_ns < kLongestWaitNs) progress();
    EXPECT_EQ(fi_cntr_read(a_.writes.get()), 1u);
    EXPECT_EQ(memory.substr(0, 7), "targetm");
  }
}

}  // namespace
}  // namespace verbena::ofi_test
