#include "tests/soft_model/generator.h"

#include <algorithm>
#include <utility>

#include "src/device/soft/atomic_write.h"

namespace verbena::soft_model {

enum class Generator::Wrong : uint8_t {
  kGoneKey,
  kBeyondTheEnd,
  kBeforeTheStart,
  kNoRight,
  kShutWindow,
  kTooLong,
  kUnaligned,
  kAtomicSize,
  kLocalKey,
  kLocalBounds,
  kToError,
  kCount
};

Generator::Generator(const Life& life, Model& model)
    : life_(life),
      model_(model),
      random_(life.seed ^ 0x726f756e64),
      broken_(life.ends.size()),
      tickets_(life.ends.size()),
      unsignaled_(life.ends.size()) {}

// ---- rounds ----

void Generator::prepare(uint32_t end) {
  EndRound& plan = round_.ends[end];
  plan.is_reset = broken_[end];
  broken_[end] = false;
  if (plan.is_reset) model_.reset(end);
  plan.registers_anew = chance(4);
  const bool is_reliable = life_.ends[end].type == IBV_QPT_RC;
  const bool is_open = model_.end(end).window_open;
  plan.invalidates_window = is_open && (plan.registers_anew || chance(4));
  plan.binds_window = is_reliable && (!is_open || plan.invalidates_window) && chance(2);
  if (plan.invalidates_window) model_.carry_out_alone(end, IBV_WR_LOCAL_INV);
  if (plan.binds_window) model_.carry_out_alone(end, IBV_WR_BIND_MW);
  tickets_[end] = 0;
  unsignaled_[end] = 0;
}

void Generator::draw_early_receives(bool is_breaking, uint32_t end) {
  const EndPlan& plan = life_.ends[end];
  if (plan.shared_receives) return;
  EndModel& model = model_.end(end);
  const uint64_t room = life_.receive_depth - (model.posted - model.used);
  const bool all = is_breaking || plan.type == IBV_QPT_UD || life_.is_cut(end, number_);
  round_.ends[end].early_receives = static_cast<uint32_t>(all ? room : random_.below(room + 1));
  model.posted += round_.ends[end].early_receives;
}

void Generator::draw_late_receives(uint32_t end) {
  const EndPlan& plan = life_.ends[end];
  EndModel& model = model_.end(end);
  if (plan.shared_receives || plan.type != IBV_QPT_RC || life_.is_cut(end, number_)) return;
  if (broken_[end] || model.used <= model.posted) return;
  round_.ends[end].late_receives = static_cast<uint32_t>(model.used - model.posted);
  model.posted = model.used;
}

Round Generator::next() {
  const auto ends = static_cast<uint32_t>(life_.ends.size());
  const size_t members = life_.members.size();
  round_ = {.ends = std::vector<EndRound>(ends),
            .early_shared = std::vector<uint32_t>(members),
            .late_shared = std::vector<uint32_t>(members)};
  model_.begin_round(number_);
  for (uint32_t i = 0; i < ends; ++i) prepare(i);
  std::vector<bool> breaks(ends);
  for (uint32_t i = 0; i < ends; ++i) {
    const EndPlan& plan = life_.ends[i];
    if (plan.type != IBV_QPT_RC || plan.peer < i || life_.is_cut(i, number_) || !chance(4))
      continue;
    breaks[chance(2) ? i : plan.peer] = true;
    broken_[i] = broken_[plan.peer] = true;
  }
  for (uint32_t i = 0; i < ends; ++i) draw_early_receives(broken_[i], i);
  for (uint32_t i = 0; i < members; ++i) {
    SharedModel& shared = model_.shared(i);
    const uint64_t room = kSharedDepth - (shared.posted - shared.used);
    const bool all = life_.members[i].datagrams_share;
    round_.early_shared[i] = static_cast<uint32_t>(all ? room : random_.below(room + 1));
    shared.posted += round_.early_shared[i];
  }
  for (uint32_t i = 0; i < ends; ++i) {
    if (breaks[i]) {
      draw_break(i);
    } else if (!broken_[i]) {
      draw_traffic(i, chance(5) ? 0 : static_cast<uint32_t>(random_.below(24)));
    }
  }
  for (uint32_t i = 0; i < ends; ++i) draw_late_receives(i);
  for (uint32_t i = 0; i < members; ++i) {
    SharedModel& shared = model_.shared(i);
    if (shared.used <= shared.posted) continue;
    round_.late_shared[i] = static_cast<uint32_t>(shared.used - shared.posted);
    shared.posted = shared.used;
  }
  ++number_;
  return std::move(round_);
}

void Generator::add(uint32_t end, Request request) {
  model_.carry_out(end, request);
  round_.ends[end].requests.push_back(std::move(request));
}

void Generator::draw_traffic(uint32_t end, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    Request request = right(end);
    // Who posts finds room again, and knows when all is done.
    const bool must_signal = i + 1 == count || ++unsignaled_[end] >= life_.ends[end].send_depth / 4;
    if (must_signal || chance(2)) {
      request.flags |= IBV_SEND_SIGNALED;
      unsignaled_[end] = 0;
    }
    add(end, std::move(request));
  }
}

void Generator::flush_receives(uint32_t end) {
  EndModel& model = model_.end(end);
  if (life_.ends[end].shared_receives) return;
  round_.ends[end].flushed_receives = static_cast<uint32_t>(model.posted - model.used);
  model.used = model.posted;
}

// Right requests, a wrong one, and some that nobody carries out any more.
void Generator::draw_break(uint32_t end) {
  const uint32_t peer = life_.ends[end].peer;
  for (uint64_t i = random_.below(6); i > 0; --i) {
    // None may wait for a receive: nobody posts one in time.
    if (life_.ends[peer].shared_receives || model_.receives_left(peer) > 0) draw_traffic(end, 1);
  }
  Request wrong;
  Wrong kind{};
  do {
    wrong = {};
    kind = static_cast<Wrong>(random_.below(static_cast<uint64_t>(Wrong::kCount)));
  } while (!make_wrong(kind, end, wrong));
  const bool peer_learns = kind < Wrong::kAtomicSize;
  add(end, std::move(wrong));
  for (uint64_t i = random_.below(5); i > 0; --i) {
    Request flushed = right(end);
    flushed.status = IBV_WC_WR_FLUSH_ERR;
    add(end, std::move(flushed));
  }
  flush_receives(end);
  if (peer_learns) flush_receives(peer);
}

// ---- requests ----

uint32_t Generator::size_up_to(uint32_t limit_bytes) {
  if (limit_bytes == 0 || chance(8)) return 0;
  if (chance(4)) return limit_bytes;
  const uint32_t short_bytes = std::min<uint32_t>(limit_bytes, 200);
  return static_cast<uint32_t>(random_.below((chance(2) ? short_bytes : limit_bytes) + 1));
}

std::vector<Piece> Generator::pieces(uint64_t offset, uint32_t area_bytes, uint32_t size_bytes,
                                     bool may_overlap) {
  std::vector<Piece> list;
  uint32_t at = 0;
  uint32_t left = size_bytes;
  while (left > 0 || chance(4)) {
    const bool is_last = list.size() + 1 >= kMaxPieces || chance(3);
    const auto length_bytes = is_last ? left : static_cast<uint32_t>(random_.below(left + 1));
    // So far that the rest has its place behind it.
    const uint32_t begin = may_overlap ? 0 : at;
    const uint32_t end = area_bytes - (may_overlap ? length_bytes : left);
    const uint32_t place = begin + static_cast<uint32_t>(random_.below(end - begin + 1));
    list.push_back({offset + place, length_bytes});
    at = place + length_bytes;
    left -= length_bytes;
    if (list.size() == kMaxPieces) break;
  }
  return list;
}

uint32_t Generator::message_limit(uint32_t end) const {
  const EndPlan& plan = life_.ends[end];
  if (life_.ends[plan.peer].shared_receives) return life_.message_bytes;
  if (plan.type == IBV_QPT_UC && model_.receives_left(plan.peer) == 0) return life_.message_bytes;
  return model_.next_capacity(plan.peer);
}

// What was read before may be sent on behind a fence.
void Generator::read_landing_or_source(uint32_t end, uint32_t size_bytes, Request& request) {
  const EndPlan& plan = life_.ends[end];
  const bool fenced = plan.type == IBV_QPT_RC && chance(4);
  const bool from_landing = fenced && chance(2);
  if (fenced) request.flags |= IBV_SEND_FENCE;
  request.pieces = pieces(from_landing ? plan.places.landing : plan.places.source, life_.area_bytes,
                          size_bytes, true);
  if (!from_landing && size_bytes <= plan.max_inline_bytes && chance(3))
    request.flags |= IBV_SEND_INLINE;
}

Request Generator::datagram(uint32_t end) {
  Request request{.opcode = chance(2) ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM,
                  .immediate = static_cast<uint32_t>(random_.next())};
  std::vector<uint32_t> others;
  for (uint32_t i = 0; i < life_.ends.size(); ++i) {
    if (life_.ends[i].type == IBV_QPT_UD) others.push_back(i);
  }
  request.to = others[random_.below(others.size())];
  request.wrong_qkey = model_.receives_left(request.to) == 0 || chance(10);
  constexpr uint32_t kMostBytes = 4096;
  read_landing_or_source(end, size_up_to(std::min(kMostBytes, life_.message_bytes)), request);
  return request;
}

Request Generator::counting(uint32_t end) {
  return {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
          .pieces = {{life_.ends[end].places.tickets + tickets_[end]++ * sizeof(uint64_t),
                      sizeof(uint64_t)}},
          .remote = kWordAt,
          .key = Key::kWord,
          .compare_add = 1};
}

Request Generator::atomic(uint32_t end) {
  const EndPlan& plan = life_.ends[end];
  const EndPlan& peer = life_.ends[plan.peer];
  Request request{.opcode = chance(2) ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD};
  request.remote = peer.places.target + 8 * random_.below(life_.area_bytes / 8);
  request.compare_add = chance(2) ? model_.word(peer.member, request.remote) : random_.next();
  request.swap = random_.next();
  if (soft::kAtomicWriteOperation != 0 && plan.extended && chance(3)) {
    request.opcode = soft::kAtomicWrite;
    return request;
  }
  request.pieces = pieces(plan.places.landing, life_.area_bytes, sizeof(uint64_t), false);
  return request;
}

Request Generator::transfer(uint32_t end, ibv_wr_opcode opcode) {
  const EndPlan& plan = life_.ends[end];
  const bool is_message =
      opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
  Request request{.opcode = opcode, .immediate = static_cast<uint32_t>(random_.next())};
  const uint32_t size_bytes = size_up_to(is_message ? message_limit(end) : life_.area_bytes);
  const uint32_t room = life_.area_bytes - size_bytes;
  request.remote = life_.ends[plan.peer].places.target +
                   (chance(6) ? room : static_cast<uint32_t>(random_.below(room + 1)));
  if (opcode == IBV_WR_RDMA_READ) {
    request.pieces = pieces(plan.places.landing, life_.area_bytes, size_bytes, false);
  } else {
    read_landing_or_source(end, size_bytes, request);
  }
  return request;
}

Request Generator::right(uint32_t end) {
  const EndPlan& plan = life_.ends[end];
  Request request;
  if (plan.type == IBV_QPT_UD) {
    request = datagram(end);
  } else {
    // Shared receives that datagrams meet are not to run out; with none left, a message would wait.
    const EndPlan& peer = life_.ends[plan.peer];
    const bool scarce = peer.shared_receives && life_.members[peer.member].datagrams_share &&
                        model_.receives_left(plan.peer) == 0;
    const bool none_left =
        broken_[end] && !peer.shared_receives && model_.receives_left(plan.peer) == 0;
    const bool is_reliable = plan.type == IBV_QPT_RC;
    const bool is_open = is_reliable && model_.end(plan.peer).window_open;
    constexpr ibv_wr_opcode kMessages[] = {IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
                                           IBV_WR_RDMA_WRITE_WITH_IMM};
    const uint64_t kind = random_.below(is_reliable ? 10 : 6);
    if (kind < 4 && !scarce && !none_left) {
      request = transfer(end, is_open && chance(4) ? IBV_WR_SEND_WITH_INV : kMessages[kind]);
    } else if (kind < 6) {
      request = transfer(end, IBV_WR_RDMA_WRITE);
    } else if (kind < 8 || !is_reliable) {
      request = transfer(end, is_reliable ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
    } else if (kind == 8 && tickets_[end] < kTickets) {
      request = counting(end);
    } else {
      request = atomic(end);
    }
    if (is_open && request.key == Key::kTarget && chance(2)) request.key = Key::kWindow;
    if (!is_reliable && request.opcode == IBV_WR_RDMA_WRITE && size_of(request) > 0 && chance(8))
      request.key = Key::kGone;
  }
  if (chance(8)) request.flags |= IBV_SEND_SOLICITED;
  return request;
}

// False where this queue pair cannot do that.
bool Generator::make_wrong(Wrong wrong, uint32_t end, Request& request) {
  const EndPlan& plan = life_.ends[end];
  const EndPlan& peer = life_.ends[plan.peer];
  const bool may_meet = !peer.shared_receives && model_.receives_left(plan.peer) > 0;
  constexpr ibv_wr_opcode kAccesses[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                         IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_RDMA_WRITE_WITH_IMM};
  const ibv_wr_opcode opcode = kAccesses[random_.below(may_meet ? 4 : 3)];
  if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    do request = atomic(end);
    while (request.opcode == soft::kAtomicWrite);
  } else {
    do request = transfer(end, opcode);
    while (size_of(request) == 0);
  }
  const bool is_atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  const uint32_t size_bytes = size_of(request);
  request.status = IBV_WC_REM_ACCESS_ERR;
  switch (wrong) {
    case Wrong::kGoneKey:
      request.key = Key::kGone;
      return true;
    case Wrong::kBeyondTheEnd:
      if (is_atomic) {
        request.remote = peer.places.target + (life_.area_bytes + 0) / 8 * 8;
      } else {
        request.remote = peer.places.target + life_.area_bytes - size_bytes + 1;
      }
      return true;
    case Wrong::kBeforeTheStart:
      request.remote = peer.places.target - (is_atomic ? 8 : 1);
      return true;
    case Wrong::kNoRight:
      request.key = opcode == IBV_WR_RDMA_READ ? Key::kWriteOnly : Key::kReadOnly;
      return true;
    case Wrong::kShutWindow:
      request.key = Key::kWindow;
      return !model_.end(plan.peer).window_open;
    case Wrong::kTooLong: {
      if (!may_meet || message_limit(end) >= life_.area_bytes) return false;
      request = {.opcode = IBV_WR_SEND, .status = IBV_WC_REM_INV_REQ_ERR};
      request.pieces = pieces(plan.places.source, life_.area_bytes, message_limit(end) + 1, true);
      return true;
    }
    case Wrong::kUnaligned:
      request.remote = (request.remote & ~7ull) + 1 + random_.below(7);
      request.status = IBV_WC_REM_INV_REQ_ERR;
      return is_atomic;
    case Wrong::kAtomicSize:
      request.pieces = {{plan.places.landing, chance(2) ? 4u : 16u}};
      request.status = IBV_WC_LOC_LEN_ERR;
      return is_atomic;
    case Wrong::kLocalKey:
      request.wrong_lkey = true;
      request.flags &= ~unsigned{IBV_SEND_INLINE};
      request.status = IBV_WC_LOC_PROT_ERR;
      return true;
    case Wrong::kLocalBounds:
      // The last byte is that behind the landing area, of another region.
      request.pieces = {{plan.places.landing + life_.area_bytes - (is_atomic ? 7 : size_bytes - 1),
                         is_atomic ? 8 : size_bytes}};
      request.flags &= ~unsigned{IBV_SEND_INLINE};
      request.status = IBV_WC_LOC_PROT_ERR;
      return true;
    default:
      request.after_to_error = true;
      request.status = IBV_WC_WR_FLUSH_ERR;
      return true;
  }
}

}  // namespace verbena::soft_model
