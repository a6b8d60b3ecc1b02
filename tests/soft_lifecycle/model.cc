#include "tests/soft_lifecycle/model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/soft/verbs.h"

namespace verbena::soft_lifecycle {
namespace {

using State = QueuePairModel::State;

std::vector<uint32_t> slots(uint32_t count) {
  std::vector<uint32_t> all(count);
  for (uint32_t i = 0; i < count; ++i) all[i] = i;
  return all;
}

uint64_t word_at(const MemberModel& member, uint64_t offset) {
  uint64_t word;
  std::memcpy(&word, member.image.data() + offset, sizeof(word));
  return word;
}

}  // namespace

std::vector<std::byte> pattern(uint64_t seed, uint32_t bytes) {
  std::vector<std::byte> filled(bytes);
  soft_test::fill_pattern(filled.data(), bytes, seed);
  return filled;
}

Model::Model() {
  for (uint32_t i = 0; i < kMembers; ++i) {
    for (QueuePairModel& one : members_[i].queue_pairs) one.member = i;
  }
}

void Model::begin_life(uint32_t member, bool on_one_queue, uint64_t arena) {
  MemberModel& begun = members_[member];
  begun = {};
  begun.life = ++lives_;
  begun.on_one_queue = on_one_queue;
  begun.arena = arena;
  begun.shared_free = slots(kSharedSlots);
  for (QueuePairModel& one : begun.queue_pairs) one.member = member;
}

void Model::end_life(uint32_t member) {
  members_[member].life = 0;
  for (QueuePairModel& one : members_[member].queue_pairs) {
    one.state = State::kNone;
    one.pending.clear();
  }
}

void Model::make(QueuePairModel& one, const Command& command, const QueuePairAddress& address) {
  const uint32_t member = one.member;
  one = {};
  one.member = member;
  one.state = State::kInit;
  one.shared = command.shared;
  one.unreliable = command.unreliable;
  one.self.birth = ++births_;
  one.address = address;
  one.free_sends = slots(kSlots);
  one.free_receives = slots(kSlots);
}

// Shared receives that had messages which nobody polled are posted again.
void Model::give_back(QueuePairModel& one) {
  if (!one.shared) return;
  for (const Due& due : one.got) {
    if (due.id == 0) --members_[one.member].shared_taken;
  }
}

void Model::destroy(QueuePairModel& one) {
  give_back(one);
  one.state = State::kNone;
  one.pending.clear();
}

void Model::reset(QueuePairModel& one) {
  give_back(one);
  const QueuePairModel before = std::exchange(one, {});
  one.member = before.member;
  one.state = State::kInit;
  one.shared = before.shared;
  one.unreliable = before.unreliable;
  one.self = {before.self.birth, before.self.generation + 1};
  one.address = before.address;
  one.free_sends = slots(kSlots);
  one.free_receives = slots(kSlots);
}

void Model::connect(QueuePairModel& one, const Command& command) {
  one.state = State::kReady;
  one.patient = command.patient;
  one.peer_number = command.peer.queue_pair_number;
  one.peer = {};
  for (MemberModel& member : members_) {
    for (const QueuePairModel& other : member.queue_pairs) {
      if (other.state != State::kNone && other.address.queue_pair_number == one.peer_number) {
        one.peer = other.self;
      }
    }
  }
}

QueuePairModel* Model::peer_of(const QueuePairModel& one) {
  for (MemberModel& member : members_) {
    for (QueuePairModel& other : member.queue_pairs) {
      if (other.state != State::kNone && one.peer.birth != 0 &&
          other.self.birth == one.peer.birth) {
        return &other;
      }
    }
  }
  return nullptr;
}

bool Model::is_doubtful(const QueuePairModel& one) {
  if (one.state != State::kReady) return false;
  for (MemberModel& member : members_) {
    for (const QueuePairModel& other : member.queue_pairs) {
      if (other.state == State::kNone) continue;
      const bool has_number = other.address.queue_pair_number == one.peer_number;
      if (has_number && other.self.birth != one.peer.birth) return true;
      // The peer means another one, which had this number.
      if (has_number && other.state == State::kReady &&
          other.peer_number == one.address.queue_pair_number &&
          other.peer.birth != one.self.birth) {
        return true;
      }
    }
  }
  return false;
}

bool Model::reaches(const QueuePairModel& one, const QueuePairModel& peer) const {
  if (peer.unreliable != one.unreliable) return false;
  if (peer.state != State::kReady || peer.peer_number != one.address.queue_pair_number)
    return false;
  if (one.meets != Identity{}) return one.meets == peer.self;
  return peer.is_met_by == Identity{} || peer.is_met_by == one.self;
}

bool Model::has_receive(const QueuePairModel& one) const {
  const MemberModel& member = members_[one.member];
  return one.shared ? member.shared_posted.size() > member.shared_taken : !one.receives.empty();
}

std::optional<uint64_t> Model::place_of(const QueuePairModel& peer, const Command& request) const {
  const MemberModel& member = members_[peer.member];
  for (uint32_t i = 0; i < kRegions; ++i) {
    const uint64_t offset = request.remote - member.arena;
    if (member.registered[i] && member.keys[i] == request.rkey && request.remote >= member.arena &&
        offset >= kRegionRanges[i].offset && offset + request.bytes <= kRegionRanges[i].end()) {
      return offset;
    }
  }
  return std::nullopt;
}

void Model::complete_send(QueuePairModel& one, const Command& request, ibv_wc_status status,
                          uint32_t bytes, uint64_t hash) {
  one.sent.push_back({request.id, status, bytes, hash});
  one.event_due |= one.armed;
}

void Model::complete_receive(QueuePairModel& one, ibv_wc_status status, uint32_t bytes,
                             uint64_t hash) {
  Due due{0, status, bytes, hash};
  if (one.shared) {
    ++members_[one.member].shared_taken;
  } else {
    due.id = one.receives.front().id;
    one.receives.pop_front();
  }
  one.got.push_back(due);
  one.event_due |= one.armed;
}

void Model::fail(QueuePairModel& one, ibv_wc_status first) {
  if (one.state == State::kError) return;
  one.state = State::kError;
  for (const Command& request : std::exchange(one.pending, {})) {
    complete_send(one, request, std::exchange(first, IBV_WC_WR_FLUSH_ERR));
  }
  one.tells_of_death = first != IBV_WC_WR_FLUSH_ERR;
  while (!one.shared && !one.receives.empty()) complete_receive(one, IBV_WC_WR_FLUSH_ERR);
}

void Model::to_error(QueuePairModel& one) {
  fail(one);
  one.tells_of_death = false;
}

void Model::receive(QueuePairModel& one, const Command& request) {
  one.receives.push_back(request);
  if (one.state == State::kError) complete_receive(one, IBV_WC_WR_FLUSH_ERR);
}

Attempt Model::look_ahead(QueuePairModel& one, const Command& request) {
  QueuePairModel* const peer = peer_of(one);
  if (one.state != State::kReady) return Attempt::kFailed;
  if (one.unreliable) {
    const bool is_too_long = request.opcode == IBV_WR_SEND && peer != nullptr && !peer->shared &&
                             reaches(one, *peer) && has_receive(*peer) &&
                             request.bytes > peer->receives.front().bytes;
    return is_too_long ? Attempt::kFailed : Attempt::kDone;
  }
  if (peer == nullptr || !reaches(one, *peer)) return Attempt::kWaitsForPeer;
  const bool takes = request.opcode == IBV_WR_SEND || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (request.opcode != IBV_WR_SEND && !place_of(*peer, request)) return Attempt::kFailed;
  if (takes && !has_receive(*peer)) return Attempt::kWaitsForReceive;
  if (request.opcode == IBV_WR_SEND && !peer->shared &&
      request.bytes > peer->receives.front().bytes) {
    return Attempt::kFailed;
  }
  return Attempt::kDone;
}

void Model::attempt_unreliably(QueuePairModel& one, const Command& request) {
  complete_send(one, request, IBV_WC_SUCCESS);
  QueuePairModel* const peer = peer_of(one);
  if (peer == nullptr || !reaches(one, *peer)) return;
  one.meets = peer->self;
  peer->is_met_by = one.self;
  const std::vector<std::byte> bytes = pattern(request.seed, request.bytes);
  if (request.opcode == IBV_WR_SEND) {
    if (!has_receive(*peer)) return;
    if (!peer->shared && request.bytes > peer->receives.front().bytes) {
      complete_receive(*peer, IBV_WC_LOC_LEN_ERR);
      return fail(*peer);
    }
    return complete_receive(*peer, IBV_WC_SUCCESS, request.bytes,
                            hash_of(bytes.data(), bytes.size()));
  }
  const std::optional<uint64_t> place = place_of(*peer, request);
  const bool takes = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (!place || (takes && !has_receive(*peer))) return;
  if (takes) complete_receive(*peer, IBV_WC_SUCCESS);
  std::copy(bytes.begin(), bytes.end(), members_[peer->member].image.data() + *place);
}

Attempt Model::attempt(QueuePairModel& one, const Command& request) {
  if (one.unreliable) {
    attempt_unreliably(one, request);
    return Attempt::kDone;
  }
  QueuePairModel* const peer = peer_of(one);
  if (peer == nullptr || !reaches(one, *peer)) return Attempt::kWaitsForPeer;
  one.meets = peer->self;
  peer->is_met_by = one.self;
  const std::vector<std::byte> bytes = pattern(request.seed, request.bytes);
  const uint64_t hash = hash_of(bytes.data(), bytes.size());

  if (request.opcode == IBV_WR_SEND) {
    if (!has_receive(*peer)) return Attempt::kWaitsForReceive;
    if (!peer->shared && request.bytes > peer->receives.front().bytes) {
      complete_receive(*peer, IBV_WC_LOC_LEN_ERR);
      complete_send(one, request, IBV_WC_REM_INV_REQ_ERR);
      fail(*peer);
      fail(one);
      return Attempt::kFailed;
    }
    complete_receive(*peer, IBV_WC_SUCCESS, request.bytes, hash);
    complete_send(one, request, IBV_WC_SUCCESS);
    return Attempt::kDone;
  }

  const std::optional<uint64_t> place = place_of(*peer, request);
  if (!place) {
    // The receive that an immediate has met.
    if (request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && has_receive(*peer)) {
      complete_receive(*peer, IBV_WC_LOC_ACCESS_ERR);
    }
    complete_send(one, request, IBV_WC_REM_ACCESS_ERR);
    fail(*peer);
    fail(one);
    return Attempt::kFailed;
  }
  MemberModel& owner = members_[peer->member];
  std::byte* const at = owner.image.data() + *place;
  switch (request.opcode) {
    case IBV_WR_RDMA_READ:
      complete_send(one, request, IBV_WC_SUCCESS, request.bytes, hash_of(at, request.bytes));
      break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: {
      const uint64_t sum = word_at(owner, *place) + request.add;
      complete_send(one, request, IBV_WC_SUCCESS, request.bytes, hash_of(at, request.bytes));
      std::memcpy(at, &sum, sizeof(sum));
      break;
    }
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      if (!has_receive(*peer)) return Attempt::kWaitsForReceive;
      complete_receive(*peer, IBV_WC_SUCCESS);
      [[fallthrough]];
    default:
      std::copy(bytes.begin(), bytes.end(), at);
      complete_send(one, request, IBV_WC_SUCCESS);
  }
  return Attempt::kDone;
}

Attempt Model::post(QueuePairModel& one, const Command& request) {
  if (one.state == State::kError) {
    complete_send(
        one, request,
        std::exchange(one.tells_of_death, false) ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR);
    return Attempt::kFailed;
  }
  if (!one.pending.empty()) {
    one.pending.push_back(request);
    return Attempt::kWaitsForPeer;
  }
  const Attempt attempted = attempt(one, request);
  if (attempted == Attempt::kDone || attempted == Attempt::kFailed) return attempted;
  if (one.patient) {
    one.pending.push_back(request);
    return attempted;
  }
  complete_send(
      one, request,
      attempted == Attempt::kWaitsForPeer ? IBV_WC_RETRY_EXC_ERR : IBV_WC_RNR_RETRY_EXC_ERR);
  fail(one);
  return Attempt::kFailed;
}

bool Model::go_on(QueuePairModel& one) {
  bool moved = false;
  while (one.state == State::kReady && !one.pending.empty()) {
    const Command request = one.pending.front();
    const Attempt seen = look_ahead(one, request);
    if (seen == Attempt::kWaitsForReceive && one.meets == Identity{}) {
      // Its peer hears no other generation from then on.
      QueuePairModel* const peer = peer_of(one);
      one.meets = peer->self;
      peer->is_met_by = one.self;
      moved = true;
    }
    if (seen == Attempt::kWaitsForPeer || seen == Attempt::kWaitsForReceive) break;
    one.pending.pop_front();
    attempt(one, request);
    moved = true;
  }
  return moved;
}

Missed Model::would_miss(const QueuePairModel& one, uint32_t dead) const {
  if (one.state != State::kReady || one.unreliable) return Missed::kNever;
  for (const QueuePairModel& other : members_[dead].queue_pairs) {
    // One that was destroyed before has left in order.
    if (other.state == State::kNone || other.self.birth != one.peer.birth) continue;
    return reaches(one, other) ? Missed::kSurely : Missed::kMaybe;
  }
  return Missed::kNever;
}

void Model::miss(QueuePairModel& one) { fail(one, IBV_WC_RETRY_EXC_ERR); }

}  // namespace verbena::soft_lifecycle
