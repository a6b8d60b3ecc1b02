// Memory that the application itself shares: System V and POSIX segments, memfds, files. Remote
// writes, reads and atomics work on all of it, and no file that shrinks ends a process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_control.h"
#include "tests/soft/places.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr size_t kBytes = 64 * 1024;
constexpr size_t kSkipped = 4096 + 8;  // the region starts within the mapping

enum class Kind { kSystemV, kMemfd, kAnonymous, kFile };
std::ostream& operator<<(std::ostream& out, Kind kind) {
  const char* const names[] = {"SystemV", "Memfd", "Anonymous", "File"};
  return out << names[static_cast<int>(kind)];
}

// A shared mapping of the application.
class Mapping {
 public:
  explicit Mapping(Kind kind) : kind_(kind) {
    int flags = MAP_SHARED;
    switch (kind) {
      case Kind::kSystemV: {
        const int id = shmget(IPC_PRIVATE, kBytes, IPC_CREAT | 0600);
        bytes_ = static_cast<std::byte*>(shmat(id, nullptr, 0));
        // As MPI and UCX do, so that nothing stays behind.
        shmctl(id, IPC_RMID, nullptr);
        return;
      }
      case Kind::kMemfd:
        fd_ = memfd_create("application", MFD_CLOEXEC);
        break;
      case Kind::kAnonymous:
        flags |= MAP_ANONYMOUS;
        break;
      case Kind::kFile: {
        char path[] = "/tmp/verbena-mapping-XXXXXX";
        fd_ = mkstemp(path);
        unlink(path);
        break;
      }
    }
    if (fd_ >= 0 && ftruncate(fd_, kBytes) != 0) std::abort();
    bytes_ = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags, fd_, 0));
  }
  ~Mapping() {
    unmap();
    if (fd_ >= 0) close(fd_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void unmap() {
    if (bytes_ == nullptr) return;
    if (kind_ == Kind::kSystemV) {
      shmdt(bytes_);
    } else {
      munmap(bytes_, kBytes);
    }
    bytes_ = nullptr;
  }
  bool truncate() const { return fd_ >= 0 && ftruncate(fd_, 0) == 0; }
  std::byte* data() const { return bytes_ + kSkipped; }
  static constexpr size_t kSize = kBytes - kSkipped;

 private:
  const Kind kind_;
  int fd_ = -1;
  std::byte* bytes_ = nullptr;
};

// The owner of a shared mapping, with a queue pair.
class Owner {
 public:
  enum class What { kAddress, kConnect, kHasPattern, kLoad, kUnmap, kTruncate, kEnd };
  struct Command {
    What what{};
    QueuePairAddress peer{};
    uint64_t seed = 0;
  };
  struct Reply {
    QueuePairAddress address;
    uint64_t memory = 0;
    uint32_t key = 0;
    uint64_t value = 0;
  };

  explicit Owner(Kind kind)
      : mapping_(kind),
        region_(
            must(MemoryRegion::create(node_.domain, mapping_.data(), Mapping::kSize, kAllAccess))) {
  }

  Reply run(const Command& command) {
    Reply reply{};
    switch (command.what) {
      case What::kAddress:
        reply = {end_.address(), reinterpret_cast<uint64_t>(mapping_.data()), region_.rkey(), 0};
        break;
      case What::kConnect:
        end_.connect(command.peer);
        break;
      case What::kHasPattern:
        reply.value = has_pattern(mapping_.data(), Mapping::kSize, command.seed) ? 1 : 0;
        break;
      case What::kLoad:
        reply.value = load_acquire(reinterpret_cast<uint64_t*>(mapping_.data()));
        break;
      case What::kUnmap:
        mapping_.unmap();
        break;
      case What::kTruncate:
        reply.value = mapping_.truncate() ? 1 : 0;
        break;
      case What::kEnd:
        break;
    }
    return reply;
  }

 private:
  Node node_;
  Mapping mapping_;
  MemoryRegion region_;
  End end_{node_};
};

VERBENA_TEST_CHILD(owner) {
  Owner owner(link.get<Kind>());
  for (;;) {
    const auto command = link.get<Owner::Command>();
    if (command.what == Owner::What::kEnd) return 0;
    link.put(owner.run(command));
  }
}

class SharedMappingTest : public testing::TestWithParam<std::tuple<Place, Kind>> {
 protected:
  using What = Owner::What;
  static Kind kind() { return std::get<1>(GetParam()); }

  void SetUp() override {
    if (std::get<0>(GetParam()) == Place::kThisProcess) {
      owner_.emplace(kind());
    } else {
      child_.emplace("owner");
      child_->link().put(kind());
    }
    remote_ = at_owner({.what = What::kAddress});
    end_.connect(remote_.address);
    at_owner({.what = What::kConnect, .peer = end_.address()});
  }
  void TearDown() override {
    if (!child_) return;
    child_->link().put(Owner::Command{.what = What::kEnd});
    EXPECT_EQ(child_->wait(), 0);
  }

  Owner::Reply at_owner(const Owner::Command& command) {
    if (owner_) return owner_->run(command);
    child_->link().put(command);
    return child_->link().get<Owner::Reply>();
  }
  ibv_wc_status run(ibv_wr_opcode opcode, size_t size_bytes, uint64_t compare_add = 0,
                    uint64_t swap = 0) {
    EXPECT_EQ(post(end_.qp(), {.opcode = opcode,
                               .sges = {local_.sge(0, size_bytes)},
                               .remote_address = remote_.memory,
                               .rkey = remote_.key,
                               .compare_add = compare_add,
                               .swap = swap}),
              0);
    return wait_for_one(end_.cq()).status;
  }
  // Whether the peer's region is mapped here.
  bool is_mapped() {
    for (const soft::RegionView& view : soft::as_qp(end_.qp()).peer.views) {
      if (view.stamp != 0) return view.base != nullptr;
    }
    return false;
  }

  Node node_;
  Buffer local_{node_.domain, kBytes};
  End end_{node_};
  Owner::Reply remote_{};
  std::optional<Owner> owner_;
  std::optional<Child> child_;
};

INSTANTIATE_TEST_SUITE_P(All, SharedMappingTest,
                         testing::Combine(all_places(),
                                          testing::Values(Kind::kSystemV, Kind::kMemfd,
                                                          Kind::kAnonymous, Kind::kFile)),
                         [](const auto& info) {
                           return place_name(std::get<0>(info.param)) +
                                  testing::PrintToString(std::get<1>(info.param));
                         });

TEST_P(SharedMappingTest, IsWrittenReadAndUpdated) {
  fill_pattern(local_.data(), Mapping::kSize, 5);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, Mapping::kSize), IBV_WC_SUCCESS);
  EXPECT_EQ(at_owner({.what = What::kHasPattern, .seed = 5}).value, 1u);
  memset(local_.data(), 0, local_.size());
  EXPECT_EQ(run(IBV_WR_RDMA_READ, Mapping::kSize), IBV_WC_SUCCESS);
  EXPECT_TRUE(has_pattern(local_.data(), Mapping::kSize, 5));

  const auto first = local_.at<uint64_t>(0);
  EXPECT_EQ(run(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 7), IBV_WC_SUCCESS);
  EXPECT_EQ(local_.at<uint64_t>(0), first);
  EXPECT_EQ(at_owner({.what = What::kLoad}).value, first + 7);
  EXPECT_EQ(run(IBV_WR_ATOMIC_CMP_AND_SWP, 8, first, 1), IBV_WC_SUCCESS);
  EXPECT_EQ(local_.at<uint64_t>(0), first + 7);
  EXPECT_EQ(at_owner({.what = What::kLoad}).value, first + 7);
  EXPECT_EQ(run(IBV_WR_ATOMIC_CMP_AND_SWP, 8, first + 7, 1), IBV_WC_SUCCESS);
  EXPECT_EQ(local_.at<uint64_t>(0), first + 7);
  EXPECT_EQ(at_owner({.what = What::kLoad}).value, 1u);
  // Only what cannot shrink is mapped.
  EXPECT_EQ(is_mapped(), kind() == Kind::kSystemV);
}

TEST_P(SharedMappingTest, UnmappedOrCutOffItIsAnErrorAndNoSignal) {
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    for (const bool cut_off : {false, true}) {
      if (cut_off && (kind() == Kind::kSystemV || kind() == Kind::kAnonymous)) continue;
      SCOPED_TRACE(testing::Message() << "opcode " << opcode << " cut off " << cut_off);
      TearDown();
      owner_.reset();
      child_.reset();
      end_.close();
      end_ = End(node_);
      SetUp();
      EXPECT_EQ(run(opcode, 8), IBV_WC_SUCCESS);
      const Owner::Reply done = at_owner({.what = cut_off ? What::kTruncate : What::kUnmap});
      EXPECT_EQ(done.value, cut_off ? 1u : 0u);
      // A segment that is attached here stays, as pinned pages do.
      EXPECT_EQ(run(opcode, 8), kind() == Kind::kSystemV ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR);
    }
  }
}

// ---- many at once ----

constexpr uint64_t kAdds = 2000;

struct Counter {
  QueuePairAddress peer;
  uint64_t memory;
  uint32_t key;
};

bool add_many(End& end, Buffer& result, const Counter& counter) {
  for (uint64_t i = 0; i < kAdds; ++i) {
    if (post(end.qp(), {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                        .sges = {result.sge(0, 8)},
                        .remote_address = counter.memory,
                        .rkey = counter.key,
                        .compare_add = 1}) != 0 ||
        wait_for_one(end.cq()).status != IBV_WC_SUCCESS) {
      return false;
    }
  }
  return true;
}

VERBENA_TEST_CHILD(adder) {
  Node node;
  End end(node);
  Buffer result(node.domain, 4096);
  link.put(end.address());
  const auto counter = link.get<Counter>();
  end.connect(counter.peer);
  link.put(true);
  link.get<bool>();
  return add_many(end, result, counter) ? 0 : 1;
}

class AddersTest : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, AddersTest, testing::Values(Kind::kSystemV, Kind::kMemfd),
                         testing::PrintToStringParamName());

// Two processes, and two threads of the owner.
TEST_P(AddersTest, NoAddIsLost) {
  Node node;
  Mapping mapping(GetParam());
  const MemoryRegion region =
      must(MemoryRegion::create(node.domain, mapping.data(), Mapping::kSize, kAllAccess));
  const auto memory = reinterpret_cast<uint64_t>(mapping.data());
  std::vector<std::unique_ptr<Child>> children;
  std::vector<std::unique_ptr<End>> ends;
  for (int i = 0; i < 2; ++i) {
    children.push_back(std::make_unique<Child>("adder"));
    ends.push_back(std::make_unique<End>(node));
    ends.back()->connect(children.back()->link().get<QueuePairAddress>());
    children.back()->link().put(Counter{ends.back()->address(), memory, region.rkey()});
    children.back()->link().get<bool>();
  }
  for (const auto& child : children) child->link().put(true);
  std::vector<Thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < 2; ++i) {
    threads.push_back(start_thread("adder", [&] {
      End from(node);
      End to(node);
      Buffer result(node.domain, 4096);
      connect(from, to);
      if (!add_many(from, result, {to.address(), memory, region.rkey()})) ++failed;
    }));
  }
  for (Thread& thread : threads) thread.join();
  for (const auto& child : children) EXPECT_EQ(child->wait(), 0);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(load_acquire(reinterpret_cast<uint64_t*>(mapping.data())), 4 * kAdds);
}

// ---- a holder of the lock that stands still ----

TEST(UpdateLockTest, WhoeverHoldsItIsWaitedForAsForALostPeer) {
  Node node;
  Mapping mapping(Kind::kMemfd);
  const MemoryRegion region =
      must(MemoryRegion::create(node.domain, mapping.data(), Mapping::kSize, kAllAccess));
  Buffer result(node.domain, 4096);
  // As another process would: by an open file of its own.
  const int fd = soft::as_context(node.device.get()).rnic->pages().fd();
  const int other = open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(other, 0);
  struct flock record {};
  record.l_type = F_WRLCK;
  record.l_len = 1;
  ASSERT_EQ(fcntl(other, F_OFD_SETLK, &record), 0);
  const auto add = [&](End& end) {
    return post(end.qp(), {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                           .sges = {result.sge(0, 8)},
                           .remote_address = reinterpret_cast<uint64_t>(mapping.data()),
                           .rkey = region.rkey(),
                           .compare_add = 1});
  };
  {
    End from(node);
    End to(node);
    connect(from, to, kImpatient);
    ASSERT_EQ(add(from), 0);
    EXPECT_EQ(wait_for_one(from.cq()).status, IBV_WC_RETRY_EXC_ERR);
  }
  End from(node);
  End to(node);
  connect(from, to, {.ack_timeout = 31});
  ASSERT_EQ(add(from), 0);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(from.cq(), 1, &wc), 0);
  close(other);
  EXPECT_EQ(wait_for_one(from.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(load_acquire(reinterpret_cast<uint64_t*>(mapping.data())), 1u);
}

}  // namespace
}  // namespace verbena::soft_test
