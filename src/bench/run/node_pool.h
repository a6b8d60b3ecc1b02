// The nodes that a coordinator can use: processes that it starts on this host as they are needed,
// and nodes that joined from elsewhere.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/bench/run/coordination.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::bench {

// The hidden subcommand that makes `verbena` a node; see node_process_main().
inline constexpr const char* kNodeCommand = "bench-node";

// One node, seen from the coordinator: a control connection at whose other end serve_coordinator()
// runs.
class NodeLink {
 public:
  // A node that somebody else started and that has connected, or was connected to. Waits for its
  // introduction.
  static Result<std::unique_ptr<NodeLink>> join(ControlConnection control, uint64_t stall_ns);
  // Says good-bye; a process that was started here then has a second to end by itself.
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  ControlConnection& control() { return *control_; }
  const Hello& hello() const { return hello_; }
  bool has_process() const { return process_ > 0; }
  pid_t process() const { return process_; }
  // "process 4711", or where it is.
  std::string name() const;
  // How its process ended, in words; empty if it is alive, or not ours. Waits up to `patience_ns`,
  // since the end of a connection is seen before the end of its process.
  std::string reason_of_death(uint64_t patience_ns);
  // Its process on this host is stopped (SIGSTOP, a debugger): it will not answer until somebody
  // continues it.
  bool is_stopped() const;

 private:
  friend class NodePool;
  NodeLink() = default;
  bool ended_within(uint64_t timeout_ns);

  pid_t process_ = 0;
  bool ended_ = false;
  int wait_status_ = 0;
  Hello hello_;
  std::optional<ControlConnection> control_;
};

class NodePool {
 public:
  // Starts processes on this host; each opens `device`. The job's secret travels over an inherited
  // socket, so that no other process sees it. `port` is where they reach the coordinator, 0: any;
  // kUnavailable if it is in use. `launcher`: a program and its arguments that runs each.
  static Result<std::unique_ptr<NodePool>> on_this_host(const std::string& device,
                                                        const JobSecret& secret, uint16_t port,
                                                        std::vector<std::string> launcher = {});
  // Only the nodes that have joined, such as the ranks of a job; their order is that of the wiring.
  static std::unique_ptr<NodePool> of_joined(std::vector<std::unique_ptr<NodeLink>> nodes);

  // Nodes in virtual time, all with this RNIC ("sim:PROFILE"); each point makes its own.
  static std::unique_ptr<NodePool> simulated(const std::string& device);
  // Empty where nodes are processes.
  const std::string& simulated_device() const { return simulated_device_; }

  // A joined node behind those there are.
  void add(std::unique_ptr<NodeLink> node) { nodes_.push_back(std::move(node)); }
  // The address of this host at which those that it starts are reached, where other nodes are on
  // other hosts; else the loopback interface.
  void reach_at(std::string address) { address_ = std::move(address); }
  // A joined node that is always the last one: the responder of --connect.
  void set_last(std::unique_ptr<NodeLink> node) { last_ = std::move(node); }

  // So many nodes, in the order of the wiring; starts what is missing. They stay with the pool.
  //   kLimitExceeded  more than have joined, or than the system lets start
  //   kTimeout        for `stall_ns` no process that was started has opened its device
  Result<std::vector<NodeLink*>> take(uint32_t count, uint64_t stall_ns);

 private:
  NodePool() = default;
  Status start(uint32_t count, uint64_t stall_ns);
  Result<std::unique_ptr<NodeLink>> spawn(uint64_t token);

  std::string simulated_device_;
  bool may_start_ = false;
  std::string device_;
  std::vector<std::string> launcher_;
  std::string address_;
  std::optional<JobSecret> secret_;
  std::optional<ControlListener> listener_;
  std::vector<std::unique_ptr<NodeLink>> nodes_;
  std::unique_ptr<NodeLink> last_;
};

// What a started process does: takes its orders from standard input, connects, and serves. Returns
// its exit code, with a line on standard error where the coordinator cannot tell.
int node_process_main();

}  // namespace verbena::bench
