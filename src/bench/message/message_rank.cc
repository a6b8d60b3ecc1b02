#include "src/bench/message/message_rank.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "src/bench/load/payload_pattern.h"

namespace verbena::bench {

namespace {

// Few: as in the closed loop, each empty poll may cost somebody else's time slice.
constexpr uint32_t kLooksPerCheck = 64;
// A call of progress() that polls rings does not poll the completion queue each time.
constexpr uint32_t kPollsOfAll = 4;
constexpr uint64_t kExposedKey = 1;
// Of phase 0, before any is measured.
constexpr uint32_t kMeeting = 0;
// Of any phase, behind its last messages.
constexpr uint32_t kOver = 64;

std::string numeric_host(const NodeJob& job) {
  // In a simulation nodes are told apart by their ports.
  return VirtualTime::current() != nullptr ? MessengerOptions{}.host : job.address;
}

}  // namespace

// A completion tells what it is of by its context: the phase, its name, and whether it is a
// receive.
void* MessageRank::context(bool receive, uint32_t name) const {
  return reinterpret_cast<void*>(uintptr_t{phase_} << 32 | uintptr_t{name} << 1 |
                                 (receive ? 1 : 0));
}

Status MessageRank::open() {
  MessengerOptions options = messenger_options(job_.setup.point, number_);
  options.host = numeric_host(job_);
  VERBENA_ASSIGN_OR_RETURN(messenger_,
                           open_messenger(job_.device, job_.domain, job_.secret, options));
  return Status::ok_status();
}

Status MessageRank::know(std::span<const MessengerAddress> addresses) {
  for (const MessengerAddress& address : addresses) {
    VERBENA_ASSIGN_OR_RETURN(const PeerNumber peer, messenger_->add_peer(address));
    peers_.push_back(peer);
  }
  if (settings_.policy != PollingSetPolicy::kHints) return Status::ok_status();
  for (uint32_t rank = 0; rank < size_; ++rank) {
    const bool active = rank == 0 || is_active_rank(job_.setup.point, rank);
    if (rank != number_ && active) messenger_->hint(peers_[rank], 1);
  }
  return Status::ok_status();
}

Status MessageRank::meet() {
  silence_ = SilenceWatch(kSetupTimeoutNs, now_ns());
  char nothing = 0;
  if (number_ != 0) {
    if (receive(0, kMeeting, &nothing, 0) && wait_all()) send(0, kMeeting, &nothing, 0);
    return status_;
  }
  // In lots: all at once would wait for one another's connections.
  constexpr uint32_t kLot = 32;
  for (uint32_t first = 1; first < size_ && status_.ok(); first += kLot) {
    const uint32_t end = std::min(first + kLot, size_);
    for (uint32_t rank = first; rank < end; ++rank) receive(rank, kMeeting, &nothing, 0);
    for (uint32_t rank = first; rank < end; ++rank) send(rank, kMeeting, &nothing, 0);
    wait_all();
  }
  return status_;
}

void MessageRank::begin(const Phase& phase) {
  phase_ = static_cast<uint32_t>(phase.number);
  verify_ = phase.verify;
  costs_ = phase.kind == PhaseKind::kCost;
  silence_ = SilenceWatch(phase.stall_ns, now_ns());
  pending_receives_ = pending_sends_ = 0;
  mismatches_ = cost_cycles_ = collectives_ = collective_ns_ = 0;
  before_ = messenger_->statistics();
  after_.reset();
}

void MessageRank::abandon(std::span<const uint32_t> partners) {
  costs_ = false;
  while (pending_receives_ > 0 && messenger_->cancel(context(/*receive=*/true))) look();
  const uint64_t deadline_ns = now_ns() + uint64_t{kSetupTimeoutNs};
  const auto goes_on = [&] { return status_.ok() && now_ns() < deadline_ns; };
  while (pending_receives_ > 0 && goes_on()) look();
  after_ = messenger_->statistics();
  for (const uint32_t partner : partners) {
    while (goes_on() && !try_receive(partner, kOver, &nothing_, 0)) look();
    while (goes_on() && !try_send(partner, kOver, &nothing_, 0)) look();
  }
  while (pending_receives_ > 0 && goes_on()) look();
  if (pending_receives_ > 0) {
    fail({StatusCode::kTimeout,
          fmt::format("messages that had begun to arrive did not end within {} s; is a peer's "
                      "process stopped, or its machine overloaded?",
                      kSetupTimeoutNs / 1'000'000'000)});
  }
}

void MessageRank::look() {
  std::array<MessageCompletion, 16> done;
  const uint32_t count = messenger_->poll(done);
  for (uint32_t i = 0; i < count; ++i) take(done[i]);
  count > 0 ? waiter_.progress() : waiter_.idle();
}

void MessageRank::end(Report& report, uint64_t operations) {
  const MessengerStatistics now = after_.value_or(messenger_->statistics());
  const uint64_t by_ring = now.ring_messages - before_.ring_messages;
  const uint64_t by_send = now.queue_messages - before_.queue_messages;
  report.counters[kChannelMessages] = by_ring + by_send;
  report.counters[kRingMessages] = by_ring;
  report.counters[kCreditMessages] = now.credit_messages - before_.credit_messages;
  report.counters[kUnexpectedMessages] = now.unexpected - before_.unexpected;
  report.counters[kUncopiedMessages] =
      now.gathered - before_.gathered + now.stored - before_.stored;
  report.counters[kCollectiveNs] = collective_ns_;
  report.counters[kCollectives] = collectives_;
  report.mismatches += mismatches_;
  if (number_ == 0) {
    report.counters[kMessageOperations] = operations;
    report.counters[kPinnedBytes] = operations * now.pinned_bytes;
  }
  if (cost_cycles_ > 0 && operations > 0) {
    const double cycles = static_cast<double>(cost_cycles_) / static_cast<double>(operations);
    report.costs = {{CpuCost{.cycles = cycles}, operations}};
  }
}

void MessageRank::take(const MessageCompletion& done) {
  const auto mine = reinterpret_cast<uintptr_t>(done.context);
  // Of a message that an earlier phase no longer waited for.
  if (mine >> 32 != phase_) return;
  const uint32_t name = static_cast<uint32_t>(mine) >> 1;
  if (name == 0) {
    --((mine & 1) != 0 ? pending_receives_ : pending_sends_);
  } else {
    named_->done(name, done);
  }
  if (done.outcome == MessageOutcome::kOk || done.outcome == MessageOutcome::kCancelled) return;
  if (done.outcome == MessageOutcome::kTruncated) {
    ++mismatches_;
  } else if (done.outcome == MessageOutcome::kPeerLost) {
    fail(messenger_->peer_status(done.peer));
  } else {
    fail(messenger_->error());
  }
}

bool MessageRank::advance() {
  // Before a poll, not after it: what a poll found may be what the caller waits for, such as a
  // credit, without a completion.
  if (empty_polls_ >= kPollsOfAll) {
    waiter_.idle();
    empty_polls_ = 0;
  }
  std::array<MessageCompletion, 16> done;
  const uint64_t begun = costs_ ? PollCost::cycles_now() : 0;
  const uint32_t count = messenger_->poll(done);
  if (count == 0) {
    if (job_.team.halted() || !status_.ok()) [[unlikely]]
      return false;
    ++empty_polls_;
    return ++looks_ % kLooksPerCheck != 0 || look_around();
  }
  empty_polls_ = 0;
  for (uint32_t i = 0; i < count; ++i) take(done[i]);
  if (costs_) cost_cycles_ += PollCost::cycles_now() - begun;
  waiter_.progress();
  ++steps_;
  return status_.ok();
}

// Rarely: whether it still makes sense to wait.
bool MessageRank::look_around() {
  if (number_ == 0) {
    // As long as this thread comes here, it does not hang in a call.
    std::atomic<uint64_t>& activity = job_.activity[0].count;
    if (const uint64_t before = activity.load(std::memory_order_relaxed); before != 0) {
      activity.store(before + 1, std::memory_order_relaxed);
    }
  }
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (number_ != 0 && rank != 0) break;
    if (!messenger_->peer_status(peers_[rank]).ok()) fail(messenger_->peer_status(peers_[rank]));
  }
  if (!messenger_->error().ok()) fail(messenger_->error());
  // Others than rank 0 wait until it has something for them.
  if (number_ == 0 && silence_.too_long(now_ns(), steps_)) {
    fail({StatusCode::kTimeout,
          fmt::format("no message for {:.1f} s, although the peers are connected; is one of their "
                      "processes stopped, or its machine overloaded?",
                      static_cast<double>(silence_.silent_ns()) / 1e9)});
  }
  return status_.ok();
}

bool MessageRank::try_send(uint32_t to, uint32_t step, const char* bytes, uint64_t size_bytes) {
  const iovec piece{const_cast<char*>(bytes), size_bytes};
  const SendRequest request{
      .peer = peers_[to],
      .tag = tag(step),
      .pieces = {&piece, 1},
      .context = context(/*receive=*/false),
      .flags = settings_.send_end == SendEnd::kAcknowledged ? uint32_t{kMessageAcknowledged} : 0u};
  const uint64_t begun = costs_ ? PollCost::cycles_now() : 0;
  const PostResult result = messenger_->send(request);
  if (result == PostResult::kFailed) fail_for(request.peer);
  if (result != PostResult::kPosted) return false;
  if (costs_) cost_cycles_ += PollCost::cycles_now() - begun;
  ++pending_sends_;
  ++steps_;
  empty_polls_ = 0;
  return true;
}

bool MessageRank::try_receive(uint32_t from, uint32_t step, char* bytes, uint64_t size_bytes) {
  const iovec piece{bytes, size_bytes};
  const ReceiveRequest request{.source = peers_[from],
                               .tag = tag(step),
                               .pieces = {&piece, 1},
                               .context = context(/*receive=*/true)};
  const uint64_t begun = costs_ ? PollCost::cycles_now() : 0;
  const PostResult result = messenger_->receive(request);
  if (result == PostResult::kFailed) fail_for(request.source);
  if (result != PostResult::kPosted) return false;
  ++pending_receives_;
  empty_polls_ = 0;
  if (costs_) cost_cycles_ += PollCost::cycles_now() - begun;
  return true;
}

bool MessageRank::send(uint32_t to, uint32_t step, const char* bytes, uint64_t size_bytes) {
  while (!try_send(to, step, bytes, size_bytes)) {
    if (!status_.ok() || !advance()) return false;
  }
  return true;
}

bool MessageRank::receive(uint32_t from, uint32_t step, char* bytes, uint64_t size_bytes) {
  while (!try_receive(from, step, bytes, size_bytes)) {
    if (!status_.ok() || !advance()) return false;
  }
  return true;
}

PostResult MessageRank::posted(PostResult result, PeerNumber peer) {
  if (result == PostResult::kPosted) {
    ++steps_;
    empty_polls_ = 0;
  } else if (result == PostResult::kFailed) {
    fail_for(peer);
  }
  return result;
}

PostResult MessageRank::post_send(uint32_t to, uint64_t place, const char* bytes,
                                  uint64_t size_bytes, uint32_t name, bool synchronous) {
  const iovec piece{const_cast<char*>(bytes), size_bytes};
  const SendRequest request{.peer = peers_[to],
                            .tag = named_tag(place),
                            .pieces = {&piece, 1},
                            .context = context(/*receive=*/false, name),
                            .flags = synchronous ? kMessageDelivered : 0u};
  return posted(messenger_->send(request), request.peer);
}

PostResult MessageRank::post_receive(uint32_t from, uint64_t place, char* bytes,
                                     uint64_t size_bytes, uint32_t name) {
  const iovec piece{bytes, size_bytes};
  const ReceiveRequest request{.source = peers_[from],
                               .tag = named_tag(place),
                               .pieces = {&piece, 1},
                               .context = context(/*receive=*/true, name)};
  return posted(messenger_->receive(request), request.source);
}

bool MessageRank::expose(char* bytes, uint64_t size_bytes) {
  const iovec piece{bytes, size_bytes};
  const Result<uint64_t> key = messenger_->exposed().expose(
      {.pieces = {&piece, 1}, .access = kMemoryReadWrite, .has_key = true, .key = kExposedKey});
  if (!key.ok()) fail(key.status());
  return key.ok();
}

bool MessageRank::access(uint32_t there, char* bytes, uint64_t size_bytes, bool puts) {
  const iovec piece{bytes, size_bytes};
  const RemoteRange range{.address = 0, .bytes = size_bytes, .key = kExposedKey};
  const OneSidedRequest request{.peer = peers_[there],
                                .pieces = {&piece, 1},
                                .remote = {&range, 1},
                                .context = context(/*receive=*/false)};
  for (;;) {
    const uint64_t begun = costs_ ? PollCost::cycles_now() : 0;
    const PostResult result = puts ? messenger_->put(request) : messenger_->get(request);
    if (costs_ && result == PostResult::kPosted) cost_cycles_ += PollCost::cycles_now() - begun;
    if (result == PostResult::kPosted) [[likely]]
      break;
    if (result == PostResult::kFailed) fail_for(request.peer);
    if (!status_.ok() || !advance()) return false;
  }
  ++pending_sends_;
  ++steps_;
  empty_polls_ = 0;
  return true;
}

bool MessageRank::put(uint32_t there, const char* bytes, uint64_t size_bytes) {
  return access(there, const_cast<char*>(bytes), size_bytes, /*puts=*/true);
}

bool MessageRank::get(uint32_t there, char* bytes, uint64_t size_bytes) {
  return access(there, bytes, size_bytes, /*puts=*/false);
}

bool MessageRank::wait_receives(uint32_t left) {
  while (pending_receives_ > left) {
    if (!advance()) return false;
  }
  return true;
}

bool MessageRank::wait_sends() {
  while (pending_sends_ > 0) {
    if (!advance()) return false;
  }
  return true;
}

bool MessageRank::wait_all() {
  while (pending_receives_ > 0 || pending_sends_ > 0) {
    if (!advance()) return false;
  }
  return true;
}

void MessageRank::fill(char* bytes, uint64_t size_bytes, uint32_t from, uint64_t sequence) const {
  const PayloadPattern pattern(job_.setup.run_key + phase_, Direction::kRequest, from, sequence);
  pattern.fill({bytes, size_bytes});
}

void MessageRank::check(const char* bytes, uint64_t size_bytes, uint32_t from, uint64_t sequence) {
  const PayloadPattern pattern(job_.setup.run_key + phase_, Direction::kRequest, from, sequence);
  if (!pattern.matches({bytes, size_bytes})) ++mismatches_;
}

}  // namespace verbena::bench
