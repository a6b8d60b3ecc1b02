// `verbena bench` as a job over several hosts: rank 0 coordinates and prints, each rank is a node.
#pragma once

#include <string>

#include "src/cli/experiment.h"
#include "src/cli/tool.h"
#include "verbena/job.h"

namespace verbena::cli {

// What the user says about the job; the launcher may say the rest.
struct JobFlags {
  bool job = false;
  int rank = -1;
  int size = -1;
  std::string coordinator;

  bool any() const { return job || rank >= 0 || size >= 0 || !coordinator.empty(); }
};

// Adds --job, --rank, --size and --coordinator; returns them.
std::vector<CLI::Option*> add_job_flags(CLI::App& command, JobFlags& flags);

// Joins the job. Rank 0 measures `experiment` with one node per rank, and the others serve it.
// Returns the exit code.
int run_experiment_in_job(const JobFlags& flags, Experiment experiment);

}  // namespace verbena::cli
