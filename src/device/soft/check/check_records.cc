#include "src/device/soft/check/check_records.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/device/soft/atomic_write.h"
#include "src/device/soft/objects.h"

namespace verbena::soft::check {
namespace {

constexpr size_t kMaxGone = 4096;

}  // namespace

const char* type_name(Type type) {
  switch (type) {
    case Type::kContext:
      return "context";
    case Type::kDomain:
      return "protection domain";
    case Type::kRegion:
      return "memory region";
    case Type::kWindow:
      return "memory window";
    case Type::kChannel:
      return "completion channel";
    case Type::kCq:
      return "completion queue";
    case Type::kSrq:
      return "shared receive queue";
    case Type::kQp:
      return "queue pair";
    case Type::kAddressHandle:
      return "address handle";
    case Type::kDeviceMemory:
      return "device memory";
    case Type::kThreadDomain:
      return "thread domain";
    case Type::kXrcDomain:
      return "XRC domain";
  }
  return "object";
}

void State::note_made(const void* self, Type type, const Caller& caller,
                      std::vector<const void*> uses) {
  std::erase(uses, nullptr);
  if (gone.erase(self) != 0) std::erase(gone_order, self);
  objects[self] = {type, caller.place, caller.is_connection_manager, this_process(),
                   std::move(uses)};
}

void State::note_gone(const void* self, Type type, const void* place) {
  if (objects.contains(self)) return;
  if (gone.emplace(self, Gone{type, place}).second) gone_order.push_back(self);
  if (gone_order.size() > kMaxGone) {
    gone.erase(gone_order.front());
    gone_order.pop_front();
  }
}

void State::forget_pieces(Ranges& ranges, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    if (piece.length_bytes != 0) ranges.remove(piece.begin, piece.end());
  }
}

void State::forget_send(QpRecord& qp, const SendRecord& send) {
  forget_pieces(ranges_of(send), send.pieces);
  if (send.signaled) --qp.send_cq->sends;
}

void State::forget_work(QpRecord& qp) {
  for (const SendRecord& send : qp.sends) forget_send(qp, send);
  qp.sends.clear();
  for (const ReceiveRecord& receive : qp.receives) {
    forget_pieces(receives, receive.pieces);
    --qp.recv_cq->receives;
  }
  qp.receives.clear();
  qp.failed = false;
}

std::string describe(const QpRecord& qp) {
  const char* type = qp.type == IBV_QPT_UD           ? "UD"
                     : qp.type == IBV_QPT_RAW_PACKET ? "raw packet"
                     : qp.type == IBV_QPT_UC         ? "UC"
                     : qp.type == IBV_QPT_XRC_SEND   ? "XRC"
                                                     : "RC";
  return fmt::format("{} queue pair {:#x}", type, qp.number);
}

std::string describe(const std::vector<Piece>& pieces) {
  if (pieces.empty()) return "no buffer";
  std::string text = fmt::format("{} bytes at {:#x}, lkey {:#x}", pieces[0].length_bytes,
                                 pieces[0].address, pieces[0].lkey);
  if (pieces.size() > 1) text += fmt::format(" and {} more", pieces.size() - 1);
  return text;
}

const char* state_text(ibv_qp_state state) {
  constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  const auto index = static_cast<size_t>(state);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

bool fills_own_buffers(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
         opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool refused_after_fork(State& all, uint32_t process, const char* verb, const void* place) {
  if (process == this_process()) return false;
  all.report({.kind = CheckKind::kAfterFork,
              .place = place,
              .what = fmt::format("{} in a child process, on an object of its parent", verb),
              .hardware = "the child has no part in the queues: with ibv_fork_init() they are not "
                          "mapped there (a segmentation fault), else both processes write them",
              .remedy = "open the device in the child, or leave verbs to the parent; the call was "
                        "refused"});
  return true;
}

void report_gone(State& all, const void* self, const char* verb, const void* place) {
  Gone found;
  {
    const std::lock_guard guard(all.mutex);
    const auto at = all.gone.find(self);
    if (at == all.gone.end()) return;
    found = at->second;
  }
  all.report({.kind = CheckKind::kUseAfterDestroy,
              .place = place,
              .other_place = found.place,
              .what = fmt::format("{} on a {} that was destroyed", verb, type_name(found.type)),
              .object = fmt::format("{} {}", type_name(found.type), self),
              .other = "destroyed",
              .hardware = "libibverbs has freed it: whatever lies there now is used",
              .remedy = "destroy it after its last use, once"});
}

void count_at_cq(State& all, CqRecord& cq, int64_t sends, int64_t receives,
                 const std::string& object, const void* place) {
  const int64_t depth = std::max(cq.verbs->cqe, 0);
  {
    const std::lock_guard guard(all.mutex);
    cq.sends += sends;
    cq.receives += receives;
    if (cq.may_overrun || cq.sends + cq.receives <= depth) return;
  }
  // Once more, when no poll has taken something that it has not counted yet.
  const std::lock_guard order(cq.order);
  if (cq.extended_polls.load() != 0) return;
  int64_t sent = 0;
  int64_t received = 0;
  {
    const std::lock_guard guard(all.mutex);
    sent = cq.sends;
    received = cq.receives;
  }
  if (sent + received <= depth) return;
  all.report({.kind = CheckKind::kCqOverrun,
              .place = place,
              .what = fmt::format("{} signaled sends and {} receives are posted whose completions "
                                  "go to a completion queue of {}",
                                  sent, received, depth),
              .object = object,
              .hardware = "overruns when they complete before they are polled: IBV_EVENT_CQ_ERR, "
                          "and the queue is lost",
              .remedy = "make the completion queue as deep as all queues that end there"});
}

void check_released(State& all, const std::vector<Piece>& pieces, const std::string& object,
                    const void* place) {
  for (const Piece& piece : pieces) {
    const auto found = all.regions.find(piece.lkey);
    if (found == all.regions.end()) continue;
    for (const RegionRecord::Released& released : found->second.released) {
      if (piece.begin >= released.end || released.begin >= piece.end()) continue;
      all.report_later(
          {.kind = CheckKind::kUnmappedInUse,
           .place = place,
           .what = "a work request uses memory that was unmapped since it was registered",
           .object = fmt::format("{}, {} bytes at {:#x}, lkey {:#x}", object, piece.length_bytes,
                                 piece.address, piece.lkey),
           .other = "unmapped",
           .hardware = "the RNIC uses the old pages, which the program does not see any more",
           .remedy = "register the memory anew after it was mapped again",
           .other_frames = released.frames});
      return;
    }
  }
}

}  // namespace verbena::soft::check
