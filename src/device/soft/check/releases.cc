// Memory that the program gives back while it is registered.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "src/device/soft/check/caller.h"
#include "src/device/soft/check/check_records.h"
#include "src/device/soft/objects.h"

namespace verbena::soft::check {
namespace {

// Memory is given back from within malloc, too, perhaps while this thread or another one holds
// State::mutex and allocates. So it is noted here, without a lock, for the next one who takes it.
// What finds no room is not checked.
struct Slot {
  std::atomic<uint64_t> begin{0};
  std::atomic<uint64_t> end{0};
  Frames frames{};
  std::atomic<uint32_t> state{0};  // free, being written, written
};
constexpr uint32_t kFree = 0;
constexpr uint32_t kBeingWritten = 1;
constexpr uint32_t kWritten = 2;
constexpr size_t kSlots = 512;

std::array<Slot, kSlots> slots;
std::atomic<uint32_t> written{0};  // slots
// All memory that is or was registered lies within.
std::atomic<uint64_t> lowest{~uint64_t{0}};
std::atomic<uint64_t> highest{0};

constexpr size_t kMaxReleased = 16;  // of a region

bool overlaps(const Piece& piece, uint64_t begin, uint64_t end) {
  return piece.begin < end && begin < piece.end();
}

bool is_at_work(const QpRecord& qp) {
  const ibv_qp_state state = as_qp(qp.verbs).state.load(std::memory_order_relaxed);
  return qp.process == this_process() && state != IBV_QPS_RESET && state != IBV_QPS_ERR;
}

template <typename Queue>
void check_queue(State& all, const Queue& queue, uint32_t lkey,
                 const RegionRecord::Released& released, const std::string& object,
                 const char* kind) {
  for (const auto& work : queue) {
    for (const Piece& piece : work.pieces) {
      if (piece.lkey != lkey || !overlaps(piece, released.begin, released.end)) continue;
      all.report_later(
          {.kind = CheckKind::kUnmappedInUse,
           .other_place = work.place,
           .what = fmt::format("memory was unmapped that a posted {} uses", kind),
           .object = fmt::format("{}, wr_id {:#x}, {} bytes at {:#x}, lkey {:#x}", object,
                                 work.wr_id, piece.length_bytes, piece.address, piece.lkey),
           .other = "posted",
           .hardware = "goes on using the old pages, which the program does not see any "
                       "more",
           .remedy = "unmap memory after the completions of what uses it were polled",
           .frames = released.frames});
      return;
    }
  }
}

void take_release(State& all, const RegionRecord::Released& released) {
  for (auto& [lkey, region] : all.regions) {
    if (released.begin >= region.end || region.begin >= released.end ||
        (region.access & IBV_ACCESS_ON_DEMAND) != 0) {
      continue;
    }
    if (region.released.size() == kMaxReleased) region.released.erase(region.released.begin());
    region.released.push_back(released);
    all.report_later(
        {.kind = CheckKind::kUnmappedRegistered,
         .what = "memory was unmapped that is registered",
         .object = fmt::format("[{:#x}, {:#x}) of the region [{:#x}, {:#x}), lkey {:#x}",
                               released.begin, released.end, region.begin, region.end, lkey),
         .hardware = "keeps the old pages until the region is deregistered; peers reach "
                     "these, not what is mapped there later",
         .remedy = "ibv_dereg_mr() before munmap()",
         .frames = released.frames});
    for (const auto& [verbs, qp] : all.qps) {
      if (!is_at_work(*qp)) continue;
      check_queue(all, qp->sends, lkey, released, describe(*qp), "send");
      check_queue(all, qp->receives, lkey, released, describe(*qp), "receive");
    }
    for (const auto& [verbs, srq] : all.srqs) {
      if (srq->process != this_process() || srq->users == 0) continue;
      check_queue(all, srq->receives, lkey, released, "a shared receive queue", "receive");
    }
  }
}

}  // namespace

void note_region_bounds(uint64_t begin, uint64_t end) {
  uint64_t seen = lowest.load(std::memory_order_relaxed);
  while (begin < seen && !lowest.compare_exchange_weak(seen, begin)) {
  }
  seen = highest.load(std::memory_order_relaxed);
  while (end > seen && !highest.compare_exchange_weak(seen, end)) {
  }
}

void pages_released(void* address, size_t length_bytes) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  const uint64_t end = begin + length_bytes;
  if (begin < highest.load(std::memory_order_relaxed) &&
      end > lowest.load(std::memory_order_relaxed)) {
    for (Slot& slot : slots) {
      uint32_t expected = kFree;
      if (!slot.state.compare_exchange_strong(expected, kBeingWritten)) continue;
      slot.begin.store(begin, std::memory_order_relaxed);
      slot.end.store(end, std::memory_order_relaxed);
      collect_frames(slot.frames);
      slot.state.store(kWritten, std::memory_order_release);
      written.fetch_add(1);
      break;
    }
  }
  next().rnic.pages_released(address, length_bytes);
}

void take_releases(State& all) {
  if (written.load() == 0) return;
  for (Slot& slot : slots) {
    if (slot.state.load(std::memory_order_acquire) != kWritten) continue;
    const RegionRecord::Released released{slot.begin.load(std::memory_order_relaxed),
                                          slot.end.load(std::memory_order_relaxed),
                                          std::make_shared<const Frames>(slot.frames)};
    slot.state.store(kFree, std::memory_order_release);
    written.fetch_sub(1);
    take_release(all, released);
  }
}

}  // namespace verbena::soft::check
