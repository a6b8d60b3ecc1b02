#include "tests/soft_model/model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/device/soft/atomic_write.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft_model {
namespace {

ibv_wc_status status_at_receiver(const Request& request) {
  if (request.status == IBV_WC_SUCCESS) return IBV_WC_SUCCESS;
  return request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_LOC_ACCESS_ERR : IBV_WC_LOC_LEN_ERR;
}

// Whether a request that fails meets a receive before.
bool fails_at_receive(const Request& request) {
  return consumes_receive(request.opcode) &&
         (request.status == IBV_WC_REM_ACCESS_ERR || request.status == IBV_WC_REM_INV_REQ_ERR);
}

bool is_exchange(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

}  // namespace

bool consumes_receive(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
         opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case IBV_WR_BIND_MW:
      return IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV:
      return IBV_WC_LOCAL_INV;
    case soft::kAtomicWrite:
      return soft::kAtomicWriteDone;
    default:
      return IBV_WC_SEND;
  }
}

Model::Model(const Life& life)
    : life_(life), ends_(life.ends.size()), shared_(life.members.size()) {
  for (const MemberPlan& member : life.members) images_.emplace_back(member.arena_bytes);
}

uint64_t Model::word(uint32_t member, uint64_t offset) const {
  uint64_t value = 0;
  std::memcpy(&value, images_[member].data() + offset, sizeof(value));
  return value;
}

void Model::begin_round(uint32_t round) {
  for (uint32_t i = 0; i < ends_.size(); ++i) {
    ends_[i].sent.clear();
    ends_[i].arriving.clear();
    test::fill_pattern(images_[life_.ends[i].member].data() + life_.ends[i].places.source,
                       life_.area_bytes, life_.seed + uint64_t{round} * kMaxEnds + i);
  }
}

void Model::carry_out_alone(uint32_t end, ibv_wr_opcode opcode) {
  ends_[end].sent.push_back(
      {.id = ends_[end].next_id++, .opcode = completion_opcode(opcode), .signaled = true});
  ends_[end].window_open = opcode == IBV_WR_BIND_MW;
}

uint64_t Model::receives_left(uint32_t end) const {
  const EndPlan& plan = life_.ends[end];
  const SharedModel& shared = shared_[plan.member];
  const uint64_t posted = plan.shared_receives ? shared.posted : ends_[end].posted;
  const uint64_t used = plan.shared_receives ? shared.used : ends_[end].used;
  return posted > used ? posted - used : 0;
}

uint32_t Model::next_capacity(uint32_t end) const {
  return capacity_of(life_, life_.ends[end].shared_receives ? kNobody : end, ends_[end].used);
}

void Model::reset(uint32_t end) {
  const uint64_t next_id = ends_[end].next_id;
  ends_[end] = {};
  ends_[end].next_id = next_id;
}

Bytes Model::gather(uint32_t member, const Request& request) const {
  Bytes bytes;
  for (const Piece& piece : request.pieces) {
    const std::byte* at = images_[member].data() + piece.offset;
    bytes.insert(bytes.end(), at, at + piece.length_bytes);
  }
  return bytes;
}

void Model::scatter(uint32_t member, const Request& request, const Bytes& bytes) {
  size_t taken = 0;
  for (const Piece& piece : request.pieces) {
    if (piece.length_bytes == 0) continue;
    std::memcpy(images_[member].data() + piece.offset, bytes.data() + taken, piece.length_bytes);
    taken += piece.length_bytes;
  }
}

void Model::deliver(uint32_t member, const Receive& receive, uint32_t offset, const Bytes& bytes) {
  size_t taken = 0;
  for (const Piece& piece : receive.pieces) {
    const uint32_t skipped = std::min(offset, piece.length_bytes);
    offset -= skipped;
    const size_t part = std::min<size_t>(piece.length_bytes - skipped, bytes.size() - taken);
    if (part == 0) continue;
    std::memcpy(images_[member].data() + piece.offset + skipped, bytes.data() + taken, part);
    taken += part;
  }
}

uint64_t Model::exchange_word(uint32_t member, const Request& request) {
  const uint64_t before = word(member, request.remote);
  uint64_t after = before;
  if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    after += request.compare_add;
  } else if (request.opcode == soft::kAtomicWrite) {
    after = request.compare_add;
  } else if (before == request.compare_add) {
    after = request.swap;
  }
  std::memcpy(images_[member].data() + request.remote, &after, sizeof(after));
  return before;
}

void Model::arrive(uint32_t from, uint32_t to, Message message) {
  const EndPlan& plan = life_.ends[to];
  if (plan.shared_receives) {
    ++shared_[plan.member].used;
  } else {
    ++ends_[to].used;
  }
  ends_[to].arriving[from].push_back(std::move(message));
}

void Model::carry_out(uint32_t end, const Request& request) {
  const EndPlan& plan = life_.ends[end];
  const uint32_t size_bytes = size_of(request);
  ends_[end].sent.push_back({.id = ends_[end].next_id++,
                             .status = request.status,
                             .opcode = completion_opcode(request.opcode),
                             .size_bytes = size_bytes,
                             .signaled = is_signaled(request) || plan.signal_all});
  const uint32_t to = plan.type == IBV_QPT_UD ? request.to : plan.peer;
  const uint32_t peer = life_.ends[to].member;
  if (request.status != IBV_WC_SUCCESS) {
    // The word has changed when the response finds no place.
    if (request.status == IBV_WC_LOC_PROT_ERR && is_exchange(request.opcode))
      exchange_word(peer, request);
    if (fails_at_receive(request)) {
      Message refused{.status = status_at_receiver(request)};
      if (receives_left(to) > 0) arrive(end, to, std::move(refused));
    }
    return;
  }
  // What an unreliable service cannot deliver vanishes.
  if (request.wrong_qkey || request.key == Key::kGone) return;
  if (plan.type != IBV_QPT_RC && consumes_receive(request.opcode) && receives_left(to) == 0) return;
  Message message{.byte_len = size_bytes};
  switch (request.opcode) {
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_WRITE: {
      const Bytes bytes = gather(plan.member, request);
      if (!bytes.empty())
        std::memcpy(images_[peer].data() + request.remote, bytes.data(), bytes.size());
      if (request.opcode == IBV_WR_RDMA_WRITE) return;
      message.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
      break;
    }
    case IBV_WR_RDMA_READ: {
      const std::byte* at = images_[peer].data() + request.remote;
      return scatter(plan.member, request, Bytes(at, at + size_bytes));
    }
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case soft::kAtomicWrite: {
      const uint64_t before = exchange_word(peer, request);
      const auto* bytes = reinterpret_cast<const std::byte*>(&before);
      return scatter(plan.member, request, Bytes(bytes, bytes + sizeof(before)));
    }
    default:
      message.bytes = gather(plan.member, request);
      break;
  }
  if (request.opcode == IBV_WR_SEND_WITH_INV) {
    message.flags = IBV_WC_WITH_INV;
    ends_[to].window_open = false;
  } else if (request.opcode != IBV_WR_SEND) {
    message.flags = IBV_WC_WITH_IMM;
    message.immediate = request.immediate;
  }
  if (plan.type == IBV_QPT_UD) message.byte_len += kGrhBytes;
  arrive(end, to, std::move(message));
}

}  // namespace verbena::soft_model
