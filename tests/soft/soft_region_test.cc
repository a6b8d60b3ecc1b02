// Memory that cannot be what it was registered as, or does not stay so: read-only, inaccessible,
// missing, protected or unmapped afterwards. Registration refuses what an RNIC could not pin; what
// was registered stays in reach, as pinned pages do, and nothing ends in a signal.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>

#include "src/device/verbs_control.h"
#include "tests/soft/places.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLargestBytes = 64 * 1024;

enum class State {
  kUsual,
  // Before registration.
  kReadOnly,
  kInaccessible,
  kUnmapped,
  kHalfUnmapped,
  // After it.
  kProtectedAfterwards,
  kUnmappedAfterwards,
};
std::ostream& operator<<(std::ostream& out, State state) {
  const char* const names[] = {"Usual",
                               "ReadOnly",
                               "Inaccessible",
                               "Unmapped",
                               "HalfUnmapped",
                               "ProtectedAfterwards",
                               "UnmappedAfterwards"};
  return out << names[static_cast<int>(state)];
}

// What the memory is for.
enum class Role { kSource, kTarget, kReadSource, kLanding, kReceive, kAtomicTarget };
std::ostream& operator<<(std::ostream& out, Role role) {
  const char* const names[] = {"Source",  "Target",  "ReadSource",
                               "Landing", "Receive", "AtomicTarget"};
  return out << names[static_cast<int>(role)];
}

bool is_written(Role role) { return role != Role::kSource && role != Role::kReadSource; }
// By the one who posts.
bool is_local(Role role) { return role == Role::kSource || role == Role::kLanding; }

unsigned access_for(Role role, State state) {
  switch (role) {
    case Role::kSource:
      // What is read-only can be a source; what is to stay in reach is registered for writing, too.
      return state == State::kReadOnly ? 0 : IBV_ACCESS_LOCAL_WRITE;
    case Role::kTarget:
      return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    case Role::kReadSource:
      return IBV_ACCESS_REMOTE_READ;
    case Role::kAtomicTarget:
      return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    default:
      return IBV_ACCESS_LOCAL_WRITE;
  }
}

struct Registered {
  int error = 0;
  bool explained = true;
  uint64_t address = 0;
  uint32_t key = 0;
};

// One end of a connection with one piece of memory in some state.
class Holder {
 public:
  enum class What { kAddress, kConnect, kMake, kSpoil, kRestore, kPostReceive, kWait, kEnd };
  struct Command {
    What what{};
    QueuePairAddress peer{};
    State state{};
    unsigned access = 0;
    size_t size_bytes = 0;
    uint64_t seed = 0;
  };
  struct Reply {
    QueuePairAddress address;
    Registered memory;
    int status = 0;
    bool has_pattern = false;
  };

  ~Holder() {
    if (region_ != nullptr) node_.control().dereg_mr(region_);
    if (pages_ != nullptr) munmap(pages_, mapped_bytes_);
  }

  Reply run(const Command& command) {
    Reply reply{};
    switch (command.what) {
      case What::kAddress:
        reply.address = end_.address();
        break;
      case What::kConnect:
        end_.connect(command.peer);
        break;
      case What::kMake:
        reply.memory = make(command.state, command.access, command.size_bytes, command.seed);
        break;
      case What::kSpoil:
        reply.status = command.state == State::kProtectedAfterwards
                           ? mprotect(pages_, mapped_bytes_, PROT_NONE)
                           : munmap(pages_, mapped_bytes_);
        break;
      case What::kRestore:
        reply.status = mprotect(pages_, mapped_bytes_, PROT_READ | PROT_WRITE);
        reply.has_pattern = has_pattern(pages_, command.size_bytes, command.seed);
        break;
      case What::kPostReceive:
        reply.status = post_receive(end_.qp(), 7, {sge(command.size_bytes)});
        break;
      case What::kWait:
        reply.status = wait_for_one(end_.cq()).status;
        break;
      case What::kEnd:
        break;
    }
    return reply;
  }

  Node& node() { return node_; }
  End& end() { return end_; }
  ibv_sge sge(size_t size_bytes) const {
    return {reinterpret_cast<uint64_t>(pages_), static_cast<uint32_t>(size_bytes), region_->lkey};
  }

 private:
  Registered make(State state, unsigned access, size_t size_bytes, uint64_t seed) {
    // A page more than is used, so that a half can be missing.
    mapped_bytes_ = size_bytes + kPage;
    void* pages =
        mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return {.error = errno};
    pages_ = static_cast<std::byte*>(pages);
    fill_pattern(pages_, mapped_bytes_, seed);
    switch (state) {
      case State::kReadOnly:
        mprotect(pages_, mapped_bytes_, PROT_READ);
        break;
      case State::kInaccessible:
        mprotect(pages_, mapped_bytes_, PROT_NONE);
        break;
      case State::kUnmapped:
        munmap(pages_, mapped_bytes_);
        break;
      case State::kHalfUnmapped:
        munmap(pages_ + (mapped_bytes_ - 1) / kPage * kPage, kPage);
        break;
      default:
        break;
    }
    const auto address = reinterpret_cast<uint64_t>(pages_);
    errno = 0;
    region_ = node_.control().reg_mr(node_.domain.get(), pages_, mapped_bytes_, address, access);
    if (region_ != nullptr) return {.address = address, .key = region_->rkey};
    return {.error = errno, .explained = *node_.control().last_error() != '\0'};
  }

  Node node_;
  End end_{node_};
  std::byte* pages_ = nullptr;
  size_t mapped_bytes_ = 0;
  ibv_mr* region_ = nullptr;
};

VERBENA_TEST_CHILD(holder) {
  Holder holder;
  for (;;) {
    const auto command = link.get<Holder::Command>();
    if (command.what == Holder::What::kEnd) return 0;
    link.put(holder.run(command));
  }
}

// The memory of a role is that of the poster, which is here, or of its peer.
class RegionStateTest : public testing::TestWithParam<std::tuple<Place, Role, State, size_t>> {
 protected:
  using What = Holder::What;
  static Place place() { return std::get<0>(GetParam()); }
  static Role role() { return std::get<1>(GetParam()); }
  static State state() { return std::get<2>(GetParam()); }
  static size_t size_bytes() { return std::get<3>(GetParam()); }

  void SetUp() override {
    if (place() == Place::kThisProcess) {
      peer_.emplace();
    } else {
      child_.emplace("holder");
    }
    poster_.end().connect(at_peer({.what = What::kAddress}).address);
    at_peer({.what = What::kConnect, .peer = poster_.end().address()});
  }
  void TearDown() override {
    if (!child_) return;
    child_->link().put(Holder::Command{.what = What::kEnd});
    EXPECT_EQ(child_->wait(), 0);
  }

  Holder::Reply at_peer(const Holder::Command& command) {
    if (peer_) return peer_->run(command);
    child_->link().put(command);
    return child_->link().get<Holder::Reply>();
  }
  // Where the memory of the role is.
  Holder::Reply at_memory(const Holder::Command& command) {
    return is_local(role()) ? poster_.run(command) : at_peer(command);
  }

  // Carries out one request with the memory; the other side's is as usual.
  ibv_wc_status use(const Registered& memory) {
    const size_t size = role() == Role::kAtomicTarget ? 8 : size_bytes();
    const Holder::Command other{
        .what = What::kMake, .access = kAllAccess, .size_bytes = kLargestBytes, .seed = 2};
    const Registered remote = is_local(role()) ? at_peer(other).memory : memory;
    if (!is_local(role())) {
      EXPECT_EQ(poster_.run(other).memory.error, 0);
    }
    SendRequest request{
        .sges = {poster_.sge(size)}, .remote_address = remote.address, .rkey = remote.key};
    switch (role()) {
      case Role::kSource:
      case Role::kTarget:
        request.opcode = IBV_WR_RDMA_WRITE;
        break;
      case Role::kReadSource:
      case Role::kLanding:
        request.opcode = IBV_WR_RDMA_READ;
        break;
      case Role::kAtomicTarget:
        request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        request.compare_add = 1;
        break;
      case Role::kReceive:
        EXPECT_EQ(at_peer({.what = What::kPostReceive, .size_bytes = size}).status, 0);
        break;
    }
    EXPECT_EQ(post(poster_.end().qp(), request), 0);
    const ibv_wc_status status = wait_for_one(poster_.end().cq()).status;
    if (role() == Role::kReceive) {
      EXPECT_EQ(at_peer({.what = What::kWait}).status, IBV_WC_SUCCESS);
    }
    return status;
  }

  Holder poster_;
  std::optional<Holder> peer_;
  std::optional<Child> child_;
};

std::string region_case_name(
    const testing::TestParamInfo<std::tuple<Place, Role, State, size_t>>& info) {
  const auto [place, role, state, size_bytes] = info.param;
  return place_name(place) + testing::PrintToString(role) + testing::PrintToString(state) +
         std::to_string(size_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    All, RegionStateTest,
    testing::Combine(all_places(),
                     testing::Values(Role::kSource, Role::kTarget, Role::kReadSource,
                                     Role::kLanding, Role::kReceive, Role::kAtomicTarget),
                     testing::Values(State::kUsual, State::kReadOnly, State::kInaccessible,
                                     State::kUnmapped, State::kHalfUnmapped,
                                     State::kProtectedAfterwards, State::kUnmappedAfterwards),
                     testing::Values(size_t{8}, kLargestBytes)),
    region_case_name);

TEST_P(RegionStateTest, IsRefusedOrStaysInReach) {
  const Registered memory = at_memory({.what = What::kMake,
                                       .state = state(),
                                       .access = access_for(role(), state()),
                                       .size_bytes = size_bytes(),
                                       .seed = 1})
                                .memory;
  const bool missing = state() == State::kInaccessible || state() == State::kUnmapped ||
                       state() == State::kHalfUnmapped;
  if (missing || (state() == State::kReadOnly && is_written(role()))) {
    EXPECT_EQ(memory.error, EFAULT);
    EXPECT_TRUE(memory.explained);
    return;
  }
  ASSERT_EQ(memory.error, 0);
  const bool spoiled =
      state() == State::kProtectedAfterwards || state() == State::kUnmappedAfterwards;
  if (spoiled) {
    ASSERT_EQ(at_memory({.what = What::kSpoil, .state = state()}).status, 0);
  }
  EXPECT_EQ(use(memory), IBV_WC_SUCCESS);
  if (state() == State::kUnmappedAfterwards) return;
  // What was written is there, and what was read is as it was.
  const bool atomic = role() == Role::kAtomicTarget;
  const Holder::Reply after = at_memory({.what = What::kRestore,
                                         .size_bytes = atomic ? size_t{8} : size_bytes(),
                                         .seed = is_written(role()) && !atomic ? 2u : 1u});
  EXPECT_EQ(after.status, 0);
  EXPECT_EQ(after.has_pattern, !atomic);
}

// ---- addresses that are offsets ----

class ZeroBasedTest : public testing::TestWithParam<Place> {};
INSTANTIATE_TEST_SUITE_P(Places, ZeroBasedTest, all_places(), name_by_place);

// Of remote operations, and of gather and scatter entries.
TEST_P(ZeroBasedTest, AddressesAreOffsets) {
  constexpr unsigned kZeroBased = kAllAccess | IBV_ACCESS_ZERO_BASED;
  Node node;
  Responder responder(GetParam());
  End end(node);
  responder.connect(end);
  const Responder::Memory remote = responder.add_buffer(kLargestBytes, kZeroBased);
  Buffer local(node.domain, kLargestBytes, kZeroBased);
  const auto run = [&](ibv_wr_opcode opcode, uint64_t from, uint64_t to, uint32_t size_bytes) {
    EXPECT_EQ(post(end.qp(), {.opcode = opcode,
                              .sges = {{from, size_bytes, local.key()}},
                              .remote_address = to,
                              .rkey = remote.key,
                              .compare_add = 1}),
              0);
    return wait_for_one(end.cq()).status;
  };
  for (const uint32_t size_bytes : {8u, 4096u}) {
    fill_pattern(local.data() + 64, size_bytes, size_bytes);
    ASSERT_EQ(run(IBV_WR_RDMA_WRITE, 64, 128, size_bytes), IBV_WC_SUCCESS);
    EXPECT_TRUE(responder.has_pattern({0, 128, size_bytes}, size_bytes));
    ASSERT_EQ(run(IBV_WR_RDMA_READ, 16384, 128, size_bytes), IBV_WC_SUCCESS);
    EXPECT_TRUE(has_pattern(local.data() + 16384, size_bytes, size_bytes));
  }
  const uint64_t before = responder.load(0, 0);
  ASSERT_EQ(run(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0, 8), IBV_WC_SUCCESS);
  EXPECT_EQ(responder.load(0, 0), before + 1);
  // To the end and not beyond.
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, kLargestBytes - 8, kLargestBytes - 8, 8), IBV_WC_SUCCESS);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, 0, kLargestBytes - 7, 8), IBV_WC_REM_ACCESS_ERR);
}

// The addresses that all other memory has are none here.
TEST_P(ZeroBasedTest, PointersAreNone) {
  Node node;
  Responder responder(GetParam());
  const Responder::Memory remote = responder.add_buffer(4096, kAllAccess | IBV_ACCESS_ZERO_BASED);
  Buffer local(node.domain, 4096);
  Buffer zero_based(node.domain, 4096, kAllAccess | IBV_ACCESS_ZERO_BASED);
  for (const bool remotely : {true, false}) {
    End end(node);
    End peer(node);
    connect(end, peer);
    if (remotely) {
      responder.reset();
      end.close();
      end = End(node);
      responder.connect(end);
    }
    Buffer& source = remotely ? local : zero_based;
    ASSERT_EQ(post(end.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                              .sges = {source.sge(0, 8)},
                              .remote_address = remotely ? remote.address : local.address(),
                              .rkey = remotely ? remote.key : local.key()}),
              0);
    EXPECT_EQ(wait_for_one(end.cq()).status,
              remotely ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR);
  }
}

}  // namespace
}  // namespace verbena::soft_test
