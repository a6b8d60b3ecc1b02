// Vector IO: the ways in which several pieces become work requests.
#include <algorithm>

#include "src/remote/connected_region.h"
#include "src/remote/vector_copy.h"

namespace verbena::remote {

bool ConnectedRegion::make_vector(std::span<const LocalSlice> slices, uint32_t place,
                                  uint32_t staging_bytes, Vector* vector) {
  if (slices.size() > options_.max_entries) [[unlikely]] {
    refuse_vector(*vector, slices.size(), staging_bytes);
    return false;
  }
  uint64_t total_bytes = 0;
  size_t count = 0;
  const std::span<ibv_sge> pieces = pieces_of(place);
  for (const LocalSlice& slice : slices) {
    const Local memory = local(slice);
    if (memory.data == nullptr) [[unlikely]]
      return false;
    if (memory.size_bytes == 0) continue;
    total_bytes += memory.size_bytes;
    pieces[count++] = {.addr = reinterpret_cast<uint64_t>(memory.data),
                       .length = memory.size_bytes,
                       .lkey = memory.lkey};
  }
  vector->pieces = pieces.first(count);
  if (!may(vector->reads ? Access::kRead : Access::kWrite, vector->offset_bytes, total_bytes))
    return false;
  vector->total_bytes = total_bytes;
  if (vector->method == VectorMethod::kAutomatic) {
    vector->method = count > 1 ? vector_choice_.method(vector->reads, static_cast<uint32_t>(count),
                                                       total_bytes, staging_bytes)
                               : VectorMethod::kSgl;
  }
  const bool possible = vector->method == VectorMethod::kSp    ? total_bytes <= staging_bytes
                        : vector->method == VectorMethod::kSgl ? count <= device_.max_sges
                                                               : true;
  if (possible && total_bytes <= kMaxTransferBytes) [[likely]]
    return true;
  refuse_vector(*vector, slices.size(), staging_bytes);
  return false;
}

std::span<const ibv_sge> ConnectedRegion::add_vector(const Vector& vector, const Local& staging) {
  const ibv_wr_opcode opcode = vector.reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  const auto total_bytes = static_cast<uint32_t>(vector.total_bytes);
  const auto flags = [&](uint64_t bytes) {
    return vector.flags | (vector.reads ? 0 : write_flags(bytes));
  };
  if (vector.method == VectorMethod::kSp || vector.pieces.empty()) {
    if (!vector.reads) gather(vector.pieces, staging.data);
    add_transfer(opcode, flags(total_bytes), vector.offset_bytes,
                 {staging.data, total_bytes, staging.lkey});
    return vector.reads ? vector.pieces : std::span<const ibv_sge>();
  }
  if (vector.method == VectorMethod::kSgl) {
    ibv_send_wr& request = add_request(opcode, flags(total_bytes), vector.offset_bytes, total_bytes,
                                       static_cast<uint32_t>(vector.pieces.size()));
    std::ranges::copy(vector.pieces, request.sg_list);  // the device charges what posting takes
    return {};
  }
  uint64_t offset_bytes = vector.offset_bytes;
  unsigned fence = vector.flags;  // of the first: the others come behind it
  for (const ibv_sge& piece : vector.pieces) {
    const unsigned inlined = vector.reads ? 0 : write_flags(piece.length);
    add_request(opcode, fence | inlined, offset_bytes, piece.length, 1).sg_list[0] = piece;
    offset_bytes += piece.length;
    fence = 0;
  }
  return {};
}

PostResult ConnectedRegion::post_vector(Vector vector, std::span<const LocalSlice> slices,
                                        uint64_t token) {
  if (!status_.ok()) return PostResult::kFailed;
  if (!queue_.has_room()) return would_block();
  if (!make_vector(slices, queue_.next_place(), options_.value_bytes, &vector)) {
    return PostResult::kFailed;
  }
  const Local staging = next_value(options_.value_bytes);
  const std::span<const ibv_sge> scattered = add_vector(vector, staging);
  return committed(queue_.commit({.token = token, .bytes = staging.data, .scatter = scattered}));
}

Status ConnectedRegion::vector_alone(Vector vector, std::span<const LocalSlice> slices) {
  if (!status_.ok() || !make_vector(slices, OperationQueue::ring_size(options_.pending),
                                    options_.copy_bytes, &vector)) {
    return error();
  }
  const std::span<const ibv_sge> scattered =
      add_vector(vector, {copy_buffer_, options_.copy_bytes, endpoint_->arena.lkey()});
  VERBENA_RETURN_IF_ERROR(finish_alone());
  scatter(copy_buffer_, scattered);
  return Status::ok_status();
}

PostResult ConnectedRegion::post_readv(uint64_t offset_bytes, std::span<const LocalSlice> to,
                                       uint64_t token, VectorMethod method, Order order) {
  return post_vector(
      {.reads = true, .method = method, .offset_bytes = offset_bytes, .flags = fence(order)}, to,
      token);
}

PostResult ConnectedRegion::post_writev(uint64_t offset_bytes, std::span<const LocalSlice> from,
                                        uint64_t token, VectorMethod method, Order order) {
  return post_vector({.method = method, .offset_bytes = offset_bytes, .flags = fence(order)}, from,
                     token);
}

Status ConnectedRegion::readv(uint64_t offset_bytes, std::span<const LocalSlice> to,
                              VectorMethod method) {
  return vector_alone({.reads = true, .method = method, .offset_bytes = offset_bytes}, to);
}

Status ConnectedRegion::writev(uint64_t offset_bytes, std::span<const LocalSlice> from,
                               VectorMethod method) {
  return vector_alone({.method = method, .offset_bytes = offset_bytes}, from);
}

}  // namespace verbena::remote
