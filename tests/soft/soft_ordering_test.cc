// What is seen in which order: completions, data before its completion, the last byte of a WRITE.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

TEST(OrderingTest, CompletionsOfOneQueuePairComeInPostingOrder) {
  Random random(run_seed());
  Node node;
  End a(node, {.send_depth = 64});
  End b(node, {.recv_depth = 64});
  connect(a, b);
  Buffer buffer(node.domain, 64 * 1024);
  uint64_t posted = 0;
  uint64_t completed = 0;
  uint64_t receives_posted = 0;
  uint64_t received = 0;
  const uint64_t total = iterations(20'000);
  std::vector<bool> signaled(total, false);
  while (completed < total) {
    // SENDs wait for receives at random, so that the others queue up behind them.
    if (receives_posted < total && receives_posted - received < 64 && random.below(3) != 0) {
      ASSERT_EQ(post_receive(b.qp(), receives_posted++, {buffer.sge(0, 4096)}), 0);
    }
    if (posted < total && random.below(2) == 0) {
      SendRequest request{.id = posted, .sges = {buffer.sge(4096, random.below(300))}};
      // A run of silent ones must end before the send queue is full of them.
      const bool silent = posted + 1 < total && posted % 16 != 0 && random.below(4) == 0;
      request.flags = signaled_if(!silent);
      const uint64_t kind = random.below(4);
      if (kind != 0) {
        request.opcode = kind == 1   ? IBV_WR_RDMA_WRITE
                         : kind == 2 ? IBV_WR_RDMA_READ
                                     : IBV_WR_RDMA_WRITE_WITH_IMM;
        request.remote_address = buffer.address(8192);
        request.rkey = buffer.key();
      }
      const int error = post(a.qp(), request);
      if (error == 0) {
        signaled[posted++] = !silent;
      } else {
        ASSERT_EQ(error, ENOMEM);
      }
    }
    ibv_wc wc[8];
    int got = ibv_poll_cq(a.cq(), 1 + static_cast<int>(random.below(8)), wc);
    ASSERT_GE(got, 0);
    for (int i = 0; i < got; ++i) {
      ASSERT_EQ(wc[i].status, IBV_WC_SUCCESS);
      while (completed < posted && !signaled[completed]) ++completed;
      ASSERT_EQ(wc[i].wr_id, completed);
      ++completed;
    }
    got = ibv_poll_cq(b.cq(), 1 + static_cast<int>(random.below(8)), wc);
    ASSERT_GE(got, 0);
    for (int i = 0; i < got; ++i) {
      ASSERT_EQ(wc[i].status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc[i].wr_id, received++);
    }
  }
}

// ---- across processes ----

struct Target {
  QueuePairAddress peer;
  uint64_t address;
  uint32_t key;
  uint64_t rounds;
  uint64_t seed;
};

VERBENA_TEST_CHILD(write_then_send) {
  Node node;
  End end(node);
  Buffer buffer(node.domain, 128 * 1024);
  link.put(end.address());
  const auto target = link.get<Target>();
  end.connect(target.peer);
  link.put(true);
  Random random(target.seed);
  for (uint64_t round = 1; round <= target.rounds; ++round) {
    const size_t size = random.below(32 * 1024) + 8;
    fill_pattern(buffer.data(), size, round);
    SendRequest write{.opcode = IBV_WR_RDMA_WRITE,
                      .sges = {buffer.sge(0, size)},
                      .flags = 0,
                      .remote_address = target.address + random.below(64),
                      .rkey = target.key};
    struct Note {
      uint64_t offset;
      uint64_t size;
    };
    Note note{write.remote_address - target.address, size};
    memcpy(buffer.data() + 100 * 1024, &note, sizeof(note));
    if (post(end.qp(), write) != 0) return 1;
    if (round % 2 == 0) {
      if (post(end.qp(), {.sges = {buffer.sge(100 * 1024, sizeof(note))}}) != 0) return 2;
    } else {  // the same by an immediate that follows a silent write
      SendRequest last = write;
      last.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      last.sges = {buffer.sge(100 * 1024, sizeof(note))};
      last.remote_address = target.address + 64 * 1024;
      last.flags = IBV_SEND_SIGNALED;
      if (post(end.qp(), last) != 0) return 3;
    }
    if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 4;
    link.get<bool>();  // the other side has looked
  }
  return 0;
}

TEST(OrderingTest, DataOfAWriteIsThereWhenTheFollowingReceiveCompletes) {
  Node node;
  End end(node);
  Buffer buffer(node.domain, 256 * 1024);
  Child child("write_then_send");
  const auto address = child.link().get<QueuePairAddress>();
  end.connect(address);
  const uint64_t rounds = iterations(3000);
  child.link().put(Target{end.address(), buffer.address(), buffer.key(), rounds, run_seed()});
  child.link().get<bool>();
  for (uint64_t round = 1; round <= rounds; ++round) {
    ASSERT_EQ(post_receive(end.qp(), round, {buffer.sge(128 * 1024, 64)}), 0);
    const ibv_wc wc = wait_for_one(end.cq());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    const size_t note = wc.opcode == IBV_WC_RECV ? 128 * 1024 : 64 * 1024;
    const uint64_t offset = buffer.at<uint64_t>(note);
    const uint64_t size = buffer.at<uint64_t>(note + 8);
    ASSERT_TRUE(has_pattern(buffer.data() + offset, size, round))
        << "VERBENA_SEED=" << run_seed() << " round " << round;
    child.link().put(true);
  }
  EXPECT_EQ(child.wait(), 0);
}

// Writes messages whose every byte is the round's number, and waits for the answer.
VERBENA_TEST_CHILD(last_byte) {
  Node node;
  End end(node);
  Buffer buffer(node.domain, 256 * 1024);
  link.put(end.address());
  const auto target = link.get<Target>();
  end.connect(target.peer);
  link.put(Responder::Memory{buffer.address(), buffer.key()});
  link.get<bool>();
  Random random(target.seed);
  auto* answered = reinterpret_cast<uint64_t*>(buffer.data());
  for (uint64_t round = 1; round <= target.rounds; ++round) {
    const size_t size = random.below(4) == 0 ? 1 + random.below(64 * 1024) : 1 + random.below(300);
    const size_t offset = 4096 + random.below(128);
    const auto mark = static_cast<unsigned char>(1 + round % 250);
    // From one to three pieces.
    const size_t pieces = 1 + random.below(3);
    std::vector<ibv_sge> sges;
    memset(buffer.data() + 4096, mark, size);
    for (size_t i = 0, at = 0; i < pieces; ++i) {
      const size_t part = i + 1 == pieces ? size - at : random.below(size - at + 1);
      sges.push_back(buffer.sge(4096 + at, part));
      at += part;
    }
    if (post(end.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                        .sges = sges,
                        .flags = signaled_if(round % 64 == 0),
                        .remote_address = target.address + offset,
                        .rkey = target.key}) != 0) {
      return 1;
    }
    if (round % 64 == 0 && wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 2;
    if (!wait_until([&] { return load_acquire(answered) >= round; })) return 3;
  }
  return 0;
}

TEST(OrderingTest, TheLastByteOfAWriteLandsLast) {
  Node node;
  End end(node);
  Buffer buffer(node.domain, 256 * 1024);
  Child child("last_byte");
  const auto address = child.link().get<QueuePairAddress>();
  end.connect(address);
  const uint64_t rounds = iterations(30'000);
  child.link().put(Target{end.address(), buffer.address(), buffer.key(), rounds, run_seed()});
  const auto answer = child.link().get<Responder::Memory>();
  child.link().put(true);
  Random random(run_seed());
  auto* number = reinterpret_cast<uint64_t*>(buffer.data());
  for (uint64_t round = 1; round <= rounds; ++round) {
    const size_t size = random.below(4) == 0 ? 1 + random.below(64 * 1024) : 1 + random.below(300);
    const size_t offset = 4096 + random.below(128);
    const auto mark = static_cast<unsigned char>(1 + round % 250);
    const size_t pieces = 1 + random.below(3);
    for (size_t i = 0, at = 0; i + 1 < pieces; ++i) at += random.below(size - at + 1);
    const auto* bytes = reinterpret_cast<const unsigned char*>(buffer.data()) + offset;
    ASSERT_TRUE(wait_until([&] { return load_acquire(bytes + size - 1) == mark; }))
        << "round " << round;
    size_t wrong = 0;
    for (size_t at = 0; at < size; ++at) wrong += bytes[at] != mark ? 1 : 0;
    ASSERT_EQ(wrong, 0u) << "of " << size << " bytes at offset " << offset << " in round " << round
                         << " came after the last one; VERBENA_SEED=" << run_seed();
    memset(buffer.data() + offset, 0, size);
    *number = round;
    ASSERT_EQ(post(end.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                              .sges = {buffer.sge(0, 8)},
                              .flags = signaled_if(round % 64 == 0),
                              .remote_address = answer.address,
                              .rkey = answer.key}),
              0);
    if (round % 64 != 0) continue;
    ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(child.wait(), 0);
}

// Eight bytes that one aligned store can carry are never seen half.
VERBENA_TEST_CHILD(eight_bytes) {
  Node node;
  End end(node);
  Buffer buffer(node.domain, 4096);
  link.put(end.address());
  const auto target = link.get<Target>();
  end.connect(target.peer);
  link.put(true);
  for (uint64_t round = 1; round <= target.rounds; ++round) {
    buffer.at<uint64_t>(0) = (round & 0xffff) * 0x0001000100010001u;
    if (post(end.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                        .sges = {buffer.sge(0, 8)},
                        .flags = signaled_if(round % 64 == 0),
                        .remote_address = target.address,
                        .rkey = target.key}) != 0) {
      return 1;
    }
    if (round % 64 == 0 && wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 2;
  }
  link.put(true);
  link.get<bool>();
  return 0;
}

TEST(OrderingTest, AnAlignedWordIsWrittenWhole) {
  Node node;
  End end(node);
  Buffer buffer(node.domain, 4096);
  Child child("eight_bytes");
  const auto address = child.link().get<QueuePairAddress>();
  end.connect(address);
  child.link().put(Target{end.address(), buffer.address(), buffer.key(), 64 * 1000, 0});
  child.link().get<bool>();
  auto* word = reinterpret_cast<uint64_t*>(buffer.data());
  while (!child.link().readable()) {
    const uint64_t value = load_acquire(word);
    const uint64_t low = value & 0xffff;
    ASSERT_EQ(value, low * 0x0001000100010001u);
  }
  child.link().get<bool>();
  child.link().put(true);
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace verbena::soft_test
