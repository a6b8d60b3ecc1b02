// What the environment of a process that a launcher started says about the job.
#pragma once

#include <functional>
#include <string>

#include "verbena/status.h"

namespace verbena::job {

// The value of a variable; empty where it is unset. A parameter, so that tests bring their own.
using Environment = std::function<std::string(const char* variable)>;
std::string process_environment(const char* variable);

struct Placement {
  int rank = -1;
  int size = -1;
  std::string coordinator;  // "HOST:PORT"; empty: nobody knows, or PMI's key-value space will
  int pmi_descriptor = -1;  // where PMI's server listens (pmi_client.h); -1: none
  std::string launcher;     // for messages: "Slurm"
};

// Of the first launcher that names a rank. Without any, rank and size are -1.
//   kInvalidArgument  a variable's value is no number, or rank and size do not fit
Result<Placement> find_placement(const Environment& environment);

}  // namespace verbena::job
