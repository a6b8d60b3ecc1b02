#include "src/bench/remote/socket_targets.h"

#include <utility>

#include "src/bench/run/thread_connection.h"

namespace verbena::bench {

namespace {

RemoteRegionOptions region_options(const Point& point) {
  RemoteRegionOptions options;
  options.pending = point.pending;
  options.value_bytes = remote_settings(point).size_bytes;
  options.threads = point.threads;
  options.handshake_timeout_ns = kSetupTimeoutNs;
  return options;
}

}  // namespace

Result<SocketRegions> connect_socket_regions(NodeJob& job, uint32_t number) {
  const Point& point = job.setup.point;
  const SocketUse use = socket_use(remote_settings(point));
  const uint32_t responding = job.wiring().requesting[number].peers.front();
  VERBENA_RETURN_IF_ERROR(run_on_own_socket(point, use, number));
  VERBENA_RETURN_IF_ERROR(share_sockets(job, use, number));
  SocketRegions own{.queue_pairs = started_queue_pairs(job, use, number)};
  // By proxies one region has all parts.
  const uint32_t first = has_proxies(use.links) ? socket_of_thread(point, use, number) : 0;
  const uint32_t end = has_proxies(use.links) ? first + 1 : use.sockets;
  for (uint32_t part = first; part < end; ++part) {
    VERBENA_ASSIGN_OR_RETURN(ReachedPart reached,
                             reach_part(job, use, number, responding, part, region_options(point)));
    own.queue_pairs += reached.has_connection ? 1 : 0;
    own.parts.push_back(std::move(reached));
  }
  return own;
}

SocketWrites::SocketWrites(const RemoteThread& thread, const SocketRegions& own)
    : own_(own),
      socket_bytes_(socket_bytes(thread.point())),
      first_(thread.number == 0),
      part_(thread) {}

void SocketWrites::begin(bool verify) {
  part_.begin(verify);
  verify_ = verify;
  written_ = 0;
}

void SocketWrites::end(Report& report) {
  report.counters[kCountedOperations] = written_;
  report.counters[kRoundTrips] = written_;
  report.counters[kQueuePairs] = own_.queue_pairs;
  report.counters[kBackEnds] = first_ ? 1 : 0;
  if (!verify_ || !status_.ok()) return;
  const Result<uint64_t> wrong =
      part_.mismatches([this](uint64_t offset_bytes, std::span<char> into) {
        const uint64_t part = own_.parts.size() == 1 ? 0 : offset_bytes / socket_bytes_;
        return own_.parts[part].region->read(offset_bytes - part * socket_bytes_, into);
      });
  if (!wrong.ok()) return fail(wrong.status());
  report.mismatches += *wrong;
}

uint32_t SocketWrites::outstanding() const {
  uint32_t sum = 0;
  for (const ReachedPart& part : own_.parts) sum += part.region->outstanding();
  return sum;
}

}  // namespace verbena::bench
