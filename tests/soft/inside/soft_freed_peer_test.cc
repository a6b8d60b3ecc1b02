// Peers whose queue pair is gone, or has another peer by now: what stands where it told of its
// accesses says nothing of this process's memory.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/rnic.h"
#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

class FreedPeerTest : public testing::Test {
 protected:
  void SetUp() override {
    responder_.connect(*end_);
    const auto target = responder_.add_buffer(4096);
    ASSERT_EQ(post(end_->qp(), {.opcode = IBV_WR_RDMA_WRITE,
                                .sges = {buffer_->sge(0, 8)},
                                .remote_address = target.address,
                                .rkey = target.key}),
              0);
    ASSERT_EQ(wait_for_one(end_->cq()).status, IBV_WC_SUCCESS);
  }
  // What says of the queue pair that is there that it is in the middle of an access.
  void pretend_flight() { soft::as_qp(end_->qp()).peer.shared->in_flight.store(1); }
  int reset() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    return soft::modify_qp(end_->qp(), &attributes, IBV_QP_STATE);
  }

  Node node_;
  std::optional<Buffer> buffer_{std::in_place, node_.domain, 4096};
  std::optional<End> end_{std::in_place, node_};
  Responder responder_{Place::kOtherProcess};
};

TEST_F(FreedPeerTest, OneThatIsThereIsWaitedFor) {
  pretend_flight();
  EXPECT_EQ(reset(), EBUSY);
  soft::as_qp(end_->qp()).peer.shared->in_flight.store(2);
  EXPECT_EQ(reset(), 0);
}

TEST_F(FreedPeerTest, MemoryOfADestroyedOneIsNotBelieved) {
  responder_.destroy_queue_pair();
  pretend_flight();
  EXPECT_EQ(reset(), 0) << node_.control().last_error();
}

TEST_F(FreedPeerTest, OneWithAnotherPeerIsNotWaitedFor) {
  End other(node_);
  responder_.reset();
  responder_.connect(other);
  pretend_flight();
  EXPECT_EQ(reset(), 0) << node_.control().last_error();
  soft::as_qp(other.qp()).peer.shared->in_flight.store(2);
}

// ---- the memory is used for something else, as after a while it is ----

constexpr size_t kFreedPageBytes = 65536;  // a multiple of any page
constexpr uint64_t kNeverMoves = 1;        // as of an operation that stands still

// Whether it could fill the memory of the destroyed queue pair, which peers still map, with what
// looks like an operation: the page of `word` at least.
bool fill_freed(const Node& node, uint64_t address, uint64_t length_bytes, uint64_t word,
                std::vector<std::unique_ptr<MemoryRegion>>& regions) {
  const uint64_t begin = address / kFreedPageBytes * kFreedPageBytes;
  const uint64_t end =
      (address + length_bytes + kFreedPageBytes - 1) / kFreedPageBytes * kFreedPageBytes;
  // The neighbours may be in use: only the pages that are free. All of them first, since what
  // registers one may take memory that lies where the next one was.
  const auto page_bytes = static_cast<uint64_t>(getpagesize());
  std::vector<void*> pages;
  pages.reserve((end - begin) / page_bytes);
  bool filled = false;
  for (uint64_t at = begin; at < end; at += page_bytes) {
    void* page = mmap(reinterpret_cast<void*>(at), page_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (page == MAP_FAILED) continue;
    pages.push_back(page);
    filled = filled || at == word / page_bytes * page_bytes;
  }
  for (void* page : pages) {
    auto* words = static_cast<uint64_t*>(page);
    std::fill(words, words + page_bytes / sizeof(uint64_t), kNeverMoves);
    regions.push_back(std::make_unique<MemoryRegion>(
        must(MemoryRegion::create(node.domain, page, page_bytes, kAllAccess))));
  }
  return filled;
}

// Destroys its queue pair when it is told to, and uses the memory for something else.
VERBENA_TEST_CHILD(freed_peer) {
  Node node;
  auto end = std::make_unique<End>(node);
  link.put(end->address());
  end->connect(link.get<QueuePairAddress>());
  soft::Qp& qp = soft::as_qp(end->qp());
  const auto address = reinterpret_cast<uint64_t>(qp.shared);
  const auto word = reinterpret_cast<uint64_t>(&qp.shared->in_flight);
  const uint64_t length_bytes = qp.shared_bytes;
  if (link.get<bool>()) qp.shared->in_flight.store(kNeverMoves);
  link.put(true);
  link.get<bool>();
  end.reset();
  std::vector<std::unique_ptr<MemoryRegion>> regions;
  link.put(fill_freed(node, address, length_bytes, word, regions));
  link.get<bool>();
  return 0;
}

class ReusedMemoryTest : public testing::Test {
 protected:
  void start(bool in_flight) {
    end_.connect(child_.link().get<QueuePairAddress>());
    child_.link().put(end_.address());
    child_.link().put(in_flight);
    ASSERT_TRUE(child_.link().get<bool>());
  }
  void free_peer() {
    child_.link().put(true);
    ASSERT_TRUE(child_.link().get<bool>()) << "the peer could not use its memory again";
    // Else there is nothing to be mistaken for an operation.
    ASSERT_EQ(soft::as_qp(end_.qp()).peer.shared->in_flight.load(), kNeverMoves);
  }
  void TearDown() override {
    child_.link().put(true);
    EXPECT_EQ(child_.wait(), 0);
  }
  const VerbsControl& control() const { return node_.control(); }

  Node node_;
  End end_{node_};
  Child child_{"freed_peer"};
};

TEST_F(ReusedMemoryTest, AResetDoesNotWaitForIt) {
  start(false);
  free_peer();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(control().modify_qp(end_.qp(), &attributes, IBV_QP_STATE), 0) << control().last_error();
}

// A segment cannot be taken away from a peer that stands still.
TEST_F(ReusedMemoryTest, DeregistrationDoesNotWaitForIt) {
  const int id = shmget(IPC_PRIVATE, kFreedPageBytes, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  void* segment = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  ASSERT_NE(segment, reinterpret_cast<void*>(-1));
  ibv_mr* region = control().reg_mr(node_.domain.get(), segment, kFreedPageBytes,
                                    reinterpret_cast<uint64_t>(segment), kAllAccess);
  ASSERT_NE(region, nullptr) << control().last_error();
  start(false);
  free_peer();
  EXPECT_EQ(control().dereg_mr(region), 0) << control().last_error();
  shmdt(segment);
}

// The wait for an operation ends with the queue pair, too.
TEST_F(ReusedMemoryTest, AnOperationIsOverWithItsQueuePair) {
  start(true);
  const std::vector<soft::PeerFlight> flights = soft::Rnic::existing()->quiesce_peers();
  ASSERT_EQ(flights.size(), 1u);
  EXPECT_FALSE(flights.front().over());
  free_peer();
  EXPECT_TRUE(flights.front().over());
}

// Nor does the invalidation of a window, which the peer could have been using.
TEST_F(ReusedMemoryTest, InvalidationOfAWindowDoesNotWaitForIt) {
  void* const bytes =
      mmap(nullptr, kFreedPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(bytes, MAP_FAILED);
  ibv_mr* region =
      control().reg_mr(node_.domain.get(), bytes, kFreedPageBytes,
                       reinterpret_cast<uint64_t>(bytes), kAllAccess | IBV_ACCESS_MW_BIND);
  ASSERT_NE(region, nullptr) << control().last_error();
  ibv_mw* window = soft::alloc_mw(node_.domain.get(), IBV_MW_TYPE_2);
  ASSERT_NE(window, nullptr) << control().last_error();
  start(false);
  ibv_send_wr request{};
  ibv_send_wr* bad = nullptr;
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw.mw = window;
  request.bind_mw.rkey = ibv_inc_rkey(window->rkey);
  request.bind_mw.bind_info = {.mr = region,
                               .addr = reinterpret_cast<uint64_t>(bytes),
                               .length = kFreedPageBytes,
                               .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  ASSERT_EQ(ibv_post_send(end_.qp(), &request, &bad), 0);
  ASSERT_EQ(wait_for_one(end_.cq()).status, IBV_WC_SUCCESS);
  const uint32_t key = request.bind_mw.rkey;
  free_peer();
  request = {};
  request.opcode = IBV_WR_LOCAL_INV;
  request.send_flags = IBV_SEND_SIGNALED;
  request.invalidate_rkey = key;
  ASSERT_EQ(ibv_post_send(end_.qp(), &request, &bad), 0);
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(soft::dealloc_mw(window), 0) << control().last_error();
  EXPECT_EQ(control().dereg_mr(region), 0) << control().last_error();
  munmap(bytes, kFreedPageBytes);
}

}  // namespace
}  // namespace verbena::soft_test
