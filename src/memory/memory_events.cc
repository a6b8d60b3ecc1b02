#include "src/memory/memory_events.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "src/base/shared_memory.h"
#include "verbena/clock.h"

// Of headers newer than those of Linux 5.14.
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif

namespace verbena {
namespace {

// The last one is not used. It says that the kernel is Linux 5.19 or newer: before 5.16, of two
// changes at a time the count forgot one.
constexpr uint64_t kFeatures = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP |
                               UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP |
                               UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
constexpr int kTryOutMs = 10'000;
// A poll goes on although the program closes the descriptors, so it ends now and then.
constexpr int kPollMs = 1'000;

Status unsupported(const char* what, int error) {
  return {StatusCode::kUnsupported,
          fmt::format("changes of memory cannot be followed ({}: {}); needed are Linux 5.19 or "
                      "newer and the right to call userfaultfd, which containers often forbid",
                      what, std::strerror(error))};
}

AddressRange rounded_to(uint64_t unit, AddressRange range) {
  return {range.begin & ~(unit - 1), (range.end + unit - 1) & ~(unit - 1)};
}

}  // namespace

Result<std::unique_ptr<MemoryEvents>> MemoryEvents::create(uint64_t* epoch) {
  std::unique_ptr<MemoryEvents> events(new MemoryEvents(epoch));
  VERBENA_RETURN_IF_ERROR(events->open());
  VERBENA_RETURN_IF_ERROR(events->try_out());
  events->reader_ = start_thread("verbena-memory", [raw = events.get()] { raw->read_events(); });
  if (!events->reader_.joinable()) return unsupported("no thread can be started", EAGAIN);
  return events;
}

Status MemoryEvents::open() {
  VERBENA_ASSIGN_OR_RETURN(mappings_, VmaQuery::open());
  const auto descriptor =
      static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  if (descriptor < 0) return unsupported("userfaultfd", errno);
  userfaultfd_ = HiddenDescriptor(descriptor);
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kFeatures;
  if (ioctl(userfaultfd_.get(), UFFDIO_API, &api) != 0) return unsupported("UFFDIO_API", errno);
  // Not an eventfd: all of those have one inode.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return unsupported("pipe2", errno);
  woken_ = HiddenDescriptor(ends[0]);
  wakes_ = HiddenDescriptor(ends[1]);
  return {};
}

// All rests on this: that a change is counted until its event has been read.
Status MemoryEvents::try_out() {
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  void* const page =
      mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return unsupported("mmap", errno);
  const auto begin = reinterpret_cast<uint64_t>(page);
  if (!control_range(UFFDIO_REGISTER, {begin, begin + page_bytes})) {
    const int error = errno;
    munmap(page, page_bytes);
    return unsupported("UFFDIO_REGISTER", error);
  }
  const bool calm_before = !changing();
  Thread changer = start_thread("verbena-memory", [&] { munmap(page, page_bytes); });
  if (!changer.joinable()) {
    control_range(UFFDIO_UNREGISTER, {begin, begin + page_bytes});
    munmap(page, page_bytes);
    return unsupported("no thread can be started", EAGAIN);
  }
  pollfd event{userfaultfd_.get(), POLLIN, 0};
  while (poll(&event, 1, kTryOutMs) < 0 && errno == EINTR) {
  }
  const bool counted = changing();
  uffd_msg message{};
  const bool read_one = read(userfaultfd_.get(), &message, sizeof(message)) == sizeof(message) &&
                        message.event == UFFD_EVENT_UNMAP;
  changer.join();
  if (calm_before && counted && read_one && !changing()) return {};
  return unsupported("its events are not those that are needed", ENOSYS);
}

MemoryEvents::~MemoryEvents() {
  if (reader_.joinable()) {
    // A child of fork() may have the descriptor, too: closing it does not end the watching then,
    // and who changes memory would wait for ever.
    uint64_t epoch;
    do {
      take([](const Change&) {});
      for (const AddressRange& range : watched_.all()) {
        unwatch(range);
        watched_.remove(range);
      }
    } while (wait_until_read(UINT64_MAX, &epoch) && written_.load() != taken_.load());
    ending_.store(true, std::memory_order_release);
    if (wakes_.is_there()) {
      const char byte = 0;
      [[maybe_unused]] const ssize_t written = write(wakes_.get(), &byte, 1);
    }
    reader_.join();
  }
}

// 0: calm; EAGAIN: changes go on; another error: nobody knows.
int MemoryEvents::why_not_calm() const {
  if (!userfaultfd_.is_there()) return EBADF;
  // Refused in any case, for it is about no memory; but before that for changes that go on.
  uffdio_writeprotect nothing{};
  const int error = ioctl(userfaultfd_.get(), UFFDIO_WRITEPROTECT, &nothing) == 0 ? 0 : errno;
  // What the caller loads next is not older than the answer.
  std::atomic_thread_fence(std::memory_order_acquire);
  return error == EINVAL ? 0 : error;
}

bool MemoryEvents::wait_until_read(uint64_t limit_ns, uint64_t* epoch) const {
  const uint64_t begun_ns = now_ns();
  for (Waiter waiter;; waiter.idle()) {
    const int error = why_not_calm();
    if (error == 0) {
      *epoch = load_acquire(epoch_);
      if (*epoch % 2 == 0) return true;
    }
    if ((error != 0 && error != EAGAIN) || now_ns() - begun_ns > limit_ns) return false;
  }
}

void MemoryEvents::read_events() {
  pollfd ready[] = {{userfaultfd_.get(), POLLIN, 0}, {woken_.get(), POLLIN, 0}};
  while (!ending_.load(std::memory_order_acquire)) {
    const int events = poll(ready, 2, kPollMs);
    // Else the bytes of another file would be taken from who reads it.
    if (!userfaultfd_.is_there()) return;
    if (events <= 0) continue;
    if (ready[1].revents != 0 && !woken_.is_there()) ready[1].fd = -1;
    if ((ready[0].revents & POLLIN) == 0) continue;
    // Odd before the read that lets the program go on: see changing().
    const uint64_t epoch = load_relaxed(epoch_);
    store_relaxed(epoch_, epoch + 1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    uffd_msg messages[16];
    const ssize_t bytes = read(userfaultfd_.get(), messages, sizeof(messages));
    for (ssize_t i = 0; (i + 1) * static_cast<ssize_t>(sizeof(uffd_msg)) <= bytes; ++i) {
      const uffd_msg& message = messages[i];
      if (message.event == UFFD_EVENT_REMAP) {
        const auto& remap = message.arg.remap;
        log({Change::Kind::kMoved, {remap.from, remap.from + remap.len}, remap.to});
      } else if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
        log({message.event == UFFD_EVENT_UNMAP ? Change::Kind::kUnmapped : Change::Kind::kDiscarded,
             {message.arg.remove.start, message.arg.remove.end}});
      }
    }
    // Release: whoever sees it even finds the changes.
    store_release(epoch_, epoch + 2);
  }
}

void MemoryEvents::log(const Change& change) {
  const uint64_t written = written_.load(std::memory_order_relaxed);
  // Acquire: the place is no longer read from.
  const uint64_t waiting = written - taken_.load(std::memory_order_acquire);
  VERBENA_ASSERT(waiting <= kMostChanges);
  if (waiting == kMostChanges) {
    lost_.store(true, std::memory_order_release);
    return;
  }
  changes_[written % kMostChanges] = change;
  written_.store(written + 1, std::memory_order_release);
}

void MemoryEvents::note(const Change& change) {
  if (change.kind == Change::Kind::kDiscarded) return;  // the memory is watched on
  watched_.remove(change.range);
  if (change.kind == Change::Kind::kMoved) {
    // MREMAP_DONTUNMAP leaves a mapping there, which is watched on. Refused where there is none.
    control_range(UFFDIO_UNREGISTER, change.range);
    watched_.add({change.moved_to, change.moved_to + change.range.bytes()});
  }
}

bool MemoryEvents::control_range(unsigned long request, AddressRange range) const {
  if (!userfaultfd_.is_there()) {
    errno = EBADF;
    return false;
  }
  const uffdio_range pages{range.begin, range.bytes()};
  if (request == UFFDIO_UNREGISTER) return ioctl(userfaultfd_.get(), request, &pages) == 0;
  uffdio_register watching{};
  watching.range = pages;
  watching.mode = UFFDIO_REGISTER_MODE_WP;
  return ioctl(userfaultfd_.get(), request, &watching) == 0;
}

std::string MemoryEvents::watch(AddressRange pages) {
  uint64_t unit = 1;
  uint64_t at = pages.begin;
  VmaQuery::Scan scan(mappings_, pages.begin, pages.end, VmaQuery::Detail::kNamed);
  for (Vma vma; at < pages.end && scan.next(&vma) && vma.start <= at; at = vma.end) {
    const bool huge = vma.named("/anon_hugepage");
    if (vma.shared || (vma.inode != 0 && !huge)) {
      return fmt::format("{} may change by way of its file, of which there is no event",
                         vma.named("/") ? vma.name : "shared memory");
    }
    if (huge) unit = std::max<uint64_t>({unit, vma.page_bytes, 2u << 20});
  }
  if (at < pages.end) {
    return "some of it is not mapped, or the program has closed what tells of its mappings";
  }
  const AddressRange watched = rounded_to(unit, pages);
  if (!control_range(UFFDIO_REGISTER, watched)) {
    return fmt::format("UFFDIO_REGISTER: {}", std::strerror(errno));
  }
  watched_.add(watched);
  return {};
}

void MemoryEvents::unwatch(AddressRange pages) {
  for (const AddressRange& range : watched_.within(pages)) {
    // One mapping after the other: all or nothing is done of a range.
    VmaQuery::Scan scan(mappings_, range.begin, range.end);
    for (Vma vma; scan.next(&vma);) {
      const AddressRange part{std::max(range.begin, vma.start), std::min(range.end, vma.end)};
      // Refused for a part of a huge page, which is watched on.
      if (control_range(UFFDIO_UNREGISTER, part)) watched_.remove(part);
      // What mremap() made it longer by was not asked for, and is watched, too.
      RangeSet rest;
      rest.add({vma.start, vma.end});
      rest.remove(part);
      for (const AddressRange& other : watched_.within({vma.start, vma.end})) rest.remove(other);
      for (const AddressRange& grown : rest.all()) control_range(UFFDIO_UNREGISTER, grown);
    }
  }
}

}  // namespace verbena
