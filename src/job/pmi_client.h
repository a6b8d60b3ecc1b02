// PMI version 1: how processes that mpiexec of MPICH or Intel MPI (Hydra) started find each other.
// The launcher leaves a socket open in each, over which lines of "cmd=... key=value" go back and
// forth; its server has a key-value space for the job and a barrier after which all see it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/control/tcp_socket.h"
#include "verbena/status.h"

namespace verbena::job {

class PmiClient {
 public:
  // `descriptor` is that of PMI_FD; it stays the launcher's. `timeout_ns` (negative: no limit) is
  // for all calls together. Says hello.
  static Result<PmiClient> start(int descriptor, int64_t timeout_ns);

  Status put(const std::string& key, const std::string& value);
  // Returns when all ranks have called it.
  Status barrier();
  Result<std::string> get(const std::string& key);
  // Says goodbye once this process ends by exit(). A launcher that has not heard it takes the
  // process for one that failed, and ends all others. Not before the end: an MPI that the program
  // uses, too, speaks by the same descriptor, and says it itself.
  void finish_at_exit() const;

 private:
  friend void finish_pmi();
  PmiClient(int descriptor, int64_t timeout_ns) : descriptor_(descriptor), deadline_(timeout_ns) {}
  // Sends a line and returns the answer, which must be of this command.
  Result<std::string> ask(const std::string& line, std::string_view answer);
  Result<std::string> read_line();

  int descriptor_;
  Deadline deadline_;
  std::string space_;
  std::string unread_;
};

// The value of `key` in "cmd=get_result rc=0 value=abc"; empty if it is not there. Exposed for
// tests.
std::string pmi_value(std::string_view line, std::string_view key);

}  // namespace verbena::job
