// Jobs: processes on several hosts that a launcher started, each connected with each.
//
// mpiexec, srun or ssh start one process per rank; every one calls Job::join() and then has an
// authenticated control connection to all others (verbena/connection.h), over which they set up
// their RDMA connections. Nothing here is on the data path.
//
//   auto job = Job::join();               // rank, size and coordinator from the launcher
//   if (job->rank() == 0) { ... make_requester(..., job->peer(1), ...) }
//
// Where it takes what from, in this order; a flag of yours that sets an option comes first:
//
//   rank, size     JobOptions; VERBENA_RANK and VERBENA_SIZE; PMI (mpiexec of MPICH and Intel MPI);
//                  Open MPI (OMPI_COMM_WORLD_*); Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS), with
//                  PMIX_RANK before SLURM_PROCID
//   coordinator    JobOptions; VERBENA_COORDINATOR; PMI's key-value space; the first host of a
//                  Slurm step; this host, where Open MPI starts all ranks on one
//   secret         JobOptions; the file in VERBENA_JOB_SECRET_FILE; the text in VERBENA_JOB_SECRET
//
// docs/running-on-a-cluster.md shows each launcher's command.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena {

inline constexpr int kMaxJobRanks = 4096;
inline constexpr uint16_t kDefaultCoordinatorPort = 7470;

struct JobOptions {
  int rank = -1;            // -1: from the launcher
  int size = -1;            // -1: from the launcher
  std::string coordinator;  // "HOST:PORT" or "HOST", where rank 0 listens; empty: from the launcher
  std::optional<JobSecret> secret;
  std::string secret_file;
  // Until all ranks have joined; negative: no limit.
  int64_t timeout_ns = 60'000'000'000;
};

// Movable. One thread at a time may use it; different peers' connections may be used by different
// threads.
class Job {
 public:
  static constexpr int64_t kTimeoutNs = 60'000'000'000;

  // Finds the other ranks, and returns when each is connected with each. Cost: size - 1
  // descriptors, and some round trips for each.
  //   kInvalidArgument  rank, size, coordinator or secret are missing or contradict each other
  //   kTimeout          not all ranks joined in time; names those that did not (rank 0)
  //   kPermissionDenied a rank holds another secret
  //   kUnavailable      a rank died, or the coordinator's port is in use
  static Result<Job> join(const JobOptions& options = {});

  Job(Job&&) noexcept;
  Job& operator=(Job&&) noexcept;
  ~Job();

  int rank() const;
  int size() const;
  // What that rank's host calls itself.
  const std::string& host(int rank) const;
  const JobSecret& secret() const;

  // The connection to another rank: 0 <= rank < size(), not the own one. The calls below use it
  // too; both its ends must use it in the same order.
  ControlConnection& peer(int rank);
  // Hands the connection over; peer() and the calls below may not be used for that rank any more.
  ControlConnection take_peer(int rank);

  // The following are called by all ranks, in the same order; an error names the rank that died or
  // did not come. Frames of up to kMaxControlFrameBytes - 64 bytes.

  // Returns when all ranks have called it.
  Status barrier(int64_t timeout_ns = kTimeoutNs);
  // At `root` what each rank gave, by rank; empty at all others.
  Result<std::vector<std::vector<std::byte>>> gather(std::span<const std::byte> mine, int root = 0,
                                                     int64_t timeout_ns = kTimeoutNs);
  // `bytes` of `root` at every rank; those of the others are ignored.
  Result<std::vector<std::byte>> broadcast(std::span<const std::byte> bytes, int root = 0,
                                           int64_t timeout_ns = kTimeoutNs);

 private:
  struct State;
  explicit Job(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace verbena
