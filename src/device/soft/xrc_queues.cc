#include "src/device/soft/xrc_queues.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "src/base/log.h"
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
    const PeerFlight flight{.process = process,
                            .word = &shared->in_flight,
                            .seen = shared->in_flight.load(std::memory_order_acquire),
                            .published = &published,
                            .address = address};
    // Still this queue pair, or the word was none.
    if (flight.seen % 2 != 0 && !flight.over()) flights.push_back(flight);
  }
}

// Whether no process in a slot can be sending here, by the failure to attach it: there is none, or
// one of another layout or PID namespace, which cannot attach this one either.
bool is_no_sender(const Status& failure) {
  return failure.code() == StatusCode::kUnavailable || failure.code() == StatusCode::kUnsupported ||
         failure.code() == StatusCode::kProtocolViolation;
}

// Whether a claim may be that of a living process: it has such a queue pair.
bool may_have_made(Peer& process, uint64_t claim) {
  const uint64_t address =
      process.header().queue_pairs[index_of(marked_number(claim))].load(std::memory_order_acquire);
  if (address == 0) return false;
  const auto* shared = map_array<QpShared>(process, address, 1, sizeof(QpShared), 1);
  return shared == nullptr ||
         load_relaxed(&shared->transport) == static_cast<uint32_t>(Transport::kXrcSend);
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
  const std::lock_guard guard(senders_mutex_);
  for_each_sender(rnic_.header(), [&](uint32_t slot) {
    if (slot == rnic_.slot()) return;
    const Result<std::shared_ptr<Peer>> process = rnic_.attach(slot);
    if (process.ok()) return add_flights_of(*process, flights);
    if (is_no_sender(process.status())) return;
    log_warning("soft0: cannot tell whether the XRC sender in slot {} is using memory: {}", slot,
                process.status().message());
    flights.push_back({.process = nullptr, .word = nullptr, .seen = 0, .slot = slot, .to = this});
  });
}

bool XrcQueues::sends_nothing(uint32_t slot) {
  const Result<std::shared_ptr<Peer>> process = rnic_.attach(slot);
  if (!process.ok()) return is_no_sender(process.status());
  std::vector<PeerFlight> flights;
  add_flights_of(*process, flights);
  return flights.empty();
}

void XrcQueues::watch_senders() {
  unwatched_.store(false, std::memory_order_relaxed);
  forget_ended_senders();
  for_each_sender(rnic_.header(), [this](uint32_t slot) {
    if (slot == rnic_.slot() || watched_.contains(slot)) return;
    const Result<std::shared_ptr<Peer>> process = rnic_.attach(slot);
    if (process.ok()) {
      watched_.emplace(slot, *process);
      return;
    }
    if (is_no_sender(process.status())) return sender_ended(slot);
    note_unwatched(process.status());
    if (!std::exchange(said_unwatched_, true)) {
      log_warning("soft0: cannot watch the XRC sender in slot {}: {}", slot,
                  process.status().message());
    }
  });
}

void XrcQueues::forget_ended_senders() {
  std::erase_if(watched_, [](const auto& known) { return known.second->dead(); });
}

void XrcQueues::note_unwatched(const Status& failure) {
  // What is refused for another reason stays so.
  if (failure.code() == StatusCode::kLimitExceeded) {
    unwatched_.store(true, std::memory_order_relaxed);
  }
}

void XrcQueues::sender_ended(uint32_t slot) {
  {
    const std::lock_guard guard(mutex_);
    std::vector<std::pair<Srq*, std::vector<uint64_t>>> taken;
    for (Srq* queue : queues_) {
      if (queue != nullptr) taken.emplace_back(queue, claims_of(*queue, slot));
    }
    // After the claims were read: whoever is not there now fills none of them any more.
    const Result<std::shared_ptr<Peer>> process = rnic_.attach(slot);
    const bool unknown = !process.ok() && !is_no_sender(process.status());
    if (unknown) note_unwatched(process.status());
    for (auto& [queue, claims] : taken) {
      for (uint64_t& claim : claims) {
        if (claim != 0 && (unknown || (process.ok() && may_have_made(**process, claim)))) claim = 0;
      }
      reclaim_xrc_receives(*queue, claims);
    }
  }
  forget_sender(slot);
}

void XrcQueues::forget_sender(uint32_t slot) {
  const std::lock_guard guard(senders_mutex_);
  std::atomic<uint64_t>& bits = rnic_.header().xrc_senders[slot / 64];
  const uint64_t bit = 1ull << (slot % 64);
  if ((bits.fetch_and(~bit) & bit) == 0) return;
  // A process that takes the slot from here on says itself that it sends.
  const Result<std::shared_ptr<Peer>> process = rnic_.attach(slot);
  if (process.ok() || !is_no_sender(process.status())) bits.fetch_or(bit);
  if (!process.ok()) note_unwatched(process.status());
}

}  // namespace verbena::soft
