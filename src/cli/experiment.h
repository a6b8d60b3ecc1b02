// Measures a plan from start to finish, as `bench`, `verbs` and `demo` do it: starts or finds the
// nodes, shows progress, writes the result file after every run, prints the table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/result/point_result.h"
#include "verbena/job.h"

namespace verbena::cli {

struct Experiment {
  bench::Plan plan;
  std::string device = "soft0";
  std::string command;    // for the result file
  std::string json_path;  // none: no result file
  bool resume = false;    // go on from what json_path has
  uint16_t port = 0;      // of the control connections; 0: any, but not with `host`
  std::string host;       // where a responder node listens; empty: all nodes are started here
  std::string secret_file;
  Job* job = nullptr;  // whose ranks are the nodes, this one, rank 0, the first; null: none
};

// Returns the exit code: 0, 1 if something failed (what was finished is kept), 2 if the plan cannot
// be carried out, 130 after Ctrl-C.
int run_experiment(const Experiment& experiment);

// A node on a host of its own: waits for one coordinator and serves it.
struct Listening {
  std::string device = "soft0";
  std::string address = "0.0.0.0";
  uint16_t port = 0;
  std::string secret_file;
};
int listen_for_experiment(const Listening& listening);

inline constexpr uint16_t kDefaultPort = 7471;

}  // namespace verbena::cli
