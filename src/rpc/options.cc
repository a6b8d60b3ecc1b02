#include "src/rpc/options.h"

#include <fmt/format.h>

#include "verbena/rpc.h"

namespace verbena::rpc {
namespace {

constexpr uint32_t kMaxPostBatch = 256;

Status out_of_range(const char* option, uint64_t asked, uint64_t least, uint64_t most) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} is {}; choose {} to {}", option, asked, least, most));
}

}  // namespace

Status check_sizes(uint32_t request_max_bytes, uint32_t response_max_bytes, uint32_t pending,
                   uint32_t post_batch) {
  if (request_max_bytes > kMaxMessageBytes) {
    return out_of_range("request_max_bytes", request_max_bytes, 0, kMaxMessageBytes);
  }
  if (response_max_bytes > kMaxMessageBytes) {
    return out_of_range("response_max_bytes", response_max_bytes, 0, kMaxMessageBytes);
  }
  if (pending < 1 || pending > kMaxPending) {
    return out_of_range("pending", pending, 1, kMaxPending);
  }
  if (post_batch < 1 || post_batch > kMaxPostBatch) {
    return out_of_range("post_batch", post_batch, 1, kMaxPostBatch);
  }
  return Status::ok_status();
}

}  // namespace verbena::rpc
