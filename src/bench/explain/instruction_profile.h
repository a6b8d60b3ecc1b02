// How many instructions a message takes on each side, and in which functions, where the processor
// does not count: the nodes run under valgrind's callgrind, for a short run of the same point.
//
// Counted are the polls that found messages, as in poll_cost.h: the handler, posting the answer or
// the next request, and on the software RNIC moving the bytes. Callgrind counts exactly, but each
// node takes some fifty times as long, and threads of a node take turns: so a poll may find more
// messages than it does at full speed. Bytes are copied by vector instructions, where the C library
// may use a single string instruction otherwise.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/explain/function_share.h"
#include "src/bench/explain/helper_process.h"
#include "src/bench/load/callgrind_dump.h"
#include "src/bench/run/node_pool.h"
#include "verbena/status.h"

namespace verbena::bench {

struct InstructionCost {
  double per_message = 0;  // the requesters' with those of their dispatchers
  double messages_per_poll = 0;
  std::vector<FunctionShare> functions{};  // the largest first
};

struct InstructionProfile {
  // Nothing where no poll was seen.
  std::optional<InstructionCost> requester{};
  std::optional<InstructionCost> responder{};
};

// Of all polls of both sides together. Pure.
InstructionProfile instruction_profile(std::span<const CallgrindDump> dumps);

// The nodes that count, for all points of a session.
class InstructionProfiler {
 public:
  // kUnsupported, with what to install, where valgrind is not there.
  static Status check();

  explicit InstructionProfiler(std::string device) : device_(std::move(device)) {}
  Result<InstructionProfile> profile(const Point& point);

 private:
  Status start_nodes();

  std::string device_;
  TemporaryFolder folder_;
  std::unique_ptr<NodePool> pool_;  // ends before the folder that it writes to
};

}  // namespace verbena::bench
