// How the ranks of a job find each other: all come to rank 0, which tells everyone where all are;
// then each connects to those before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/control/tcp_socket.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::job {

struct Seat {
  int rank = 0;
  int size = 1;
};

// What a rank has when all are connected. The own place is empty.
struct Mesh {
  std::vector<std::optional<ControlConnection>> peers;
  std::vector<std::string> hosts;
};

// Rank 0: waits for all others at `listener`.
Result<Mesh> gather_ranks(const Seat& seat, ControlListener& listener, const Deadline& deadline);

// All others. `coordinators` are the addresses "HOST:PORT" where rank 0 may be, tried in turn.
Result<Mesh> join_ranks(const Seat& seat, const std::vector<std::string>& coordinators,
                        const JobSecret& secret, const Deadline& deadline);

// Tells all that are connected why there will be no job.
void refuse_all(Mesh& mesh, const Status& why);

// This host's name for itself.
std::string host_name();

}  // namespace verbena::job
