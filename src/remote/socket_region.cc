// What is not on the data path of a region on several sockets.
#include "src/remote/socket_region.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/remote/operation_queue.h"

namespace verbena::remote {

SocketRegion::SocketRegion(const RemoteRegionOptions& options, std::vector<Part> parts, Own own,
                           bool writable)
    : options_(options),
      writable_(writable),
      own_(std::move(own)),
      parts_(std::move(parts)),
      routes_(OperationQueue::ring_size(options.pending)),
      done_(parts_.size()) {}

SocketRegion::Part* SocketRegion::part_of(uint64_t offset_bytes, uint64_t bytes) {
  for (Part& part : parts_) {
    if (offset_bytes >= part.begin_bytes && offset_bytes <= part.end_bytes &&
        bytes <= part.end_bytes - offset_bytes) {
      return &part;
    }
  }
  refusal_ = Status(StatusCode::kInvalidArgument,
                    fmt::format("{} bytes at offset {} are not all inside of one part of the "
                                "region of {} bytes, which has {} parts; choose another offset, or "
                                "access each part by itself",
                                bytes, offset_bytes, size_bytes(), parts_.size()));
  return nullptr;
}

uint64_t SocketRegion::part_end_bytes(uint64_t offset_bytes) const {
  const auto has = [offset_bytes](const Part& part) { return offset_bytes < part.end_bytes; };
  const auto part = std::ranges::find_if(parts_, has);
  return part != parts_.end() ? part->end_bytes : size_bytes();
}

void SocketRegion::take_over_failure(const Part& part) {
  if (!status_.ok()) return;
  if (part.proxied == nullptr) {
    if (!own_.region->status().ok()) status_ = own_.region->status();
  } else if (part.proxied->broken()) {
    status_ = part.proxied->failure();
  }
}

std::vector<VectorEstimate> SocketRegion::vector_estimates(bool reads, uint32_t entries,
                                                           uint32_t entry_bytes) const {
  if (own_.region != nullptr) return own_.region->vector_estimates(reads, entries, entry_bytes);
  return parts_[0].proxied->vector_estimates(reads, entries, entry_bytes);
}

void SocketRegion::close() {
  if (status_.ok()) {
    status_ = Status(StatusCode::kUnavailable, "this side closed the region; open it again");
  }
  // Also after a failure of one part, since the others know nothing of it. Proxies answer what
  // they have begun, so that memory of the user may go.
  for (Part& part : parts_) {
    if (part.proxied != nullptr) part.proxied->leave();
  }
  if (own_.region != nullptr) own_.region->close();
}

const RemoteStatistics& SocketRegion::statistics() const {
  statistics_ = {};
  if (own_.region != nullptr) statistics_ = own_.region->statistics();
  statistics_.would_block += would_block_;
  for (const Part& part : parts_) {
    if (part.proxied == nullptr) continue;
    const RemoteStatistics& more = part.proxied->statistics();
    statistics_.reads += more.reads;
    statistics_.writes += more.writes;
    statistics_.atomics += more.atomics;
    statistics_.read_bytes += more.read_bytes;
    statistics_.written_bytes += more.written_bytes;
  }
  return statistics_;
}

}  // namespace verbena::remote
