// The responder of a benchmark on this host: a second process, started from the same executable.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::bench {

// The hidden subcommand that makes `verbena` a responder; see responder_process_main().
inline constexpr const char* kResponderCommand = "bench-responder";

class ResponderProcess {
 public:
  // Starts the process and waits until it has connected and opened the device. The job's secret
  // travels over an inherited socket, so that no other process sees it. `cpu` is where it pins
  // itself; -1: nowhere. `port` 0 takes any; another one is kUnavailable if it is in use.
  static Result<std::unique_ptr<ResponderProcess>> start(const std::string& device, int cpu,
                                                         uint16_t port);
  // Ends the process: it has a second to do so by itself.
  ~ResponderProcess();
  ResponderProcess(const ResponderProcess&) = delete;
  ResponderProcess& operator=(const ResponderProcess&) = delete;

  ControlConnection& control() { return *control_; }

  // How the process ended, in words; empty if it is alive. Waits a moment, since the end of a
  // connection is seen before the end of its process.
  std::string reason_of_death();

 private:
  explicit ResponderProcess(pid_t process) : process_(process) {}
  bool ended_within(uint64_t timeout_ns);

  pid_t process_;
  bool ended_ = false;
  int wait_status_ = 0;
  std::unique_ptr<ControlConnection> control_;
};

// What the started process does: takes its orders from standard input, connects, and serves.
// Returns its exit code, with a line on standard error where the requester cannot tell.
int responder_process_main();

}  // namespace verbena::bench
