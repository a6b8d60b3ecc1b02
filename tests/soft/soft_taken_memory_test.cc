// Memory that its own process reaches at the program's address (sources of sends, files of the
// program) and that the program takes away while it is registered: the request that uses it
// completes with an error, and nothing ends in a signal.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <string>
#include <tuple>

#include "src/base/file_descriptor.h"
#include "tests/soft/places.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr size_t kTakenPage = 4096;
constexpr size_t kTakenBytes = 64 * 1024;
constexpr uint32_t kLongBytes = 3u << 20;  // copied in parts

// What the program does to its mapping. Where the device has yet to map something, pages that are
// unmapped may become that.
enum class Taking { kUnmap, kUnmapLastPage, kProtect, kMove };
std::ostream& operator<<(std::ostream& out, Taking taking) {
  const char* const names[] = {"Unmap", "UnmapLastPage", "Protect", "Move"};
  return out << names[static_cast<int>(taking)];
}

// Pages of the program, registered as they are.
class Pages {
 public:
  Pages(const Node& node, size_t size_bytes, unsigned access, int file = -1,
        int protection = PROT_READ | PROT_WRITE)
      : node_(node), size_bytes_(size_bytes) {
    void* pages = mmap(nullptr, size_bytes, protection,
                       file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file, 0);
    if (pages == MAP_FAILED) std::abort();
    bytes_ = static_cast<std::byte*>(pages);
    region_ = node.control().reg_mr(node.domain.get(), pages, size_bytes,
                                    reinterpret_cast<uint64_t>(pages), access);
    if (region_ == nullptr) std::abort();
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    EXPECT_EQ(node_.control().dereg_mr(region_), 0);
    if (bytes_ != nullptr) munmap(bytes_, size_bytes_);
    if (moved_ != nullptr) munmap(moved_, size_bytes_);
  }

  void take(Taking taking) {
    switch (taking) {
      case Taking::kUnmap:
        ASSERT_EQ(munmap(bytes_, size_bytes_), 0);
        break;
      case Taking::kUnmapLastPage:
        ASSERT_EQ(munmap(bytes_ + size_bytes_ - kTakenPage, kTakenPage), 0);
        break;
      case Taking::kProtect:
        protect(PROT_NONE);
        break;
      case Taking::kMove: {
        void* place = mmap(nullptr, size_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(place, MAP_FAILED);
        moved_ = mremap(bytes_, size_bytes_, size_bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        ASSERT_NE(moved_, MAP_FAILED);
        break;
      }
    }
  }
  void protect(int protection) { ASSERT_EQ(mprotect(bytes_, size_bytes_, protection), 0); }

  std::byte* data() { return bytes_; }
  ibv_sge sge(size_t size_bytes) const {
    return {reinterpret_cast<uint64_t>(bytes_), static_cast<uint32_t>(size_bytes), region_->lkey};
  }

 private:
  const Node& node_;
  size_t size_bytes_;
  std::byte* bytes_ = nullptr;
  void* moved_ = nullptr;
  ibv_mr* region_ = nullptr;
};

FileDescriptor make_file(size_t size_bytes) {
  FileDescriptor file(memfd_create("taken", MFD_CLOEXEC));
  if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(size_bytes)) != 0) std::abort();
  return file;
}

class TakenMemory {
 public:
  explicit TakenMemory(Place place, const EndOptions& options = {})
      : end_(node_, options), responder_(place) {
    responder_.connect(end_);
    remote_ = responder_.add_buffer(kLongBytes);
  }

  int post_only(ibv_wr_opcode opcode, const ibv_sge& sge) {
    if (opcode == IBV_WR_SEND) {
      EXPECT_EQ(responder_.post_receive(1, {{0, 0, kLongBytes}}), 0);
    }
    return post(
        end_.qp(),
        {.opcode = opcode, .sges = {sge}, .remote_address = remote_.address, .rkey = remote_.key});
  }
  ibv_wc_status run(ibv_wr_opcode opcode, const ibv_sge& sge) {
    EXPECT_EQ(post_only(opcode, sge), 0);
    return wait_for_one(end_.cq()).status;
  }

  Node& node() { return node_; }
  End& end() { return end_; }
  Responder& responder() { return responder_; }

 private:
  Node node_;
  End end_;
  Responder responder_;
  Responder::Memory remote_{};
};

// ---- sources ----

using SourceCase = std::tuple<Place, ibv_wr_opcode, Taking, uint32_t>;
std::string source_case_name(const testing::TestParamInfo<SourceCase>& info) {
  const auto [place, opcode, taking, size_bytes] = info.param;
  return place_name(place) + (opcode == IBV_WR_SEND ? "Send" : "Write") +
         testing::PrintToString(taking) + std::to_string(size_bytes);
}

class TakenSourceTest : public testing::TestWithParam<SourceCase> {};
INSTANTIATE_TEST_SUITE_P(All, TakenSourceTest,
                         testing::Combine(all_places(),
                                          testing::Values(IBV_WR_RDMA_WRITE, IBV_WR_SEND),
                                          testing::Values(Taking::kUnmap, Taking::kUnmapLastPage,
                                                          Taking::kProtect, Taking::kMove),
                                          testing::Values(8u, uint32_t{kTakenBytes}, kLongBytes)),
                         source_case_name);

TEST_P(TakenSourceTest, IsALocalProtectionError) {
  const auto [place, opcode, taking, size_bytes] = GetParam();
  TakenMemory ends(place);
  const size_t pages_bytes = std::max<size_t>(size_bytes, kTakenPage);
  Pages source(ends.node(), pages_bytes, 0);
  fill_pattern(source.data(), size_bytes, 1);
  ASSERT_EQ(ends.run(opcode, source.sge(size_bytes)), IBV_WC_SUCCESS);
  // A small message is put there by the poll.
  if (opcode == IBV_WR_SEND) {
    EXPECT_EQ(ends.responder().wait_for_one().status, IBV_WC_SUCCESS);
  }
  EXPECT_TRUE(ends.responder().has_pattern({0, 0, size_bytes}, 1));
  source.take(taking);
  EXPECT_EQ(ends.run(opcode, source.sge(size_bytes)), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(state_of(ends.node(), ends.end().qp()), IBV_QPS_ERR);
}

class TakenMemoryTest : public testing::TestWithParam<Place> {};
INSTANTIATE_TEST_SUITE_P(Places, TakenMemoryTest, all_places(), name_by_place);

// Nothing is kept of the failure: once the memory is back, another connection sends it.
TEST_P(TakenMemoryTest, ASourceThatComesBackIsSentAgain) {
  TakenMemory ends(GetParam());
  Pages source(ends.node(), kTakenBytes, 0);
  fill_pattern(source.data(), kTakenBytes, 1);
  source.take(Taking::kProtect);
  ASSERT_EQ(ends.run(IBV_WR_RDMA_WRITE, source.sge(kTakenBytes)), IBV_WC_LOC_PROT_ERR);
  source.protect(PROT_READ);
  ends.responder().reset();
  ends.end().close();
  ends.end() = End(ends.node());
  ends.responder().connect(ends.end());
  ASSERT_EQ(ends.run(IBV_WR_RDMA_WRITE, source.sge(kTakenBytes)), IBV_WC_SUCCESS);
  EXPECT_TRUE(ends.responder().has_pattern({0, 0, kTakenBytes}, 1));
}

// It waits for a receive, and is carried out by the RNIC's own thread.
TEST_P(TakenMemoryTest, ASourceTakenWhileTheSendWaits) {
  TakenMemory ends(GetParam(), {.with_channel = true});
  Pages source(ends.node(), kTakenPage, 0);
  ASSERT_EQ(ibv_req_notify_cq(ends.end().cq(), 0), 0);
  ASSERT_EQ(post(ends.end().qp(), {.opcode = IBV_WR_SEND, .sges = {source.sge(8)}}), 0);
  source.take(Taking::kProtect);
  ASSERT_EQ(ends.responder().post_receive(1, {{0, 0, 64}}), 0);
  ASSERT_TRUE(ends.end().channel().wait(static_cast<int64_t>(kPatienceNs)).ok());
  EXPECT_EQ(wait_for_one(ends.end().cq()).status, IBV_WC_LOC_PROT_ERR);
}

// Its pages are there, but not the file's: SIGBUS.
TEST_P(TakenMemoryTest, ASourceWhoseFileWasCut) {
  TakenMemory ends(GetParam());
  const FileDescriptor file = make_file(kTakenBytes);
  Pages source(ends.node(), kTakenBytes, 0, file.get());
  ASSERT_EQ(ends.run(IBV_WR_RDMA_WRITE, source.sge(kTakenBytes)), IBV_WC_SUCCESS);
  ASSERT_EQ(ftruncate(file.get(), kTakenBytes / 2), 0);
  EXPECT_EQ(ends.run(IBV_WR_RDMA_WRITE, source.sge(kTakenBytes)), IBV_WC_LOC_PROT_ERR);
}

TEST_P(TakenMemoryTest, ReadOnlyMemoryOfAllKindsIsASource) {
  static const std::byte constant[kTakenBytes] = {std::byte{7}};
  TakenMemory ends(GetParam());
  const auto send = [&](const void* bytes, size_t size_bytes) {
    ibv_mr* region =
        ends.node().control().reg_mr(ends.node().domain.get(), const_cast<void*>(bytes), size_bytes,
                                     reinterpret_cast<uint64_t>(bytes), 0);
    ASSERT_NE(region, nullptr);
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_SEND}) {
      EXPECT_EQ(ends.run(opcode, {reinterpret_cast<uint64_t>(bytes),
                                  static_cast<uint32_t>(size_bytes), region->lkey}),
                IBV_WC_SUCCESS);
    }
    EXPECT_EQ(ends.node().control().dereg_mr(region), 0);
  };
  send(constant, sizeof(constant));
  std::byte stack[kTakenPage];
  fill_pattern(stack, sizeof(stack), 3);
  send(stack, sizeof(stack));
  EXPECT_TRUE(ends.responder().has_pattern({0, 0, sizeof(stack)}, 3));
  const FileDescriptor file = make_file(kTakenBytes);
  for (const int sharing : {MAP_SHARED, MAP_PRIVATE}) {
    void* pages = mmap(nullptr, kTakenBytes, PROT_READ, sharing, file.get(), 0);
    ASSERT_NE(pages, MAP_FAILED);
    send(pages, kTakenBytes);
    munmap(pages, kTakenBytes);
  }
}

// ---- memory that is written ----

// A file of the program, which its process fills at the program's address.
TEST_P(TakenMemoryTest, ALandingIsALocalProtectionError) {
  for (const uint32_t size_bytes : {8u, uint32_t{kTakenBytes}}) {
    for (const int protection : {-1, PROT_NONE, PROT_READ}) {
      TakenMemory ends(GetParam());
      const FileDescriptor file = make_file(kTakenBytes);
      Pages landing(ends.node(), kTakenBytes, IBV_ACCESS_LOCAL_WRITE, file.get());
      ASSERT_EQ(ends.run(IBV_WR_RDMA_READ, landing.sge(size_bytes)), IBV_WC_SUCCESS);
      if (protection < 0) {
        landing.take(Taking::kUnmap);
      } else {
        landing.protect(protection);
      }
      EXPECT_EQ(ends.run(IBV_WR_RDMA_READ, landing.sge(size_bytes)), IBV_WC_LOC_PROT_ERR)
          << size_bytes << " bytes, protection " << protection;
    }
  }
}

// A small message is put there by the poll.
TEST_P(TakenMemoryTest, AReceiveIsALocalProtectionError) {
  TakenMemory ends(GetParam());
  const FileDescriptor file = make_file(kTakenBytes);
  Pages landing(ends.node(), kTakenBytes, IBV_ACCESS_LOCAL_WRITE, file.get());
  for (const bool taken : {false, true}) {
    if (taken) landing.protect(PROT_READ);
    ASSERT_EQ(post_receive(ends.end().qp(), 2, {landing.sge(64)}), 0);
    ASSERT_EQ(ends.responder().send(3, {{0, 0, 64}}), 0);
    EXPECT_EQ(wait_for_one(ends.end().cq()).status, taken ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS);
  }
}

// ---- faults that are the program's ----

constexpr int kHandled = 42;

// Touches missing memory once soft0 handles the signal, too.
void fault_beside_probes() {
  TakenMemory ends(Place::kThisProcess);
  Pages source(ends.node(), kTakenPage, 0);
  source.take(Taking::kProtect);
  if (ends.run(IBV_WR_RDMA_WRITE, source.sge(8)) != IBV_WC_LOC_PROT_ERR) _exit(1);
  std::memset(source.data(), 1, kTakenPage);
}

VERBENA_TEST_CHILD(taken_with_handler) {
  struct sigaction action {};
  action.sa_handler = [](int) { _exit(kHandled); };
  sigaction(SIGSEGV, &action, nullptr);
  fault_beside_probes();
  return 0;
}

VERBENA_TEST_CHILD(taken_without_handler) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGSEGV, &action, nullptr);
  fault_beside_probes();
  return 0;
}

// What is inline is read by the library, as by that of an RNIC.
VERBENA_TEST_CHILD(taken_inline) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGSEGV, &action, nullptr);
  TakenMemory ends(Place::kThisProcess);
  Pages source(ends.node(), kTakenPage, 0);
  source.take(Taking::kProtect);
  post(ends.end().qp(), {.opcode = IBV_WR_SEND,
                         .sges = {source.sge(8)},
                         .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE});
  return 0;
}

// A signal that another process sends ends this one as ever.
VERBENA_TEST_CHILD(taken_signaled) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGSEGV, &action, nullptr);
  TakenMemory ends(Place::kThisProcess);
  const Pages source(ends.node(), kTakenPage, 0);
  raise(SIGSEGV);
  return 0;
}

TEST(TakenMemoryFaultTest, OtherFaultsGoToWhoHandledThemBefore) {
  EXPECT_EQ(Child("taken_with_handler").wait(), kHandled);
  for (const char* role : {"taken_without_handler", "taken_inline", "taken_signaled"}) {
    EXPECT_EQ(Child(role).wait(), 128 + SIGSEGV) << role;
  }
}

}  // namespace
}  // namespace verbena::soft_test
