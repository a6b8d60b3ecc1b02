// Gather and scatter lists: random splits of random messages against a model of plain bytes.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/base/runtime.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr uint32_t kMaxSges = 16;
constexpr size_t kScatterBytes = 256 * 1024;

struct Split {
  std::vector<size_t> offsets;
  std::vector<size_t> lengths;
  size_t total() const {
    size_t sum = 0;
    for (const size_t length : lengths) sum += length;
    return sum;
  }
};

// Disjoint parts of a buffer in random order; some are empty.
Split random_split(Random& random, size_t total, size_t count) {
  Split split;
  split.lengths.assign(count, 0);
  for (size_t left = total, i = 0; i < count; ++i) {
    split.lengths[i] = i + 1 == count ? left : random.below(left + 1);
    left -= split.lengths[i];
  }
  for (size_t i = count; i > 1; --i) {
    std::swap(split.lengths[i - 1], split.lengths[random.below(i)]);
  }
  size_t at = random.below(64);
  for (size_t i = 0; i < count; ++i) {
    split.offsets.push_back(at);
    at += split.lengths[i] + random.below(64);
  }
  for (size_t i = count; i > 1; --i) {
    const size_t other = random.below(i);
    std::swap(split.lengths[i - 1], split.lengths[other]);
    std::swap(split.offsets[i - 1], split.offsets[other]);
  }
  return split;
}

std::vector<ibv_sge> sges_of(const Buffer& buffer, const Split& split) {
  std::vector<ibv_sge> all;
  for (size_t i = 0; i < split.offsets.size(); ++i) {
    all.push_back(buffer.sge(split.offsets[i], split.lengths[i]));
  }
  return all;
}

// What `bytes` put through the lists become.
std::vector<std::byte> gather(const std::vector<std::byte>& memory, const Split& split) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < split.offsets.size(); ++i) {
    bytes.insert(bytes.end(), memory.begin() + split.offsets[i],
                 memory.begin() + split.offsets[i] + split.lengths[i]);
  }
  return bytes;
}

void scatter(std::vector<std::byte>& memory, const Split& split,
             const std::vector<std::byte>& bytes) {
  size_t at = 0;
  for (size_t i = 0; i < split.offsets.size() && at < bytes.size(); ++i) {
    const size_t part = std::min(split.lengths[i], bytes.size() - at);
    memcpy(memory.data() + split.offsets[i], bytes.data() + at, part);
    at += part;
  }
}

std::vector<std::byte> random_bytes(Random& random, size_t size) {
  std::vector<std::byte> bytes(size + 8);
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t word = random.next();
    memcpy(&bytes[at], &word, sizeof(word));
  }
  bytes.resize(size);
  return bytes;
}

// Mostly around the sizes where the data path changes its way.
size_t random_size(Random& random) {
  switch (random.below(4)) {
    case 0:
      return random.below(17);
    case 1:
      return 96 + random.below(48);
    case 2:
      return random.below(4096);
    default:
      return random.below(128 * 1024);
  }
}

class ScatterTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Queues, ScatterTest, testing::Bool(), [](const auto& info) {
  return info.param ? "SharedReceiveQueue" : "OwnReceives";
});

TEST_P(ScatterTest, RandomListsMoveTheBytesOfTheModel) {
  Random random(run_seed());
  Node node;
  SharedReceiveQueue srq =
      must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 8, .max_sges = kMaxSges}));
  End a(node, {.max_sges = kMaxSges});
  End b(node, {.shared_receive_queue = GetParam() ? &srq : nullptr, .max_sges = kMaxSges});
  connect(a, b);
  Buffer source(node.domain, kScatterBytes);
  Buffer target(node.domain, kScatterBytes);

  const size_t rounds = iterations(1500);
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<std::byte> here = random_bytes(random, kScatterBytes / 32);
    // Most rounds need little memory, which keeps the model cheap.
    const size_t size = random_size(random);
    if (size > here.size() - 2048) here = random_bytes(random, kScatterBytes);
    std::vector<std::byte> there = random_bytes(random, here.size());
    memcpy(source.data(), here.data(), here.size());
    memcpy(target.data(), there.data(), there.size());
    const Split out = random_split(random, size, 1 + random.below(kMaxSges));
    const size_t slack = random.below(3) == 0 ? random.below(100) : 0;
    const Split in = random_split(random, size + slack, 1 + random.below(kMaxSges));
    const uint64_t kind = random.below(3);
    SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << run_seed() << " round " << round
                                    << " kind " << kind << " size " << size);

    if (kind == 0) {  // SEND
      const int posted = GetParam() ? post_receive(srq.get(), round, sges_of(target, in))
                                    : post_receive(b.qp(), round, sges_of(target, in));
      ASSERT_EQ(posted, 0);
      ASSERT_EQ(post(a.qp(), {.sges = sges_of(source, out)}), 0);
      const ibv_wc received = wait_for_one(b.cq());
      ASSERT_EQ(received.status, IBV_WC_SUCCESS);
      ASSERT_EQ(received.byte_len, size);
      scatter(there, in, gather(here, out));
    } else {
      const size_t offset = random.below(here.size() - size + 1);
      if (kind == 1) {  // WRITE
        ASSERT_EQ(post(a.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                                .sges = sges_of(source, out),
                                .remote_address = target.address(offset),
                                .rkey = target.key()}),
                  0);
        const std::vector<std::byte> bytes = gather(here, out);
        std::copy(bytes.begin(), bytes.end(), there.begin() + offset);
      } else {  // READ
        ASSERT_EQ(post(a.qp(), {.opcode = IBV_WR_RDMA_READ,
                                .sges = sges_of(source, out),
                                .remote_address = target.address(offset),
                                .rkey = target.key()}),
                  0);
        scatter(here, out, {there.begin() + offset, there.begin() + offset + size});
      }
    }
    ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(memcmp(source.data(), here.data(), here.size()), 0) << "at the initiator";
    ASSERT_EQ(memcmp(target.data(), there.data(), there.size()), 0) << "at the responder";
  }
}

// Between the moment a receive is posted and the one it is used, the list may be changed.
TEST_P(ScatterTest, ListsAreCopiedWhenPosted) {
  Node node;
  SharedReceiveQueue srq =
      must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 8, .max_sges = 4}));
  End a(node);
  End b(node, {.shared_receive_queue = GetParam() ? &srq : nullptr});
  connect(a, b);
  Buffer buffer(node.domain, 8192);
  fill_pattern(buffer.data(), 4096, 1);
  for (const size_t size : {64, 2048}) {
    ibv_sge in[2] = {buffer.sge(4096, size / 2), buffer.sge(6144, size / 2)};
    ibv_recv_wr wr{.wr_id = 1, .next = nullptr, .sg_list = in, .num_sge = 2};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(
        GetParam() ? ibv_post_srq_recv(srq.get(), &wr, &bad) : ibv_post_recv(b.qp(), &wr, &bad), 0);
    memset(in, 0, sizeof(in));
    ASSERT_EQ(post(a.qp(), {.sges = {buffer.sge(0, size)}}), 0);
    ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(wait_for_one(b.cq()).status, IBV_WC_SUCCESS);
    EXPECT_EQ(memcmp(buffer.data() + 4096, buffer.data(), size / 2), 0);
    EXPECT_EQ(memcmp(buffer.data() + 6144, buffer.data() + size / 2, size / 2), 0);
  }
}

}  // namespace
}  // namespace verbena::soft_test
