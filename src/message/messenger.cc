// Control path of a messenger: its making, its connections, and their ends.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/connect/endpoint.h"
#include "src/connect/failure.h"
#include "src/connect/sizing.h"
#include "src/message/messenger_state.h"

namespace verbena::message {
namespace {

constexpr uint32_t kRequestsOfMessage = 2;

Status check_range(const char* option, uint64_t asked, uint64_t least, uint64_t most) {
  if (asked >= least && asked <= most) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} is {}; choose {} to {}", option, asked, least, most));
}

}  // namespace

Status check(const MessengerOptions& options) {
  constexpr uint32_t kMaxOperations = 1u << 20;
  VERBENA_RETURN_IF_ERROR(
      check_range("max_peers", options.max_peers, 1, MessengerOptions::kMostPeers));
  VERBENA_RETURN_IF_ERROR(check_range("max_operations", options.max_operations, 1, kMaxOperations));
  VERBENA_RETURN_IF_ERROR(check_range("max_completions", options.max_completions,
                                      options.max_operations + 1, 4 * kMaxOperations));
  VERBENA_RETURN_IF_ERROR(check_range("max_unexpected", options.max_unexpected, 1, kMaxOperations));
  VERBENA_RETURN_IF_ERROR(check_range("unexpected_bytes", options.unexpected_bytes,
                                      UnexpectedStore::kBlockBytes, uint64_t{1} << 36));
  VERBENA_RETURN_IF_ERROR(check_range("slot_bytes", options.slot_bytes, 256, 64 * 1024));
  if (options.slot_bytes % kCacheLineBytes != 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("slot_bytes is {}; choose a multiple of {}", options.slot_bytes,
                              kCacheLineBytes));
  }
  VERBENA_RETURN_IF_ERROR(check_range("ring_slots", options.ring_slots, 2, 4096));
  VERBENA_RETURN_IF_ERROR(check_range("queue_credits", options.queue_credits, 6, 128));
  VERBENA_RETURN_IF_ERROR(check_range("polling_set", options.polling_set, 0, 1024));
  VERBENA_RETURN_IF_ERROR(
      check_range("registered_bytes", options.registered_bytes, 0, uint64_t{1} << 46));
  VERBENA_RETURN_IF_ERROR(
      check_range("registered_regions", options.registered_regions, 1, kMaxOperations));
  VERBENA_RETURN_IF_ERROR(
      check_range("reuse_buffers", options.reuse_buffers, 1, 16 * uint64_t{kMaxOperations}));
  if (!(options.reuse_speculation > 0 && options.reuse_speculation <= 1)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("reuse_speculation is {}; choose a part above 0 and up to 1",
                              options.reuse_speculation));
  }
  VERBENA_RETURN_IF_ERROR(check_range("connect_timeout_ns",
                                      static_cast<uint64_t>(options.connect_timeout_ns), 1'000'000,
                                      uint64_t{1} << 62));
  return check_range("max_sleep_ns", static_cast<uint64_t>(options.max_sleep_ns), 1'000,
                     86'400'000'000'000);
}

MessengerState::MessengerState(const Device& device, const ProtectionDomain& domain,
                               const MessengerOptions& options)
    : device_(&device),
      domain_(&domain),
      options_(options),
      // A sealed message fills its slot.
      room_bytes_(options.slot_bytes - 2 * channel::kWordBytes),
      tagged_(options.max_operations, options.max_unexpected),
      untagged_(options.max_operations, options.max_unexpected),
      operation_numbers_(options.max_operations),
      operations_(options.max_operations),
      envelope_numbers_(options.max_unexpected),
      envelopes_(options.max_unexpected),
      store_(options.unexpected_bytes),
      transfer_numbers_(options.max_peers, kMaxTransfers),
      transfers_(size_t{options.max_peers} + kMaxTransfers),
      send_memory_(options.max_operations),
      outgoing_(options.max_operations),
      exposed_(options.exposed != nullptr ? options.exposed : std::make_shared<ExposedMemory>()),
      move_numbers_(options.max_peers, kMaxMoves),
      moves_(size_t{options.max_peers} + kMaxMoves),
      completions_(options.max_completions),
      // Rings rest on the order of a message's bytes.
      polling_(options.policy, options.order,
               device.info().writes_in_order ? options.polling_set : 0, options.max_peers),
      connections_(options.max_peers) {
  VERBENA_ASSERT(RingMark::shape(room_bytes_).slot_bytes == options.slot_bytes);
  busy_.reserve(options.max_peers);
}

MessengerState::~MessengerState() {
  Waiter waiter;
  if (!winds_down_) {
    constexpr uint64_t kConfirmationPatienceNs = 5'000'000'000;
    const uint64_t end_ns = now_ns() + kConfirmationPatienceNs;
    while (!wind_down() && now_ns() < end_ns) waiter.idle();
  }
  // What was sent is to arrive: for a while, until the devices have it.
  constexpr uint64_t kPatienceNs = 1'000'000'000;
  const uint64_t deadline_ns = now_ns() + kPatienceNs;
  for (const std::unique_ptr<PeerConnection>& connection : connections_) {
    if (connection == nullptr || connection->broken) continue;
    channel::SendQueue& sends = connection->sends;
    const auto wait_for_last_credits = [&] {
      sends.reap();
      while (sends.retired() < connection->credit_message_end && !sends.error() &&
             now_ns() < deadline_ns && !connection->joined.control->peer_closed()) {
        waiter.idle();
        sends.reap();
      }
    };
    // There is one buffer for such messages, and the last one is behind all else.
    wait_for_last_credits();
    post_credits(*connection);
    wait_for_last_credits();
    connection->joined.control->hang_up();
  }
  // Receives of one connection may be filled by another: all stop before the first one goes.
  for (const std::unique_ptr<PeerConnection>& connection : connections_) {
    if (connection != nullptr) {
      static_cast<void>(connection->joined.endpoint->queue_pair.to_error());
    }
  }
  // Others may have the exposed memory, too.
  for (const std::unique_ptr<PeerConnection>& connection : connections_) {
    if (connection != nullptr) end_moves(*connection);
  }
  for (const std::unique_ptr<PeerConnection>& connection : connections_) {
    if (connection != nullptr) release_held(*connection, ~uint64_t{0});
  }
  for (uint32_t number = 0; number < operation_numbers_.used_ever(); ++number) {
    MessageMemory::give_back(&send_memory_[number]);
  }
  for (uint32_t number = 0; number < transfer_numbers_.used_ever(); ++number) {
    MessageMemory::give_back(&transfers_[number].memory);
  }
}

// A confirmation that still waits for a credit: without it its peer would take a message for lost
// that was received.
bool MessengerState::owes_confirmations() const {
  if (!discarded_.empty()) return true;
  for (uint32_t number = 0; number < transfer_numbers_.used_ever(); ++number) {
    if (transfers_[number].stage == Transfer::Stage::kFinishing) return true;
  }
  return false;
}

// The memory of receives may be gone.
void MessengerState::give_up_receives() {
  half_posted_ = kNone;
  for (uint32_t number = 0; number < operation_numbers_.used_ever(); ++number) {
    Operation& operation = operations_[number];
    // An answer brings nothing then.
    if (operation.state == Operation::State::kAwaitsAnswer) operation.piece_count = 0;
    if (operation.state != Operation::State::kPosted) continue;
    matching((operation.flags & kMessageUntagged) != 0).remove_receive(number);
    operation.state = Operation::State::kReceiving;
  }
  for (uint32_t number = 0; number < transfer_numbers_.used_ever(); ++number) {
    Transfer& transfer = transfers_[number];
    const bool comes = transfer.stage == Transfer::Stage::kAnswering ||
                       transfer.stage == Transfer::Stage::kAwaiting;
    if (!comes || transfer.method != Method::kPipelined) continue;
    transfer.local_count = 0;
    transfer.failed = true;
  }
}

bool MessengerState::wind_down() {
  if (!std::exchange(winds_down_, true)) {
    if (!discarded_.empty()) go_on_discarding();
    give_up_receives();
  }
  if (!owes_confirmations()) return true;
  progress();
  return !owes_confirmations();
}

Result<std::unique_ptr<MessengerState>> MessengerState::open(const Device& device,
                                                             const ProtectionDomain& domain,
                                                             const JobSecret& secret,
                                                             const MessengerOptions& options) {
  VERBENA_RETURN_IF_ERROR(message::check(options));
  std::unique_ptr<MessengerState> messenger(new MessengerState(device, domain, options));
  VERBENA_RETURN_IF_ERROR(messenger->prepare(secret));
  return messenger;
}

Status MessengerState::prepare(const JobSecret& secret) {
  const DeviceInfo& info = device_->info();
  // Everything that may be on its way at once, and one more interval of signaled requests.
  const uint32_t pending = options_.ring_slots + options_.queue_credits + 1 + kReadRoom;
  VERBENA_ASSIGN_OR_RETURN(send_sizes_,
                           connect::size_send_queue(info, pending, options_.signal_interval, 1));
  // Before a message there may have to be a request that clears its tail's place.
  send_sizes_.requests_per_message = kRequestsOfMessage;
  inline_limit_bytes_ = connect::inline_limit_bytes(info, options_.inline_bytes);

  const uint64_t wanted = (uint64_t{options_.max_peers} + 1) * receives_per_connection();
  const auto receives = static_cast<uint32_t>(
      std::min<uint64_t>({wanted, info.max_shared_receive_queue_wrs, info.max_cqes}));
  VERBENA_RETURN_IF_ERROR(estimate_costs());
  VERBENA_ASSIGN_OR_RETURN(memory_,
                           MessageMemory::create(*domain_, options_.registered_bytes,
                                                 options_.registered_regions, in_place_costs()));
  const bool gathers = options_.reused_buffers != ReusedBuffers::kCopied;
  reused_from_bytes_ = eager_limit_bytes() + 1;
  if (gathers && info.max_sges < kGatherEntries) {
    log_info("{} gathers {} pieces, of {}: short messages are copied", info.name, info.max_sges,
             kGatherEntries);
  } else if (gathers) {
    // Inline, the processor copies them in any case, and to the device itself. Tails are words.
    const uint32_t least_bytes = std::max(inline_limit_bytes_ + 1, channel::kWordBytes);
    VERBENA_RETURN_IF_ERROR(
        reused_sources_.open(options_, steps_, least_bytes, kSourceAccess, *memory_));
    VERBENA_RETURN_IF_ERROR(
        reused_targets_.open(options_, steps_, least_bytes, kTargetAccess, *memory_));
    reused_from_bytes_ = std::min(reused_from_bytes_, reused_sources_.least_bytes());
  }
  if (options_.events) {
    VERBENA_ASSIGN_OR_RETURN(place_, SleepPlace::create(*device_));
  }
  VERBENA_ASSIGN_OR_RETURN(
      arrivals_queue_,
      CompletionQueue::create(
          *device_,
          {.depth_cqes = receives, .channel = place_ == nullptr ? nullptr : &place_->channel()}));
  VERBENA_ASSIGN_OR_RETURN(receive_queue_,
                           SharedReceiveQueue::create(*domain_, {.depth_wrs = receives}));
  receives_ = SharedReceives(receive_queue_->get(), arrivals_queue_->get(), receives, room_bytes_);
  early_.reserve(receives);
  left_receives_.reserve(options_.max_peers);
  discarded_.reserve(options_.max_unexpected);

  // For the first messages of a peer, whose own receives are posted once it was handed over.
  const uint32_t first = std::min(receives_per_connection(), receives);
  VERBENA_ASSIGN_OR_RETURN(first_receives_,
                           RegisteredArena::create(*domain_, uint64_t{first} * options_.slot_bytes,
                                                   IBV_ACCESS_LOCAL_WRITE));
  statistics_.pinned_bytes += first_receives_->size_bytes();
  if (receives_.add(first_receives_->data(), options_.slot_bytes, first_receives_->lkey(), first) !=
      0) {
    return connect::explain_failure(receives_.error(), "its own shared receive queue");
  }

  if (options_.polling_set > 0) {
    const channel::SlotShape shape = RingMark::shape(room_bytes_);
    const uint64_t ring_bytes = channel::SlotArray::size_bytes(shape, options_.ring_slots);
    const uint64_t bytes = ring_bytes * options_.polling_set;
    VERBENA_ASSIGN_OR_RETURN(
        ring_in_memory_,
        RegisteredArena::create(*domain_, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    VERBENA_ASSIGN_OR_RETURN(
        ring_out_memory_,
        RegisteredArena::create(*domain_, bytes + kCacheLineBytes, IBV_ACCESS_LOCAL_WRITE));
    const char* const zeros = ring_out_memory_->carve(kCacheLineBytes);
    statistics_.pinned_bytes += ring_in_memory_->size_bytes() + ring_out_memory_->size_bytes();
    // Connections point into them.
    rings_in_.reserve(options_.polling_set);
    rings_out_.reserve(options_.polling_set);
    for (uint32_t ring = 0; ring < options_.polling_set; ++ring) {
      rings_in_.emplace_back(
          channel::SlotArray::carve(*ring_in_memory_, shape, options_.ring_slots));
      rings_out_.emplace_back(
          channel::SlotArray::carve(*ring_out_memory_, shape, options_.ring_slots),
          ring_out_memory_->lkey(), zeros);
      free_rings_in_.push_back(&rings_in_.back());
      free_rings_out_.push_back(&rings_out_.back());
    }
  }

  ConnectionPlan plan;
  plan.device = device_;
  plan.domain = domain_;
  plan.place = place_.get();
  plan.endpoint.arena_bytes =
      uint64_t{options_.queue_credits + 1 + receives_per_connection()} * options_.slot_bytes;
  plan.receive_bytes = uint64_t{receives_per_connection()} * options_.slot_bytes;
  plan.endpoint.other_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  plan.endpoint.send_depth_wrs = send_sizes_.depth_wrs;
  plan.endpoint.max_send_sges = reused_sources_.is_open() ? kGatherEntries : 1;
  plan.endpoint.inline_bytes = inline_limit_bytes_;
  plan.endpoint.max_outstanding_reads = connect::outstanding_reads(info);
  plan.endpoint.shared_receives = &*receive_queue_;
  plan.endpoint.shared_completions = &*arrivals_queue_;
  VERBENA_ASSIGN_OR_RETURN(connector_, Connector::start(plan, secret, options_));
  VERBENA_ASSIGN_OR_RETURN(self_, add_peer(connector_->address()));
  return Status::ok_status();
}

Status MessengerState::estimate_costs() {
  steps_ = step_costs(device_->info());
  rendezvous_costs_ = RendezvousCosts::from_steps(
      steps_, room_bytes_ - static_cast<uint32_t>(sizeof(MessageHeader)), options_.queue_credits);
  const ReuseThresholds thresholds = ReuseThresholds::from_costs(
      rendezvous_costs_.saved_by_registering(steps_), /*least_bytes=*/0);
  // Of long messages: fewer buffers than of short ones. To count one costs nothing beside its
  // chunks, so the tables are not closed to those that come late.
  const BufferUseOptions use{
      .bucket_bits = 14, .max_buffers = 1u << 14, .adapts = false, .starts_anew = true};
  VERBENA_ASSIGN_OR_RETURN(sent_buffers_, BufferUseTable::create(thresholds, use));
  VERBENA_ASSIGN_OR_RETURN(received_buffers_, BufferUseTable::create(thresholds, use));
  return Status::ok_status();
}

std::optional<InPlaceCosts> MessengerState::in_place_costs() const {
  if (!leaves_in_place()) return std::nullopt;
  return InPlaceCosts{.use_ns = steps_.in_place_use_ns,
                      .use_byte_ns = steps_.in_place_byte_ns,
                      .share_ns = steps_.registration_ns,
                      .share_page_ns = steps_.registration_page_ns};
}

Result<PeerNumber> MessengerState::add_peer(const MessengerAddress& address) {
  const auto known = numbers_.find(address);
  if (known != numbers_.end()) return known->second;
  if (port_of(address) == 0 || is_place(address)) {
    return Status(StatusCode::kInvalidArgument,
                  "these bytes are no address of a messenger; take those that its address() gives");
  }
  const auto number = static_cast<PeerNumber>(peers_.size());
  peers_.push_back(std::make_unique<Peer>());
  peers_.back()->address = address;
  numbers_.emplace(address, number);
  return number;
}

void MessengerState::hint(PeerNumber peer, uint32_t weight) {
  VERBENA_ASSERT(peer < peers_.size());
  peers_[peer]->hint = weight;
  if (peers_[peer]->connection == nullptr || peers_[peer]->connection->broken) return;
  polling_.hint(peers_[peer]->connection->number, weight);
  reconsider_polling_ = true;
}

uint32_t MessengerState::adopt() {
  uint32_t adopted = 0;
  for (; connector_->has_news(); ++adopted) adopt(connector_->take());
  return adopted;
}

void MessengerState::adopt(Joined joined) {
  const Result<PeerNumber> number = add_peer(joined.peer);
  if (!number.ok()) return;
  Peer& peer = *peers_[*number];
  std::vector<SharedReceives::Arrival> early = early_of(joined);
  if (!joined.status.ok()) {
    for (const SharedReceives::Arrival& arrival : early) receives_.give_back(arrival.receive);
    // Of a connection that only the peer asked for, the peer is told.
    if (!joined.superseded && peer.connection == nullptr && peer.requested && peer.status.ok()) {
      peer.status = joined.status;
      lose_operations(*number);
    }
    // What it would have brought was not posted.
    const bool receives = joined.number != Joined::kNoNumber && !joined.brings_receives;
    connector_->end(std::move(joined), receives);
    return;
  }
  VERBENA_ASSERT(peer.connection == nullptr && connections_[joined.number] == nullptr);
  connections_[joined.number] = std::make_unique<PeerConnection>();
  connections_end_ = std::max(connections_end_, joined.number + 1);
  PeerConnection& connection = *connections_[joined.number];
  connection.number = joined.number;
  connection.peer = *number;
  connection.joined = std::move(joined);
  connection.name = "the peer " + connection.joined.control->peer_name();
  connect::Endpoint& endpoint = *connection.joined.endpoint;

  const uint32_t inline_bytes =
      std::min(inline_limit_bytes_, endpoint.queue_pair.max_inline_bytes());
  const channel::SlotShape shape{room_bytes_, options_.slot_bytes};
  const uint32_t lkey = endpoint.arena.lkey();
  connection.sends =
      channel::SendQueue(endpoint.queue_pair.get(), endpoint.send_completions.get(), send_sizes_);
  connection.queue_pair = endpoint.queue_pair.get();
  if (domain_->control().write_now != nullptr) {
    connection.write_now = domain_->control().write_now(connection.queue_pair);
  }
  connection.queue =
      QueueSender(channel::SlotArray::carve(endpoint.arena, shape, options_.queue_credits), lkey,
                  connection.joined.their_number, inline_bytes);
  connection.credit_messages = QueueSender(channel::SlotArray::carve(endpoint.arena, shape, 1),
                                           lkey, connection.joined.their_number, inline_bytes);
  connection.owed = QueueCredits(options_.queue_credits);
  connection.waiting = WaitingArrivals(options_.queue_credits);
  if (reused_sources_.is_open()) connection.held = HeldRegions(send_sizes_.depth_wrs);
  connection.parked = ParkedRequests(options_.ring_slots + options_.queue_credits);
  connection.arriving = Sequence(options_.ring_slots + options_.queue_credits);
  peer.connection = &connection;
  statistics_.pinned_bytes += endpoint.arena.size_bytes();

  const uint32_t more =
      connection.joined.brings_receives ? std::min(receives_per_connection(), receives_.room()) : 0;
  if (more > 0) {
    receives_.add(endpoint.arena.carve(uint64_t{more} * options_.slot_bytes), options_.slot_bytes,
                  lkey, more);
  }
  polling_.add(connection.number);
  polling_.hint(connection.number, peer.hint);
  reconsider_polling_ = true;

  // Who was told that the peer is lost does not see it return: the peer learns it from the end of
  // its connection.
  if (!peer.status.ok()) lose(connection, peer.status);
  for (const SharedReceives::Arrival& arrival : early) arrived(arrival);
}

// Takes out what has come by a connection before it is handed over.
std::vector<SharedReceives::Arrival> MessengerState::early_of(const Joined& joined) {
  if (!joined.endpoint) return {};
  const uint32_t queue_pair_number = joined.endpoint->queue_pair.number();
  const auto others = std::stable_partition(
      early_.begin(), early_.end(), [queue_pair_number](const SharedReceives::Arrival& arrival) {
        return arrival.queue_pair_number != queue_pair_number;
      });
  std::vector<SharedReceives::Arrival> early(others, early_.end());
  early_.erase(others, early_.end());
  return early;
}

void MessengerState::lose(PeerConnection& connection, Status why) {
  if (connection.broken) return;
  // What was sent before it has been sent.
  if (connection.first_gathered != 0) {
    connection.sends.reap();
    serve_gathered(connection);
  }
  connection.broken = true;
  peers_[connection.peer]->status = std::move(why);
  static_cast<void>(connection.joined.endpoint->queue_pair.to_error());
  connection.joined.control->hang_up();
  for (; !connection.waiting.empty(); connection.waiting.pop()) {
    receives_.give_back(connection.waiting.front().receive);
  }
  while (!connection.parked.empty()) release_parked(connection);
  if (connection.ring_in != nullptr) {
    connection.ring_in->break_off();
    connection.ring_in_left = true;
    return_ring_in(connection);
  }
  polling_.remove(connection.number);
  connection.awaits_ring_out = false;
  if (connection.ring_out != nullptr) free_ring_out(connection);
  connection.due_offer = connection.due_leave = connection.due_left = false;
  connection.first_gathered = connection.last_gathered = 0;
  release_held(connection, ~uint64_t{0});  // the queue pair has ended
  lose_transfers(connection);
  end_moves(connection);
  lose_operations(connection.peer);
  connection.drained_at = queue_was_empty_ + 2;
}

bool MessengerState::retire(PeerConnection& connection) {
  // What its queue pair received must not be taken for messages of another one with its number.
  if (queue_was_empty_ < connection.drained_at) return false;
  if (connection.busy || connection.envelopes > 0 || connection.ring_in != nullptr) {
    return false;
  }
  VERBENA_ASSERT(connection.broken && connection.transfers == 0 && connection.moves == 0);
  Peer& peer = *peers_[connection.peer];
  peer.connection = nullptr;
  peer.counts = connection.counts;
  connect::Endpoint& endpoint = *connection.joined.endpoint;
  if (connection.joined.brings_receives) {
    VERBENA_ASSERT(left_receives_.size() < options_.max_peers);
    left_receives_.push_back(std::move(endpoint.arena));
  } else {
    statistics_.pinned_bytes -= endpoint.arena.size_bytes();
  }
  Joined joined = std::move(connection.joined);
  connections_[joined.number].reset();
  connector_->end(std::move(joined), /*receives=*/true);
  return true;
}

void MessengerState::lose_operations(PeerNumber peer) {
  for (uint32_t number = 0; number < operation_numbers_.used_ever(); ++number) {
    Operation& operation = operations_[number];
    if (operation.peer != peer) continue;
    if (operation.state == Operation::State::kAwaitsFinish ||
        operation.state == Operation::State::kSending ||
        operation.state == Operation::State::kGathered ||
        operation.state == Operation::State::kAwaitsAnswer) {
      memory_->withdraw(&send_memory_[number]);
    }
    if (operation.state == Operation::State::kAwaitsFinish ||
        operation.state == Operation::State::kSending ||
        operation.state == Operation::State::kGathered) {
      complete_operation(number, MessageEvent::kSent, MessageOutcome::kPeerLost);
    } else if (operation.state == Operation::State::kAwaitsAnswer) {
      end_one_sided(number, MessageOutcome::kPeerLost);
    } else if (operation.state == Operation::State::kPosted) {
      matching((operation.flags & kMessageUntagged) != 0).remove_receive(number);
      operation.state = Operation::State::kReceiving;
      if (operation.transfers == 0) {
        complete_operation(number, MessageEvent::kReceived, MessageOutcome::kPeerLost);
      }
    }
  }
  for (uint32_t number = 0; number < envelope_numbers_.used_ever(); ++number) {
    Envelope& envelope = envelopes_[number];
    if (envelope.peer != peer || envelope.connection == kNone) continue;
    if (envelope.place == Envelope::Place::kRemote && !envelope.claimed) {
      // Its bytes are still at the peer.
      matching((envelope.flags & kUntagged) != 0).remove_message(number);
      drop_envelope(number);
    } else if (envelope.place == Envelope::Place::kStore) {
      // They are here, and nobody is to be told: the connection is not needed for it.
      --connections_[envelope.connection]->envelopes;
      envelope.connection = kNone;
      envelope.flags &= static_cast<uint8_t>(~kWantsFinish);
    }
  }
}

// Whether what a peer sent before it went has come, and waits for memory or completions: its
// receiver has some time to make room.
bool MessengerState::is_still_received(PeerConnection& connection) {
  constexpr uint64_t kPatienceNs = 10'000'000'000;
  if (connection.stalled_at != connection.arrivals) return false;
  if (connection.stalled_end_ns == 0) connection.stalled_end_ns = now_ns() + kPatienceNs;
  return now_ns() < connection.stalled_end_ns;
}

void MessengerState::watch(uint32_t found) {
  if (!watch_.due(found)) return;
  if (receives_.error() && error_.ok()) {
    error_ = connect::explain_failure(receives_.error(), "all peers");
  }
  constexpr uint32_t kMostOfOneWatch = 16;
  uint32_t watched = 0;
  for (uint32_t i = 0; i < connections_end_ && watched < kMostOfOneWatch; ++i) {
    next_watched_ = next_watched_ + 1 < connections_end_ ? next_watched_ + 1 : 0;
    PeerConnection* const connection = connections_[next_watched_].get();
    if (connection == nullptr) continue;
    if (connection->broken) {
      retire(*connection);
      continue;
    }
    ++watched;
    connection->sends.reap();
    const bool failed = static_cast<bool>(connection->sends.error());
    const bool gone = failed || connection->silence.gone(connection->arrivals, [connection] {
      return connection->joined.control->peer_closed();
    });
    if (!gone || is_still_received(*connection)) continue;
    lose(*connection, failed ? connect::diagnose(connection->sends.error(), {},
                                                 *connection->joined.control, connection->name)
                             : connect::peer_is_gone(connection->name));
  }
}

PostResult MessengerState::refuse(std::string why) {
  error_ = Status(StatusCode::kInvalidArgument, std::move(why));
  return PostResult::kFailed;
}

}  // namespace verbena::message

namespace verbena {

Result<std::unique_ptr<Messenger>> open_messenger(const Device& device,
                                                  const ProtectionDomain& domain,
                                                  const JobSecret& secret,
                                                  const MessengerOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<message::MessengerState> messenger,
                           message::MessengerState::open(device, domain, secret, options));
  return std::unique_ptr<Messenger>(std::move(messenger));
}

}  // namespace verbena
