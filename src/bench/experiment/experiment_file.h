// Experiments as files: a sweep that can be repeated, such as a figure of a paper.
//
//   title = "N-to-1: bandwidth by requesters"    # and paper, figure, notes: for people
//   topology = "N-to-1"
//   runs = 10
//   duration = "1s"                              # or requests = 4000000, per requesting thread
//   verify = false
//
//   [axes]                                       # of the workload; a value, a list, or text as
//   typed protocol = ["send/send", "write/write"] nodes = [1, 2, 3] response = "64,...,16KiB"
//
//   [[sweep]]                                    # any number: each measures the axes above, with
//   threads = 1                                  # these instead; topology may differ too
//   responder-threads = 14
//
//   [machine]                                    # what the original was measured on: free keys
//   link_gbps = 56
//
// 'kind' names the workload (workloads.h) where it is not requests and responses: with kind =
// "verbs" such a file has the axes of `verbena verbs`, and no topology.
//
// The files hold what the papers have, whatever this machine can do: the tool's --limit-nodes and
// --limit-threads make them smaller.
#pragma once

#include <string>

#include "src/bench/experiment/plan.h"
#include "verbena/status.h"

namespace verbena::bench {

// kNotFound: no such file. kInvalidArgument: one line with file, line, cause and remedy.
Result<Plan> read_experiment_file(const std::string& path);

}  // namespace verbena::bench
