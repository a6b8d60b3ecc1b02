#include "src/device/soft/xrc_queues.h"

#include <fmt/format.h>

#include <bit>

#include "src/base/shared_memory.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/xrc.h"

namespace verbena::soft {
namespace {

// Runs `use` on each slot whose process has begun to send to this one.
template <typename Use>
void for_each_sender(const Header& header, Use&& use) {
  for (uint32_t word = 0; word < std::size(header.xrc_senders); ++word) {
    uint64_t bits = header.xrc_senders[word].load(std::memory_order_acquire);
    for (; bits != 0; bits &= bits - 1) {
      use(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
}

// What queue pairs of `process` that send by XRC are in the middle of.
void add_flights_of(const std::shared_ptr<Peer>& process, std::vector<PeerFlight>& flights) {
  for (const std::atomic<uint64_t>& published : process->header().queue_pairs) {
    const uint64_t address = published.load(std::memory_order_acquire);
    if (address == 0) continue;
    const auto* shared = map_array<QpShared>(*process, address, 1, sizeof(QpShared), 1);
    if (shared == nullptr ||
        load_relaxed(&shared->transport) != static_cast<uint32_t>(Transport::kXrcSend)) {
      continue;
    }
    const uint64_t seen = shared->in_flight.load(std::memory_order_acquire);
    // Still this queue pair, or the word was none.
    if (seen % 2 != 0 && published.load(std::memory_order_acquire) == address) {
      flights.push_back({process, &shared->in_flight, seen});
    }
  }
}

}  // namespace

Result<uint32_t> XrcQueues::publish(Srq& srq) {
  const std::lock_guard guard(mutex_);
  for (uint32_t step = 0; step < kMaxSharedReceiveQueues; ++step) {
    const uint32_t index = (next_index_ + step) % kMaxSharedReceiveQueues;
    if (index >= queues_.size()) queues_.resize(index + 1, nullptr);
    if (queues_[index] != nullptr) continue;
    queues_[index] = &srq;
    next_index_ = index + 1;
    XrcQueue& xrc = *srq.xrc;
    xrc.number = make_qp_number(rnic_.slot(), index);
    xrc.stamp = uint64_t{rnic_.next_generation()} << 32 | xrc.number;
    xrc.shared->stamp.store(xrc.stamp, std::memory_order_release);
    rnic_.header().xrc_queues[index].store(reinterpret_cast<uint64_t>(xrc.shared),
                                           std::memory_order_release);
    return xrc.number;
  }
  return Status(StatusCode::kLimitExceeded,
                fmt::format("soft0: all {} shared receive queues of this process are in use; "
                            "destroy some, or use another process",
                            kMaxSharedReceiveQueues));
}

void XrcQueues::withdraw(const Srq& srq) {
  const std::lock_guard guard(mutex_);
  const uint32_t index = index_of(srq.xrc->number);
  if (queues_[index] != &srq) return;
  rnic_.header().xrc_queues[index].store(0, std::memory_order_release);
  srq.xrc->shared->stamp.store(0, std::memory_order_release);
  queues_[index] = nullptr;
}

void XrcQueues::add_flights(std::vector<PeerFlight>& flights) {
  for_each_sender(rnic_.header(), [&](uint32_t slot) {
    if (slot == rnic_.slot()) return;
    const Result<std::shared_ptr<Peer>> process = rnic_.attach(slot);
    if (process.ok()) add_flights_of(*process, flights);
  });
}

void XrcQueues::watch_senders() {
  for_each_sender(rnic_.header(), [this](uint32_t slot) {
    if (slot == rnic_.slot()) return;
    std::shared_ptr<Peer>& watched = watched_[slot];
    if (watched != nullptr && !watched->dead()) return;
    Result<std::shared_ptr<Peer>> process = rnic_.attach(slot);
    watched = process.ok() ? *process : nullptr;
    if (watched == nullptr || watched->dead()) sender_ended(slot);
  });
}

void XrcQueues::sender_ended(uint32_t slot) {
  const std::lock_guard guard(mutex_);
  for (Srq* queue : queues_) {
    if (queue != nullptr) reclaim_xrc_receives(*queue, slot);
  }
}

}  // namespace verbena::soft
