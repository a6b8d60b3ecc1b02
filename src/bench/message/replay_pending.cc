#include "src/bench/message/replay_pending.h"

#include <algorithm>
#include <vector>

namespace verbena::bench {

uint64_t replay_pending(const trace::RecordedJob& job, uint32_t rank) {
  const trace::RankRecording& recording = job.ranks[rank];
  const auto messages = [&job](const trace::Event& event) -> uint64_t {
    return trace::is_collective(event.operation) ? 2 * job.communicators[event.communicator].size()
                                                 : 1;
  };
  std::vector<uint64_t> of_request = {0};
  for (const trace::Event& event : recording.events) {
    if (event.operation != trace::Operation::kWait) continue;
    for (const uint64_t request : recording.list(event)) {
      of_request.resize(std::max<size_t>(of_request.size(), request + 1));
      of_request[request] = 1;  // it is waited for
    }
  }
  uint64_t pending = 0;
  uint64_t most = 0;
  for (const trace::Event& event : recording.events) {
    if (event.operation == trace::Operation::kWait) {
      for (const uint64_t request : recording.list(event)) pending -= of_request[request];
    } else if (event.request == 0) {
      most = std::max(most, pending + messages(event));
    } else if (event.request < of_request.size() && of_request[event.request] != 0) {
      of_request[event.request] = event.has(trace::kUnmatched) ? 0 : messages(event);
      pending += of_request[event.request];
      most = std::max(most, pending);
    }
  }
  return most;
}

}  // namespace verbena::bench
