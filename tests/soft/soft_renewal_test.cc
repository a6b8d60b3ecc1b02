// Memory that its owner registers and deregisters while a peer writes to it and reads it: pages
// move into the memory file and back meanwhile. What a WRITE completed with success is there, what
// the owner's CPU wrote beside it too, and no WRITE lands once its registration has ended.
//
// Lines of 64 bytes are the peer's and the owner's in turn, so that each page has both.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"
#include "tests/test_seed.h"

namespace verbena::soft_test {
namespace {

constexpr size_t kRenewedPages = 8;
constexpr size_t kRenewedPageBytes = 4096;
// What the peer writes to, and as much behind it, which others' registrations reach.
constexpr size_t kRenewedBytes = kRenewedPages * kRenewedPageBytes;
constexpr size_t kMappedBytes = 2 * kRenewedBytes;
constexpr size_t kTurnBytes = 64;
constexpr unsigned kTargetOnly = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

// What the owner and its peer agree on, in memory that stays registered.
struct Agreement {
  uint64_t key;        // of the region to write to; the owner's
  uint64_t key_taken;  // the last one that the peer uses; the peer's
  uint64_t over;       // the owner needs no more writes
};

struct Invitation {
  QueuePairAddress address;
  uint64_t agreement = 0;
  uint32_t agreement_key = 0;
  uint64_t memory = 0;
  uint32_t key = 0;
};

// The peer's lines of a page hold one number, those of the owner another one.
uint64_t* peers_line(std::byte* memory, size_t turn) {
  return reinterpret_cast<uint64_t*>(memory + 2 * turn * kTurnBytes);
}
uint64_t* owners_line(std::byte* memory, size_t turn) {
  return reinterpret_cast<uint64_t*>(memory + (2 * turn + 1) * kTurnBytes);
}
constexpr size_t kTurns = kRenewedBytes / (2 * kTurnBytes);
constexpr size_t kOwnersTurns = kMappedBytes / (2 * kTurnBytes);

std::byte* map_pages() {
  void* const pages =
      mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<std::byte*>(pages);
}

// The peer: writes a number to all its lines, one WRITE each, reads them all back, and goes on with
// the next number, until the owner says that it is over or a request fails. The answer to the test
// is the last number of which all WRITEs were done, and whether all reads were right.
struct Written {
  uint64_t whole = 0;
  uint64_t wrong = 0;
  bool failed = false;
};

class Writer {
 public:
  explicit Writer(Link& link) : link_(link) {}

  Written run() {
    End end(node_, {.cq_depth = 512, .send_depth = 256});
    link_.put(end.address());
    const auto invitation = link_.get<Invitation>();
    end.connect(invitation.address);
    Buffer own(node_, kRenewedBytes + kTurnBytes);
    Buffer agreement(node_, sizeof(Agreement));
    link_.put(0);
    Written written;
    uint32_t key = invitation.key;
    for (uint64_t number = 1;; ++number) {
      for (size_t word = 0; word < kTurnBytes / 8; ++word) own.at<uint64_t>(word * 8) = number;
      // Requests are done in order: only the last one of a round needs a completion.
      for (size_t turn = 0; turn < kTurns; ++turn) {
        const bool last = turn + 1 == kTurns;
        if (!request(end,
                     {.opcode = IBV_WR_RDMA_WRITE,
                      .sges = {own.sge(0, kTurnBytes)},
                      .flags = signaled_if(last || turn % 64 == 63),
                      .remote_address = invitation.memory + 2 * turn * kTurnBytes,
                      .rkey = key},
                     last || turn % 64 == 63)) {
          written.failed = true;
          return written;
        }
      }
      written.whole = number;
      if (!request(end,
                   {.opcode = IBV_WR_RDMA_READ,
                    .sges = {own.sge(kTurnBytes, kRenewedBytes)},
                    .remote_address = invitation.memory,
                    .rkey = key},
                   true)) {
        written.failed = true;
        return written;
      }
      for (size_t turn = 0; turn < kTurns; ++turn) {
        const uint64_t* const line = peers_line(own.data() + kTurnBytes, turn);
        for (size_t word = 0; word < kTurnBytes / 8; ++word) {
          if (line[word] != number) ++written.wrong;
        }
      }
      if (!request(end,
                   {.opcode = IBV_WR_RDMA_READ,
                    .sges = {agreement.sge(0, sizeof(Agreement))},
                    .remote_address = invitation.agreement,
                    .rkey = invitation.agreement_key},
                   true)) {
        written.failed = true;
        return written;
      }
      const auto& said = agreement.at<Agreement>(0);
      if (said.over != 0) return written;
      if (static_cast<uint32_t>(said.key) == key) continue;
      key = static_cast<uint32_t>(said.key);
      agreement.at<uint64_t>(offsetof(Agreement, key_taken)) = key;
      request(end,
              {.opcode = IBV_WR_RDMA_WRITE,
               .sges = {agreement.sge(offsetof(Agreement, key_taken), sizeof(uint64_t))},
               .remote_address = invitation.agreement + offsetof(Agreement, key_taken),
               .rkey = invitation.agreement_key},
              true);
    }
  }

 private:
  static bool request(End& end, SendRequest request, bool wait) {
    if (post(end.qp(), std::move(request)) != 0) return false;
    return !wait || wait_for_one(end.cq()).status == IBV_WC_SUCCESS;
  }

  Link& link_;
  Node node_;
};

VERBENA_TEST_CHILD(renewal_writer) {
  while (link.get<bool>()) link.put(Writer(link).run());
  return 0;
}

class RenewalTest : public testing::Test {
 protected:
  RenewalTest() : child_("renewal_writer") {}
  ~RenewalTest() override { child_.link().put(false); }

  // The peer begins to write to `key`.
  void begin(End& end, std::byte* memory, uint32_t key) {
    agreement_.at<Agreement>(0) = {.key = key, .key_taken = key, .over = 0};
    child_.link().put(true);
    end.connect(child_.link().get<QueuePairAddress>());
    child_.link().put(Invitation{.address = end.address(),
                                 .agreement = agreement_.address(),
                                 .agreement_key = agreement_.key(),
                                 .memory = reinterpret_cast<uint64_t>(memory),
                                 .key = key});
    child_.link().get<int>();
  }
  Written end() { return child_.link().get<Written>(); }

  static void write_own(std::byte* memory, uint64_t number) {
    for (size_t turn = 0; turn < kOwnersTurns; ++turn) {
      for (size_t word = 0; word < kTurnBytes / 8; ++word) owners_line(memory, turn)[word] = number;
    }
  }
  static uint64_t wrong_own(std::byte* memory, uint64_t number) {
    uint64_t wrong = 0;
    for (size_t turn = 0; turn < kOwnersTurns; ++turn) {
      for (size_t word = 0; word < kTurnBytes / 8; ++word) {
        if (owners_line(memory, turn)[word] != number) ++wrong;
      }
    }
    return wrong;
  }

  Node node_;
  Buffer agreement_{node_, sizeof(Agreement)};
  Child child_;
};

// Regions of all kinds come and go over, beside and within the one that the peer writes to: pages
// behind it move, those under it must not. And it is itself replaced by another one of the same
// pages again and again.
TEST_F(RenewalTest, RegistrationsComeAndGoWhileThePeerWrites) {
  std::byte* const memory = map_pages();
  ASSERT_NE(memory, nullptr);
  End end(node_);
  const auto make = [&](size_t from, size_t bytes, unsigned access) {
    return must(MemoryRegion::create(node_.domain, memory + from, bytes, access));
  };
  std::optional<MemoryRegion> kept = make(0, kRenewedBytes, kAllAccess);
  begin(end, memory, kept->rkey());
  Random random(run_seed());
  constexpr unsigned kAccesses[] = {0, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_LOCAL_WRITE, kTargetOnly,
                                    kAllAccess};
  std::vector<std::optional<MemoryRegion>> others(4);
  std::optional<MemoryRegion> next;
  auto& said = agreement_.at<Agreement>(0);
  uint64_t wrong = 0;
  const size_t least = iterations(2000);
  constexpr uint64_t kLeastNumbers = 30;
  uint64_t round = 0;
  const auto both_did = [&] {
    return round >= least && load_acquire(peers_line(memory, 0)) >= kLeastNumbers;
  };
  ASSERT_TRUE(wait_until([&] { return load_acquire(peers_line(memory, 0)) > 0; }));
  const uint64_t end_ns = now_ns() + kPatienceNs;
  while (!both_did() && now_ns() < end_ns) {
    write_own(memory, ++round);
    std::optional<MemoryRegion>& other = others[random.below(others.size())];
    if (other.has_value()) {
      other.reset();
    } else {
      const size_t from = random.below(kMappedBytes - 1);
      other.emplace(make(from, 1 + random.below(kMappedBytes - from), kAccesses[random.below(5)]));
    }
    // The old registration ends once the peer uses the new one, or it would be refused.
    if (!next.has_value() && round % 8 == 0) {
      next.emplace(make(0, kRenewedBytes, kAllAccess));
      store_release(&said.key, uint64_t{next->rkey()});
    } else if (next.has_value() && load_acquire(&said.key_taken) == next->rkey()) {
      kept.swap(next);
      next.reset();
    }
    wrong += wrong_own(memory, round);
  }
  store_release(&said.over, uint64_t{1});
  const Written written = this->end();
  EXPECT_FALSE(written.failed);
  EXPECT_GE(written.whole, kLeastNumbers);
  EXPECT_EQ(written.wrong, 0u);
  EXPECT_EQ(wrong, 0u);
  others.clear();
  next.reset();
  kept.reset();
  for (size_t turn = 0; turn < kTurns; ++turn) {
    ASSERT_EQ(*peers_line(memory, turn), written.whole) << "line " << turn;
    ASSERT_EQ(*owners_line(memory, turn), round) << "line " << turn;
  }
  munmap(memory, kMappedBytes);
}

// The only registration ends while the peer writes: its pages become private memory again, with all
// that was done, and without what was not.
TEST_F(RenewalTest, WhatWasWrittenBeforeTheEndOfARegistrationStays) {
  std::byte* const memory = map_pages();
  ASSERT_NE(memory, nullptr);
  Random random(run_seed());
  const size_t rounds = iterations(40);
  uint64_t whole = 0;
  for (uint64_t round = 1; round <= rounds; ++round) {
    std::memset(memory, 0, kMappedBytes);
    End end(node_);
    std::optional<MemoryRegion> kept =
        must(MemoryRegion::create(node_.domain, memory, kRenewedBytes, kAllAccess));
    begin(end, memory, kept->rkey());
    const uint64_t from = random.below(3);
    ASSERT_TRUE(wait_until([&] { return load_acquire(peers_line(memory, 0)) >= from; }));
    for (uint64_t pause = random.below(2000); pause > 0; --pause) cpu_relax();
    write_own(memory, round);
    kept.reset();
    std::vector<std::byte> then(memory, memory + kRenewedBytes);
    EXPECT_EQ(wrong_own(memory, round), 0u);
    const Written written = this->end();
    EXPECT_TRUE(written.failed);
    EXPECT_EQ(written.wrong, 0u);
    // The peer saw its failure, so nothing of it is on its way any more.
    EXPECT_EQ(std::memcmp(memory, then.data(), kRenewedBytes), 0);
    for (size_t turn = 0; turn < kTurns; ++turn) {
      const uint64_t number = *peers_line(memory, turn);
      ASSERT_GE(number, written.whole) << "line " << turn;
      ASSERT_LE(number, written.whole + 1) << "line " << turn;
      // In order.
      ASSERT_LE(number, *peers_line(memory, turn == 0 ? 0 : turn - 1)) << "line " << turn;
    }
    whole += written.whole;
  }
  RecordProperty("numbers", std::to_string(whole));
  munmap(memory, kMappedBytes);
}

}  // namespace
}  // namespace verbena::soft_test
