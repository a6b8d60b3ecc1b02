#include "src/memory/memory_events.h"

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/memory/changed_memory_for_test.h"

namespace verbena {
namespace {

using test::as_address;
using test::kPageBytes;
using test::map_pages;
using Kind = MemoryEvents::Change::Kind;

constexpr const char* kNoThreadsInChildren =
    "a child of a process with threads starts none under ThreadSanitizer";

// The numbers of the process's descriptors of that kind: soft0 has some of its own.
std::set<int> descriptors_of(const char* kind) {
  std::set<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string file = std::filesystem::read_symlink(entry.path(), error);
    if (file.find(kind) != std::string::npos) numbers.insert(std::stoi(entry.path().filename()));
  }
  return numbers;
}
std::set<int> userfaultfds() { return descriptors_of("userfaultfd"); }
std::set<int> maps_files() { return descriptors_of("/maps"); }
// Of the one that is not among `others`.
int new_among(const std::set<int>& now, const std::set<int>& others) {
  for (const int number : now) {
    if (!others.contains(number)) return number;
  }
  return -1;
}

class MemoryEventsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::why_no_events().empty()) GTEST_SKIP() << test::why_no_events();
    const std::set<int> others = userfaultfds();
    const std::set<int> other_maps = maps_files();
    auto made = MemoryEvents::create(&epoch_);
    ASSERT_TRUE(made.ok()) << made.status().message();
    number_ = new_among(userfaultfds(), others);
    maps_number_ = new_among(maps_files(), other_maps);
    ASSERT_GE(number_, 0);
    ASSERT_GE(maps_number_, 0);
    events_ = std::move(*made);
  }

  void watch(const char* memory, uint64_t pages) {
    ASSERT_EQ(events_->watch({as_address(memory), as_address(memory) + pages * kPageBytes}), "");
  }
  // All that is known once the calls before have returned.
  std::vector<MemoryEvents::Change> changes() {
    std::vector<MemoryEvents::Change> list;
    uint64_t epoch = 0;
    EXPECT_TRUE(events_->wait_until_read(UINT64_MAX, &epoch));
    EXPECT_TRUE(events_->take([&](const auto& change) { list.push_back(change); }));
    return list;
  }
  void expect_one(Kind kind, const char* from, uint64_t pages) {
    const auto list = changes();
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0].kind, kind);
    EXPECT_EQ(list[0].range.begin, as_address(from));
    EXPECT_EQ(list[0].range.end, as_address(from) + pages * kPageBytes);
  }

  uint64_t epoch_ = 2;
  std::unique_ptr<MemoryEvents> events_;
  int number_ = -1;       // of its userfaultfd
  int maps_number_ = -1;  // of what tells of its mappings
};

TEST_F(MemoryEventsTest, TellsOfEachWayToGiveMemoryBack) {
  char* const memory = map_pages(16);
  watch(memory, 16);
  ASSERT_EQ(madvise(memory, kPageBytes, MADV_DONTNEED), 0);
  expect_one(Kind::kDiscarded, memory, 1);
  ASSERT_EQ(madvise(memory + kPageBytes, kPageBytes, MADV_FREE), 0);
  expect_one(Kind::kDiscarded, memory + kPageBytes, 1);
  ASSERT_EQ(munmap(memory + 2 * kPageBytes, kPageBytes), 0);
  expect_one(Kind::kUnmapped, memory + 2 * kPageBytes, 1);
  map_pages(1, memory + 4 * kPageBytes);
  expect_one(Kind::kUnmapped, memory + 4 * kPageBytes, 1);
  ASSERT_NE(mremap(memory + 8 * kPageBytes, 8 * kPageBytes, 5 * kPageBytes, 0), MAP_FAILED);
  expect_one(Kind::kUnmapped, memory + 13 * kPageBytes, 3);
  munmap(memory, 16 * kPageBytes);
}

TEST_F(MemoryEventsTest, TellsWhereMemoryWentAndFollowsIt) {
  char* const memory = map_pages(4);
  char* const other = map_pages(4, nullptr, PROT_NONE);
  watch(memory, 4);
  ASSERT_EQ(mremap(memory, 4 * kPageBytes, 4 * kPageBytes, MREMAP_MAYMOVE | MREMAP_FIXED, other),
            other);
  auto list = changes();
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list[0].kind, Kind::kMoved);
  EXPECT_EQ(list[0].range.begin, as_address(memory));
  EXPECT_EQ(list[0].moved_to, as_address(other));
  // The kernel watches the pages on. Not any more when the events end: then nobody waits.
  ASSERT_EQ(munmap(other, kPageBytes), 0);
  expect_one(Kind::kUnmapped, other, 1);
  events_.reset();
  ASSERT_EQ(munmap(other + kPageBytes, 3 * kPageBytes), 0);
}

TEST_F(MemoryEventsTest, PagesThatStayAreNoChange) {
  char* const memory = map_pages(4);
  watch(memory, 4);
  ASSERT_EQ(mprotect(memory, kPageBytes, PROT_READ), 0);
  ASSERT_EQ(mprotect(memory, kPageBytes, PROT_READ | PROT_WRITE), 0);
  memory[0] = 2;
  memory[3 * kPageBytes] = 3;
  const pid_t child = fork();
  if (child == 0) {
    memory[0] = 4;
    munmap(memory, 4 * kPageBytes);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  memory[0] = 5;
  EXPECT_TRUE(changes().empty());
  events_->unwatch({as_address(memory), as_address(memory) + 4 * kPageBytes});
  munmap(memory, 4 * kPageBytes);
  EXPECT_TRUE(changes().empty());
}

TEST_F(MemoryEventsTest, ASharedMappingIsRefused) {
  void* const shared =
      mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  EXPECT_NE(events_->watch({as_address(shared), as_address(shared) + kPageBytes}), "");
  munmap(shared, kPageBytes);
}

// Read-only data of this program: a private mapping of a file.
const char in_file[3 * kPageBytes] = {1};

TEST_F(MemoryEventsTest, AFileIsRefused) {
  const uint64_t page = (as_address(in_file) + kPageBytes) & ~(kPageBytes - 1);
  EXPECT_NE(events_->watch({page, page + kPageBytes}), "");
}

TEST_F(MemoryEventsTest, HugePagesAreWatchedAsAWhole) {
  constexpr uint64_t kHugeBytes = uint64_t{2} << 20;
  void* const huge = mmap(nullptr, kHugeBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (huge == MAP_FAILED) GTEST_SKIP() << "no huge pages are set aside (vm.nr_hugepages)";
  ASSERT_EQ(events_->watch({as_address(huge) + kPageBytes, as_address(huge) + 2 * kPageBytes}), "");
  ASSERT_EQ(munmap(huge, kHugeBytes), 0);
  expect_one(Kind::kUnmapped, static_cast<char*>(huge), kHugeBytes / kPageBytes);
}

TEST_F(MemoryEventsTest, MoreChangesThanAreKeptAreToldOf) {
  char* const memory = map_pages(1);
  watch(memory, 1);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(madvise(memory, kPageBytes, MADV_DONTNEED), 0);
  uint64_t epoch = 0;
  ASSERT_TRUE(events_->wait_until_read(UINT64_MAX, &epoch));
  uint64_t told = 0;
  EXPECT_FALSE(events_->take([&](const auto&) { ++told; }));
  EXPECT_EQ(told, 4096u);
  ASSERT_EQ(munmap(memory, kPageBytes), 0);
  expect_one(Kind::kUnmapped, memory, 1);
}

// As daemons do. In a child, which has no threads of the parent, so nothing of it is used.
TEST_F(MemoryEventsTest, WhoClosesAllDescriptorsIsNotToldThatAllIsCalm) {
  if (VERBENA_THREAD_SANITIZER != 0) GTEST_SKIP() << kNoThreadsInChildren;
  const pid_t child = fork();
  if (child == 0) {
    uint64_t epoch = 2;
    auto events = MemoryEvents::create(&epoch);
    if (!events.ok() || (*events)->changing()) _exit(1);
    closefrom(3);
    uint64_t seen = 0;
    if (!(*events)->changing() || (*events)->wait_until_read(UINT64_MAX, &seen)) _exit(2);
    events->reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(MemoryEventsTest, TakesNothingFromAFileThatHasTheNumberOfItsOwn) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const std::string sent(1000, 'x');
  ASSERT_EQ(write(ends[0], sent.data(), sent.size()), static_cast<ssize_t>(sent.size()));
  ASSERT_EQ(dup2(ends[1], number_), number_);
  EXPECT_TRUE(events_->changing());
  uint64_t epoch = 0;
  EXPECT_FALSE(events_->wait_until_read(UINT64_MAX, &epoch));
  char* const memory = map_pages(1);
  EXPECT_NE(events_->watch({as_address(memory), as_address(memory) + kPageBytes}), "");
  munmap(memory, kPageBytes);
  // Longer than the reading thread goes on with the file that is gone.
  sleep_ns(2'000'000'000);
  int there = 0;
  ASSERT_EQ(ioctl(ends[1], FIONREAD, &there), 0);
  EXPECT_EQ(there, static_cast<int>(sent.size()));
  events_.reset();
  EXPECT_EQ(ioctl(number_, FIONREAD, &there), 0) << "it is the program's";
  for (const int descriptor : {ends[0], ends[1], number_}) close(descriptor);
}

// As programs do with descriptors up to some number: else shared memory would pass for private.
TEST_F(MemoryEventsTest, RefusesAllWhereItCannotTellWhatIsShared) {
  ASSERT_EQ(close(maps_number_), 0);
  void* const shared =
      mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  char* const memory = map_pages(1);
  for (const uint64_t page : {as_address(shared), as_address(memory)}) {
    EXPECT_NE(events_->watch({page, page + kPageBytes}), "");
  }
  munmap(shared, kPageBytes);
  munmap(memory, kPageBytes);
}

TEST_F(MemoryEventsTest, AnotherOnesCalmIsNotItsOwn) {
  uint64_t epoch = 2;
  const std::set<int> before = userfaultfds();
  auto other = MemoryEvents::create(&epoch);
  ASSERT_TRUE(other.ok()) << other.status().message();
  ASSERT_EQ(dup2(new_among(userfaultfds(), before), number_), number_);
  EXPECT_FALSE((*other)->changing());
  EXPECT_TRUE(events_->changing());
  events_.reset();
  close(number_);
}

// A child has the descriptor, too, so closing it here does not end the watching: whoever changes
// what is still watched waits for ever.
class MemoryEventsWithChildTest : public MemoryEventsTest {
 protected:
  void SetUp() override {
    MemoryEventsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(pipe(ends_), 0);
    child_ = fork();
    if (child_ != 0) return;
    close(ends_[1]);
    char byte;
    [[maybe_unused]] const ssize_t ended = read(ends_[0], &byte, 1);
    _exit(0);
  }
  void TearDown() override {
    if (child_ <= 0) return;
    for (const int end : ends_) close(end);
    EXPECT_EQ(waitpid(child_, nullptr, 0), child_);
  }
  // `pages` watched ones, with as many free addresses behind them.
  char* watched_with_room(uint64_t pages) {
    char* const memory = map_pages(2 * pages);
    EXPECT_EQ(munmap(memory + pages * kPageBytes, pages * kPageBytes), 0);
    watch(memory, pages);
    return memory;
  }

 private:
  int ends_[2] = {-1, -1};
  pid_t child_ = -1;
};

TEST_F(MemoryEventsWithChildTest, EndsAlthoughAChildLives) {
  char* const memory = map_pages(2);
  watch(memory, 2);
  events_.reset();
  EXPECT_EQ(munmap(memory, 2 * kPageBytes), 0);
}

// The kernel watches the pages by which memory grows, too, and does not tell.
TEST_F(MemoryEventsWithChildTest, EndsWhereMemoryGrew) {
  char* const first = watched_with_room(4);
  char* const second = watched_with_room(4);
  for (char* const memory : {first, second}) {
    ASSERT_EQ(mremap(memory, 4 * kPageBytes, 8 * kPageBytes, 0), memory);
  }
  events_->unwatch({as_address(second), as_address(second) + 4 * kPageBytes});
  events_.reset();
  EXPECT_EQ(munmap(first + 4 * kPageBytes, 4 * kPageBytes), 0);
  EXPECT_EQ(munmap(second + 4 * kPageBytes, 4 * kPageBytes), 0);
  EXPECT_EQ(munmap(first, 4 * kPageBytes), 0);
  EXPECT_EQ(munmap(second, 4 * kPageBytes), 0);
}

TEST_F(MemoryEventsWithChildTest, EndsWhereMemoryMoved) {
  char* const memory = map_pages(4);
  char* const other = map_pages(8, nullptr, PROT_NONE);
  watch(memory, 4);
  ASSERT_EQ(mremap(memory, 4 * kPageBytes, 8 * kPageBytes, MREMAP_MAYMOVE | MREMAP_FIXED, other),
            other);
  char* const emptied = map_pages(4);
  watch(emptied, 4);
  void* const moved =
      mremap(emptied, 4 * kPageBytes, 4 * kPageBytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
  ASSERT_NE(moved, MAP_FAILED);
  events_.reset();
  EXPECT_EQ(munmap(other, 8 * kPageBytes), 0);
  EXPECT_EQ(munmap(emptied, 4 * kPageBytes), 0);
  EXPECT_EQ(munmap(moved, 4 * kPageBytes), 0);
}

// One that has pages of its own is not ended with what lies beside it.
TEST_F(MemoryEventsTest, WatchesWhatLiesBesideOn) {
  char* const memory = map_pages(6);
  watch(memory, 6);
  const uint64_t begin = as_address(memory);
  events_->unwatch({begin + 2 * kPageBytes, begin + 4 * kPageBytes});
  EXPECT_EQ(munmap(memory + 2 * kPageBytes, 2 * kPageBytes), 0);
  EXPECT_TRUE(changes().empty());
  EXPECT_EQ(munmap(memory, 2 * kPageBytes), 0);
  expect_one(Kind::kUnmapped, memory, 2);
  EXPECT_EQ(munmap(memory + 4 * kPageBytes, 2 * kPageBytes), 0);
  expect_one(Kind::kUnmapped, memory + 4 * kPageBytes, 2);
}

// With all rights, as root has them, and with none.
TEST_F(MemoryEventsTest, NeedsNoPrivilege) {
  if (VERBENA_THREAD_SANITIZER != 0) GTEST_SKIP() << kNoThreadsInChildren;
  if (VERBENA_ADDRESS_SANITIZER != 0)
    GTEST_SKIP() << "a thread of the parent may hold the lock of AddressSanitizer's allocator";
  if (geteuid() != 0) GTEST_SKIP() << "the other tests of MemoryEvents run without privileges here";
  const pid_t child = fork();
  if (child == 0) {
    // The threads of the parent are not here, so nothing of it is used.
    constexpr uid_t kNobody = 65534;
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(1);
    uint64_t epoch = 2;
    auto events = MemoryEvents::create(&epoch);
    if (!events.ok()) _exit(2);
    char* const memory = map_pages(2);
    if (!(*events)->watch({as_address(memory), as_address(memory) + 2 * kPageBytes}).empty()) {
      _exit(3);
    }
    munmap(memory, 2 * kPageBytes);
    int changes = 0;
    uint64_t seen = 0;
    (*events)->wait_until_read(UINT64_MAX, &seen);
    (*events)->take([&](const auto&) { ++changes; });
    _exit(changes == 1 ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace verbena
