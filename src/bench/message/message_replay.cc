#include "src/bench/message/message_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/message/replay_pending.h"
#include "src/bench/message/replay_source.h"
#include "verbena/data_path.h"

namespace verbena::bench {

namespace {

// Of a message's place: whether it belongs to a collective operation; then which one.
constexpr uint64_t kOfCollective = uint64_t{1} << 47;
constexpr uint32_t kOrdinalBits = 28;
static_assert(trace::kMostCommunicators + trace::kMostRecordedRanks < (1u << (47 - kOrdinalBits)));

// Shorter than that is computed, not slept, on a real machine.
constexpr uint64_t kShortNs = 200'000;
constexpr uint64_t kWakeEarlyNs = 100'000;

}  // namespace

Status MessageReplay::open() {
  VERBENA_ASSIGN_OR_RETURN(job_, replay_job(rank_.job().setup.point));
  recording_ = &job_->ranks[rank_.number()];
  if (const uint64_t pending = replay_pending(*job_, rank_.number());
      pending > kMostReplayPending) {
    return {StatusCode::kLimitExceeded,
            fmt::format("rank {} of {} has {} messages pending at once, and at most {} are "
                        "replayed; record a smaller run of the program",
                        rank_.number(), job_->name, pending, kMostReplayPending)};
  }
  memory_.emplace(*job_, rank_.number());
  if (memory_->size_bytes() > kMostReplayBytes) {
    return {StatusCode::kLimitExceeded,
            fmt::format("{} has buffers of rank {} beyond {}, which no process can have; record "
                        "the program again",
                        job_->name, rank_.number(), size_text(kMostReplayBytes))};
  }
  if (!memory_->allocate()) {
    return {StatusCode::kLimitExceeded,
            fmt::format("this machine has no memory for the buffers of rank {}, {}", rank_.number(),
                        size_text(memory_->size_bytes()))};
  }
  everybody_.resize(rank_.size());
  std::iota(everybody_.begin(), everybody_.end(), 0u);
  deferred_sends_.resize(rank_.size());
  uint32_t requests = 0;
  for (const trace::Event& event : recording_->events) requests = std::max(requests, event.request);
  is_complete_.resize(requests + 1);
  rank_.tell(this);
  return Status::ok_status();
}

void MessageReplay::begin(const Phase& phase) {
  kind_ = phase.kind;
  operations_ = 0;
  slots_.assign(1, {});  // no name is 0
  free_slots_.clear();
  used_slots_ = deferred_ = 0;
  for (auto& messages : deferred_sends_) messages.clear();
  deferred_receives_.clear();
  collectives_.clear();
  active_.clear();
  ordinals_.assign(job_->communicators.size() + 1, 0);
}

void MessageReplay::abandon() {
  for (uint32_t name = 1; name < slots_.size(); ++name) {
    if (slots_[name].used && slots_[name].receives) rank_.forget_receive(name);
  }
}

bool MessageReplay::run() {
  if (!barrier()) return false;
  if (kind_ != PhaseKind::kCost) {
    report_ = {};
    const uint64_t begun_ns = now_ns();
    if (!replay()) return false;
    report_.elapsed_ns = now_ns() - begun_ns;
    report_.call_ns = report_.elapsed_ns - std::min(report_.compute_ns, report_.elapsed_ns);
    rank_.note_collective(report_.call_ns);
    if (kind_ == PhaseKind::kTimed) leave_report(rank_.number(), report_);
  }
  if (!barrier()) return false;
  ++operations_;
  return true;
}

bool MessageReplay::barrier() {
  // Not one of the program's.
  trace::Event event{.operation = trace::Operation::kBarrier};
  event.communicator = static_cast<uint32_t>(job_->communicators.size());
  return finish(start_collective(event, everybody_, {}));
}

bool MessageReplay::replay() {
  std::fill(is_complete_.begin(), is_complete_.end(), uint8_t{0});
  for (const trace::Event& event : recording_->events) {
    if (event.compute_ns > 0) {
      const uint64_t begun_ns = now_ns();
      if (!compute(event.compute_ns)) return false;
      report_.compute_ns += now_ns() - begun_ns;
    }
    if (event.has(trace::kUnmatched)) {
      is_complete_[event.request] = 1;
    } else if (!call(event)) {
      return false;
    }
  }
  const uint64_t begun_ns = now_ns();
  if (!compute(recording_->last_compute_ns)) return false;
  report_.compute_ns += now_ns() - begun_ns;
  return drain();
}

bool MessageReplay::compute(uint64_t duration_ns) const {
  const uint64_t scaled_ns = static_cast<uint64_t>(static_cast<double>(duration_ns) *
                                                   rank_.settings().compute_percent / 100);
  if (VirtualTime::current() != nullptr) {
    if (scaled_ns > 0) sleep_ns(scaled_ns);
    return true;
  }
  const uint64_t end_ns = now_ns() + scaled_ns;
  if (scaled_ns > kShortNs) sleep_ns(scaled_ns - kWakeEarlyNs);
  while (now_ns() < end_ns) cpu_relax();
  return true;
}

bool MessageReplay::call(const trace::Event& event) {
  if (event.operation == trace::Operation::kWait) return wait(event);
  if (!trace::is_collective(event.operation)) return message(event);
  const uint32_t started =
      start_collective(event, job_->communicators[event.communicator], recording_->list(event));
  return event.has(trace::kNonblocking) || finish(started);
}

bool MessageReplay::message(const trace::Event& event) {
  const bool receives = event.operation == trace::Operation::kReceive ||
                        event.operation == trace::Operation::kStartReceive;
  is_blocked_ = event.request == 0 && !event.has(trace::kBuffered);
  const uint32_t name = name_slot({.bytes = event.bytes,
                                   .request = event.request,
                                   .receives = receives,
                                   .blocks = is_blocked_,
                                   .used = true});
  const Deferred message{.place = event.channel,
                         .bytes = memory_->at(event),
                         .size_bytes = event.bytes,
                         .peer = event.peer,
                         .name = name,
                         .synchronous = event.has(trace::kSynchronous)};
  receives ? receive(message) : send(message);
  while (is_blocked_) {
    if (!look()) return false;
  }
  return rank_.status().ok();
}

uint32_t MessageReplay::start_collective(const trace::Event& event,
                                         std::span<const uint32_t> members,
                                         std::span<const uint64_t> list) {
  const auto self = static_cast<uint32_t>(
      std::find(members.begin(), members.end(), rank_.number()) - members.begin());
  uint32_t number = 0;
  while (number < collectives_.size() && !collectives_[number].is_over) ++number;
  if (number == collectives_.size()) collectives_.emplace_back();
  const uint64_t nth = ordinals_[event.communicator]++ & ((uint64_t{1} << kOrdinalBits) - 1);
  collectives_[number] = {
      .steps = collective_schedule(event, list, members, self),
      .request = event.request,
      .place = kOfCollective | uint64_t{event.communicator} << kOrdinalBits | nth,
      .is_over = false};
  active_.push_back(number);
  advance(collectives_[number]);
  return number;
}

bool MessageReplay::finish(uint32_t collective) {
  while (!collectives_[collective].is_over) {
    if (!look()) return false;
  }
  return rank_.status().ok();
}

bool MessageReplay::wait(const trace::Event& event) {
  for (const uint64_t request : recording_->list(event)) {
    while (is_complete_[request] == 0) {
      if (!look()) return false;
    }
  }
  return true;
}

bool MessageReplay::drain() {
  while (used_slots_ > 0 || !active_.empty()) {
    if (!look()) return false;
  }
  return rank_.status().ok();
}

bool MessageReplay::look() {
  if (!rank_.idle()) return false;
  if (deferred_ > 0) retry();
  if (!active_.empty()) advance_collectives();
  return rank_.status().ok();
}

void MessageReplay::advance_collectives() {
  // What one of them starts is none of the others.
  for (const uint32_t number : active_) advance(collectives_[number]);
  std::erase_if(active_, [this](uint32_t number) { return collectives_[number].is_over; });
}

void MessageReplay::advance(Collective& collective) {
  const auto number = static_cast<uint32_t>(&collective - collectives_.data()) + 1;
  for (; collective.at < collective.steps.size(); ++collective.at) {
    const ReplayStep& step = collective.steps[collective.at];
    if (step.kind == ReplayStep::Kind::kWait) {
      if (collective.pending > 0) return;
      continue;
    }
    if (step.kind == ReplayStep::Kind::kCopy) {
      count_copied_bytes(step.bytes);
      continue;
    }
    const bool receives = step.kind == ReplayStep::Kind::kReceive;
    ++collective.pending;
    const Deferred message{
        .place = collective.place,
        .bytes = memory_->scratch() + step.offset,
        .size_bytes = step.bytes,
        .peer = step.peer,
        .name = name_slot(
            {.bytes = step.bytes, .collective = number, .receives = receives, .used = true})};
    receives ? receive(message) : send(message);
  }
  if (collective.pending > 0 || collective.is_over) return;
  collective.is_over = true;
  if (collective.request != 0) is_complete_[collective.request] = 1;
}

void MessageReplay::done(uint32_t name, const MessageCompletion& completion) {
  Slot& slot = slots_[name];
  VERBENA_ASSERT(slot.used);
  // Less is as wrong as more, which is kTruncated.
  if (slot.receives && completion.outcome == MessageOutcome::kOk &&
      completion.bytes != slot.bytes) {
    rank_.note_mismatch();
  }
  if (slot.request != 0) is_complete_[slot.request] = 1;
  if (slot.blocks) is_blocked_ = false;
  if (slot.collective != 0) --collectives_[slot.collective - 1].pending;
  slot.used = false;
  free_slots_.push_back(name);
  --used_slots_;
}

uint32_t MessageReplay::name_slot(const Slot& slot) {
  uint32_t name = static_cast<uint32_t>(slots_.size());
  if (free_slots_.empty()) {
    slots_.push_back(slot);
  } else {
    name = free_slots_.back();
    free_slots_.pop_back();
    slots_[name] = slot;
  }
  ++used_slots_;
  return name;
}

// What the messenger does not take now waits here, behind what waits already.
void MessageReplay::send(const Deferred& message) {
  ++report_.messages;
  report_.bytes += message.size_bytes;
  std::deque<Deferred>& before = deferred_sends_[message.peer];
  if (before.empty() &&
      rank_.post_send(message.peer, message.place, message.bytes, message.size_bytes, message.name,
                      message.synchronous) == PostResult::kPosted) {
    return;
  }
  before.push_back(message);
  ++deferred_;
}

void MessageReplay::receive(const Deferred& message) {
  if (deferred_receives_.empty() &&
      rank_.post_receive(message.peer, message.place, message.bytes, message.size_bytes,
                         message.name) == PostResult::kPosted) {
    return;
  }
  deferred_receives_.push_back(message);
  ++deferred_;
}

void MessageReplay::retry() {
  while (!deferred_receives_.empty()) {
    const Deferred& one = deferred_receives_.front();
    if (rank_.post_receive(one.peer, one.place, one.bytes, one.size_bytes, one.name) !=
        PostResult::kPosted) {
      break;
    }
    deferred_receives_.pop_front();
    --deferred_;
  }
  for (std::deque<Deferred>& messages : deferred_sends_) {
    while (!messages.empty()) {
      const Deferred& one = messages.front();
      if (rank_.post_send(one.peer, one.place, one.bytes, one.size_bytes, one.name,
                          one.synchronous) != PostResult::kPosted) {
        break;
      }
      messages.pop_front();
      --deferred_;
    }
  }
}

}  // namespace verbena::bench
