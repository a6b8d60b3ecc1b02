// Peers that stand still in the middle of an access to this process's memory: stopped by a signal,
// and continued or killed later. What was taken away from them stays out of their reach.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/rnic.h"
#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr unsigned kWriteAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
// One message takes long enough to be stopped in its middle.
constexpr size_t kMessageBytes = 64 << 20;
constexpr size_t kPageBytes = 65536;  // a multiple of any page
constexpr uint32_t kStandingReceives = 4096;

struct StandingTarget {
  QueuePairAddress peer;
  uint64_t address;
  uint32_t key;
  ibv_wr_opcode opcode;
};

// Posts one message after the other until one fails, and tells how.
VERBENA_TEST_CHILD(writer) {
  Node node;
  Buffer source(node.domain, kMessageBytes);
  memset(source.data(), 'w', kMessageBytes);
  End end(node);
  link.put(end.address());
  const auto target = link.get<StandingTarget>();
  end.connect(target.peer, kImpatient);
  ibv_wc_status status = IBV_WC_SUCCESS;
  while (status == IBV_WC_SUCCESS) {
    if (post(end.qp(), {.opcode = target.opcode,
                        .sges = {source.sge(0, kMessageBytes)},
                        .remote_address = target.address,
                        .rkey = target.key}) != 0) {
      return 1;
    }
    status = wait_for_one(end.cq()).status;
  }
  link.put(status);
  link.get<bool>();
  return 0;
}

// Memory as the program got it; regions come and go.
class Memory {
 public:
  explicit Memory(int flags = MAP_PRIVATE)
      : bytes_(static_cast<std::byte*>(mmap(nullptr, kMessageBytes, PROT_READ | PROT_WRITE,
                                            flags | MAP_ANONYMOUS | MAP_POPULATE, -1, 0))) {}
  ~Memory() { munmap(bytes_, kMessageBytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return bytes_; }
  char byte_at(size_t at) const { return load_acquire(reinterpret_cast<const char*>(bytes_ + at)); }
  // Not std::all_of: what a peer writes meanwhile must be seen.
  bool is_all(char value) const {
    for (size_t at = 0; at < kMessageBytes; at += 8) {
      uint64_t expected;
      memset(&expected, value, sizeof(expected));
      if (load_relaxed(reinterpret_cast<const uint64_t*>(bytes_ + at)) != expected) return false;
    }
    return true;
  }

 private:
  std::byte* bytes_;
};

class StandingPeerTest : public testing::Test {
 protected:
  ibv_mr* add_region(const Memory& memory, size_t bytes = kMessageBytes, size_t offset = 0) {
    const auto address = reinterpret_cast<uint64_t>(memory.data() + offset);
    ibv_mr* region =
        control().reg_mr(node_.domain.get(), memory.data() + offset, bytes, address, kWriteAccess);
    EXPECT_NE(region, nullptr) << control().last_error();
    return region;
  }
  const VerbsControl& control() const { return node_.control(); }

  void start_writer(const ibv_mr* region, ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    end_.emplace(node_, EndOptions{.recv_depth = kStandingReceives});
    if (opcode == IBV_WR_SEND) {
      for (uint64_t id = 0; id < kStandingReceives; ++id) {
        ASSERT_EQ(post_receive(end_->qp(), id,
                               {{reinterpret_cast<uint64_t>(region->addr),
                                 static_cast<uint32_t>(region->length), region->lkey}}),
                  0);
      }
    }
    child_.emplace("writer");
    end_->connect(child_->link().get<QueuePairAddress>(), kImpatient);
    child_->link().put(StandingTarget{end_->address(), reinterpret_cast<uint64_t>(region->addr),
                                      region->rkey, opcode});
  }

  // Until it is in the middle of a message.
  void stop_writer() {
    const std::atomic<uint64_t>& flight = soft::as_qp(end_->qp()).peer.shared->in_flight;
    ASSERT_TRUE(wait_until([&] {
      child_->signal(SIGSTOP);
      siginfo_t info{};
      waitid(P_PID, static_cast<id_t>(child_->pid()), &info, WSTOPPED | WNOWAIT);
      if (flight.load(std::memory_order_acquire) % 2 != 0) return true;
      child_->signal(SIGCONT);
      return false;
    }));
  }
  // To the end of what it was at.
  ibv_wc_status continue_writer() {
    child_->signal(SIGCONT);
    return child_->link().get<ibv_wc_status>();
  }
  // Whether its pages are now those that a peer can map.
  static bool is_shared(const Memory& memory) {
    return soft::Rnic::existing()->pages().shares_any(memory.data(), kMessageBytes);
  }
  void expect_busy(int error) {
    EXPECT_EQ(error, EBUSY);
    EXPECT_NE(std::string(control().last_error()).find(std::to_string(child_->pid())),
              std::string::npos)
        << control().last_error();
    EXPECT_NE(std::string(control().last_error()).find("is stopped in the middle"),
              std::string::npos)
        << control().last_error();
  }

  Node node_;
  std::optional<End> end_;
  std::optional<Child> child_;
};

TEST_F(StandingPeerTest, DeregisteredMemoryIsOutOfReach) {
  Memory memory;
  ibv_mr* region = add_region(memory);
  start_writer(region);
  stop_writer();
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  memset(memory.data(), 'p', kMessageBytes);
  EXPECT_EQ(continue_writer(), IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(memory.is_all('p'));
}

TEST_F(StandingPeerTest, SoAreBuffersOfReceives) {
  Memory memory;
  ibv_mr* region = add_region(memory);
  start_writer(region, IBV_WR_SEND);
  stop_writer();
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  memset(memory.data(), 'p', kMessageBytes);
  EXPECT_EQ(continue_writer(), IBV_WC_REM_OP_ERR);
  EXPECT_TRUE(memory.is_all('p'));
}

// One that never stops learns of it in the middle of a message, too.
TEST_F(StandingPeerTest, ARunningPeerEndsInTheMiddle) {
  Memory memory;
  ibv_mr* region = add_region(memory);
  start_writer(region);
  ASSERT_TRUE(wait_until([&] { return memory.byte_at(kMessageBytes - 1) != 0; }));
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  memset(memory.data(), 'p', kMessageBytes);
  EXPECT_EQ(child_->link().get<ibv_wc_status>(), IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(memory.is_all('p'));
}

TEST_F(StandingPeerTest, TheSameMemoryCanBeRegisteredAgain) {
  Memory memory;
  ibv_mr* region = add_region(memory);
  start_writer(region);
  stop_writer();
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  memset(memory.data(), 'p', kMessageBytes);
  // Through the kernel as long as the peer may write to what was there before.
  region = add_region(memory);
  EXPECT_FALSE(is_shared(memory));
  EXPECT_EQ(continue_writer(), IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(memory.is_all('p'));
  ASSERT_EQ(control().dereg_mr(region), 0);
  region = add_region(memory);
  EXPECT_TRUE(is_shared(memory));
  EXPECT_TRUE(memory.is_all('p'));
  ASSERT_EQ(control().dereg_mr(region), 0);
}

TEST_F(StandingPeerTest, NewMemoryOfTheLibraryDoesNotLieThereMeanwhile) {
  const soft::Rnic& rnic = *soft::Rnic::existing();
  auto memory = std::make_unique<Memory>();
  ibv_mr* region = add_region(*memory);
  start_writer(region);
  stop_writer();
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  std::byte* const begin = memory->data();
  memory.reset();
  // The kernel gives the addresses out again at once.
  auto& pages = const_cast<soft::Rnic&>(rnic).pages();
  void* made = must(pages.map_new(kMessageBytes));
  EXPECT_TRUE(made >= begin + kMessageBytes ||
              static_cast<std::byte*>(made) + kMessageBytes <= begin);
  EXPECT_EQ(continue_writer(), IBV_WC_REM_ACCESS_ERR);
  const auto* words = static_cast<const uint64_t*>(made);
  for (size_t word = 0; word < kMessageBytes / 8; ++word) ASSERT_EQ(load_relaxed(words + word), 0u);
  pages.unmap_new(made, kMessageBytes);
}

TEST_F(StandingPeerTest, ItsDeathGivesEverythingBack) {
  Memory memory;
  ibv_mr* region = add_region(memory);
  start_writer(region);
  stop_writer();
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  memset(memory.data(), 'p', kMessageBytes);
  child_->kill();
  ASSERT_TRUE(wait_until([&] { return state_of(node_, end_->qp()) == IBV_QPS_ERR; }));
  region = add_region(memory);
  EXPECT_TRUE(is_shared(memory));
  EXPECT_TRUE(memory.is_all('p'));
  ASSERT_EQ(control().dereg_mr(region), 0);
}

// Pages that another registration covers have to stay where they are.
TEST_F(StandingPeerTest, OverlappingRegionsHaveToWait) {
  Memory memory;
  ibv_mr* region = add_region(memory);
  ibv_mr* other = add_region(memory, kPageBytes, kMessageBytes - kPageBytes);
  start_writer(region);
  stop_writer();
  expect_busy(control().dereg_mr(region));
  EXPECT_TRUE(is_shared(memory));
  // The key is invalid, and the region is still there to be deregistered.
  EXPECT_EQ(continue_writer(), IBV_WC_REM_ACCESS_ERR);
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  EXPECT_FALSE(soft::Rnic::existing()->pages().shares_any(memory.data(), kPageBytes));
  EXPECT_TRUE(is_shared(memory));
  ASSERT_EQ(control().dereg_mr(other), 0) << control().last_error();
  EXPECT_FALSE(is_shared(memory));
}

TEST_F(StandingPeerTest, MemoryThatIsReachedThroughTheKernelHasToWait) {
  Memory memory(MAP_SHARED);
  ibv_mr* region = add_region(memory);
  start_writer(region);
  stop_writer();
  expect_busy(control().dereg_mr(region));
  child_->kill();
  ASSERT_TRUE(wait_until([&] { return state_of(node_, end_->qp()) == IBV_QPS_ERR; }));
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
}

TEST_F(StandingPeerTest, ASystemVSegmentHasToWait) {
  const int id = shmget(IPC_PRIVATE, kMessageBytes, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  void* const memory = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  ASSERT_NE(reinterpret_cast<intptr_t>(memory), -1);
  ibv_mr* region = control().reg_mr(node_.domain.get(), memory, kMessageBytes,
                                    reinterpret_cast<uint64_t>(memory), kWriteAccess);
  ASSERT_NE(region, nullptr) << control().last_error();
  start_writer(region);
  stop_writer();
  expect_busy(control().dereg_mr(region));
  EXPECT_NE(std::string(control().last_error()).find("System V segment"), std::string::npos)
      << control().last_error();
  EXPECT_EQ(continue_writer(), IBV_WC_REM_ACCESS_ERR);
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  shmdt(memory);
}

TEST_F(StandingPeerTest, ForeignMemoryIsTakenInTheMiddleOfAMessage) {
  Memory memory(MAP_SHARED);
  ibv_mr* region = add_region(memory);
  start_writer(region);
  ASSERT_TRUE(wait_until([&] { return memory.byte_at(0) != 0; }));
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  memset(memory.data(), 'p', kMessageBytes);
  EXPECT_EQ(child_->link().get<ibv_wc_status>(), IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(memory.is_all('p'));
}

// What a queue pair's peer may still write lies in regions that stay registered.
TEST_F(StandingPeerTest, ItsQueuePairIsNotDestroyed) {
  for (const bool continued : {true, false}) {
    Memory memory;
    ibv_mr* region = add_region(memory);
    start_writer(region);
    stop_writer();
    ibv_qp* qp = end_->qp();
    expect_busy(control().destroy_qp(qp));
    expect_busy(control().destroy_qp(qp));
    if (continued) {
      // The gate was shut in the middle of a message.
      EXPECT_EQ(continue_writer(), IBV_WC_RETRY_EXC_ERR);
    } else {
      child_->kill();
    }
    ASSERT_TRUE(wait_until([&] { return soft::as_qp(qp).peer.process->dead() || continued; }));
    end_->close();  // destroys it now
    memset(memory.data(), 'p', kMessageBytes);
    EXPECT_TRUE(memory.is_all('p'));
    end_.reset();
    child_.reset();
    ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
  }
}

TEST_F(StandingPeerTest, NorReset) {
  Memory memory;
  ibv_mr* region = add_region(memory);
  start_writer(region);
  stop_writer();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  expect_busy(control().modify_qp(end_->qp(), &attributes, IBV_QP_STATE));
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  expect_busy(control().modify_qp(end_->qp(), &attributes, kInit));
  EXPECT_EQ(continue_writer(), IBV_WC_RETRY_EXC_ERR);
  attributes.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(control().modify_qp(end_->qp(), &attributes, IBV_QP_STATE), 0)
      << control().last_error();
  attributes.qp_state = IBV_QPS_INIT;
  EXPECT_EQ(control().modify_qp(end_->qp(), &attributes, kInit), 0) << control().last_error();
  ASSERT_EQ(control().dereg_mr(region), 0) << control().last_error();
}

}  // namespace
}  // namespace verbena::soft_test
