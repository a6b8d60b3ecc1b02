#include "src/bench/run/node_pool.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/file_descriptor.h"
#include "src/base/output.h"
#include "src/base/runtime.h"
#include "src/base/silence_watch.h"
#include "src/base/spawn.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/interrupt.h"
#include "src/bench/run/node_service.h"
#include "verbena/device.h"

namespace verbena::bench {

namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr int64_t kConnectTimeoutNs = 20'000'000'000;
constexpr int64_t kAcceptLookNs = 50'000'000;
constexpr int64_t kGreetingLookNs = 2'000'000;
constexpr uint64_t kFarewellNs = 1'000'000'000;
constexpr uint64_t kDeathLookNs = 2'000'000;
constexpr size_t kMaxOrdersBytes = 16384;

Result<pid_t> spawn_self(int orders, std::vector<std::string> launcher) {
  // A launcher has a /proc/self/exe of its own.
  std::string self = launcher.empty() ? "/proc/self/exe" : fmt::format("/proc/{}/exe", getpid());
  const std::string file = launcher.empty() ? self : launcher.front();
  launcher.insert(launcher.end(), {launcher.empty() ? "verbena" : self, kNodeCommand});
  // Standard output is for results.
  Result<pid_t> process = spawn(
      launcher,
      {.file = file, .descriptors = {{orders, STDIN_FILENO}, {STDERR_FILENO, STDOUT_FILENO}}});
  if (process.ok()) return process;
  return Status(StatusCode::kLimitExceeded,
                fmt::format("cannot start a node's process: {}; raise the limit of processes "
                            "(ulimit -u), free memory, or lower --nodes",
                            process.status().message()));
}

bool send_orders(int socket, const std::string& orders) {
  // One small packet into an empty buffer: it fits or the process is gone.
  return send(socket, orders.data(), orders.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(orders.size());
}

std::string receive_orders() {
  std::string orders(kMaxOrdersBytes, '\0');
  ssize_t size = 0;
  do {
    size = recv(STDIN_FILENO, orders.data(), orders.size(), 0);
  } while (size < 0 && errno == EINTR);
  orders.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return orders;
}

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    const bool no_memory = signal == SIGKILL || signal == SIGBUS;
    return fmt::format("was killed by signal {} ({}){}", signal, strsignal(signal),
                       no_memory ? "; if nobody did that by hand, memory or /dev/shm ran out" : "");
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(wait_status));
}

}  // namespace

// --- one node ---

Result<std::unique_ptr<NodeLink>> NodeLink::join(ControlConnection control, uint64_t stall_ns) {
  VERBENA_ASSIGN_OR_RETURN(Message message, expect_message(control, MessageKind::kHello,
                                                           static_cast<int64_t>(stall_ns)));
  std::unique_ptr<NodeLink> link(new NodeLink());
  link->hello_ = std::move(message.hello);
  link->control_ = std::move(control);
  return link;
}

NodeLink::~NodeLink() {
  // If it does not get there, the node notices the end of the connection.
  // One that never connected, or is stopped, will not end by itself.
  const bool may_end = control_.has_value() && !is_stopped();
  if (control_) static_cast<void>(send_message(*control_, {.kind = MessageKind::kBye}));
  control_.reset();
  if (!has_process() || ended_within(may_end ? kFarewellNs : 0)) return;
  kill(process_, SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string NodeLink::name() const {
  if (has_process()) return fmt::format("process {}", process_);
  return control_ ? control_->peer_name() : "nowhere";
}

bool NodeLink::ended_within(uint64_t timeout_ns) {
  const uint64_t start_ns = now_ns();
  while (!ended_) {
    const pid_t found = waitpid(process_, &wait_status_, WNOHANG);
    ended_ = found == process_ || (found < 0 && errno == ECHILD);
    if (ended_ || now_ns() - start_ns >= timeout_ns) break;
    sleep_ns(kDeathLookNs);
  }
  return ended_;
}

std::string NodeLink::reason_of_death(uint64_t patience_ns) {
  return has_process() && ended_within(patience_ns) ? describe_end(wait_status_) : std::string();
}

bool NodeLink::is_stopped() const {
  if (!has_process()) return false;
  std::ifstream file(fmt::format("/proc/{}/stat", process_));
  std::string line;
  std::getline(file, line);
  // "pid (name) state ...", and a name can have blanks.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return false;
  return line[name_end + 2] == 'T' || line[name_end + 2] == 't';
}

// --- all nodes ---

Result<std::unique_ptr<NodePool>> NodePool::on_this_host(const std::string& device,
                                                         const JobSecret& secret, uint16_t port,
                                                         std::vector<std::string> launcher) {
  std::unique_ptr<NodePool> pool(new NodePool());
  // Nodes that start under a launcher, or on a busy machine, may take long for their handshake, and
  // where places for that are short, the oldest would be dropped.
  VERBENA_ASSIGN_OR_RETURN(pool->listener_,
                           ControlListener::listen(kLoopback, port, secret,
                                                   {.max_pending = size_t{2} * kMaxNodes,
                                                    .handshake_timeout_ns = kSetupTimeoutNs}));
  pool->may_start_ = true;
  pool->device_ = device;
  pool->launcher_ = std::move(launcher);
  pool->secret_ = secret;
  return pool;
}

std::unique_ptr<NodePool> NodePool::simulated(const std::string& device) {
  std::unique_ptr<NodePool> pool(new NodePool);
  pool->simulated_device_ = device;
  return pool;
}

std::unique_ptr<NodePool> NodePool::of_joined(std::vector<std::unique_ptr<NodeLink>> nodes) {
  std::unique_ptr<NodePool> pool(new NodePool());
  pool->nodes_ = std::move(nodes);
  return pool;
}

Result<std::vector<NodeLink*>> NodePool::take(uint32_t count, uint64_t stall_ns) {
  const uint32_t others = last_ != nullptr ? count - 1 : count;
  if (nodes_.size() < others) {
    if (!may_start_) {
      return Status(StatusCode::kLimitExceeded,
                    fmt::format("the point needs {} nodes, {} have joined; start more, or lower "
                                "--nodes or --responders",
                                others, nodes_.size()));
    }
    VERBENA_RETURN_IF_ERROR(start(others - static_cast<uint32_t>(nodes_.size()), stall_ns));
  }
  std::vector<NodeLink*> taken;
  for (uint32_t i = 0; i < others; ++i) taken.push_back(nodes_[i].get());
  if (last_ != nullptr) taken.push_back(last_.get());
  return taken;
}

namespace {

// Why the processes that were started are not all there.
Status not_there(const std::vector<std::unique_ptr<NodeLink>>& started,
                 const std::vector<bool>& there, uint64_t silent_ns) {
  const NodeLink* missing = nullptr;
  for (size_t i = 0; i < started.size(); ++i) {
    if (there[i] || (missing != nullptr && !started[i]->is_stopped())) continue;
    missing = started[i].get();
    if (missing->is_stopped()) break;
  }
  const char* const why = missing->is_stopped()
                              ? "it is stopped, as by SIGSTOP or a debugger"
                              : "is the machine overloaded? a longer --stall-timeout waits";
  return {StatusCode::kTimeout,
          fmt::format("a node ({}) has not opened its device within {:.1f} s; {}", missing->name(),
                      static_cast<double>(silent_ns) / 1e9, why)};
}

}  // namespace

// All at once: a process takes some 50 ms until it is there.
Status NodePool::start(uint32_t count, uint64_t stall_ns) {
  std::vector<std::unique_ptr<NodeLink>> started;
  for (uint32_t i = 0; i < count; ++i) {
    VERBENA_ASSIGN_OR_RETURN(auto node, spawn(i));
    started.push_back(std::move(node));
  }
  std::vector<bool> there(count);
  std::vector<ControlConnection> greeting;  // connected, and still opening the device
  SilenceWatch silence(std::max(stall_ns, 2 * kAliveNs), now_ns());
  for (uint32_t joined = 0; joined < count;) {
    if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
    if (silence.too_long(now_ns(), joined)) return not_there(started, there, silence.silent_ns());
    // Before what it may have said is read.
    std::string death;
    for (uint32_t i = 0; i < count && death.empty(); ++i) {
      if (!there[i]) death = started[i]->reason_of_death(0);
    }
    Result<ControlConnection> connection =
        listener_->accept(greeting.empty() ? kAcceptLookNs : kGreetingLookNs);
    if (connection.ok()) {
      greeting.push_back(std::move(*connection));
    } else if (connection.status().code() != StatusCode::kTimeout) {
      return connection.status();
    }
    for (size_t i = 0; i < greeting.size();) {
      pollfd arrived{greeting[i].descriptor(), POLLIN, 0};
      if (poll(&arrived, 1, 0) <= 0) {
        ++i;
        continue;
      }
      VERBENA_ASSIGN_OR_RETURN(Message message,
                               expect_message(greeting[i], MessageKind::kHello, kConnectTimeoutNs));
      const uint64_t token = message.hello.token;
      if (token >= count || there[token]) {
        return Status(StatusCode::kProtocolViolation,
                      "a process connected as a node that the coordinator did not start");
      }
      started[token]->hello_ = std::move(message.hello);
      started[token]->control_ = std::move(greeting[i]);
      greeting.erase(greeting.begin() + static_cast<ptrdiff_t>(i));
      there[token] = true;
      ++joined;
    }
    if (!death.empty() && !connection.ok()) {
      return Status(StatusCode::kUnavailable, fmt::format("a node's process {}", death));
    }
  }
  std::move(started.begin(), started.end(), std::back_inserter(nodes_));
  return Status::ok_status();
}

Result<std::unique_ptr<NodeLink>> NodePool::spawn(uint64_t token) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot make a socket for a node's process: {}; raise the limit of "
                              "open files (ulimit -n)",
                              std::strerror(errno)));
  }
  const FileDescriptor ours(sockets[0]);
  FileDescriptor theirs(sockets[1]);
  std::unique_ptr<NodeLink> node(new NodeLink());
  VERBENA_ASSIGN_OR_RETURN(node->process_, spawn_self(theirs.get(), launcher_));
  theirs.reset();
  const nlohmann::json orders = {{"port", listener_->port()},
                                 {"secret", secret_->text()},
                                 {"device", device_},
                                 {"token", token},
                                 {"address", address_}};
  // If it is gone already, that is seen when it does not connect.
  static_cast<void>(send_orders(ours.get(), orders.dump()));
  return node;
}

// --- in the started process ---

int node_process_main() {
  const auto fail = [](const Status& status) {
    print_error_output("verbena: error: node: {}\n", status.message());
    return 1;
  };
  ignore_interrupts();
  prctl(PR_SET_NAME, "verbena-node");
  const nlohmann::json orders = nlohmann::json::parse(receive_orders(), nullptr, false);
  if (!orders.is_object() || !orders.contains("secret")) {
    print_error_output(
        "verbena: error: {} is started by 'verbena bench' only; on two hosts use "
        "'verbena bench one-to-one --listen'\n",
        kNodeCommand);
    return 2;
  }
  const Result<JobSecret> secret = JobSecret::from_string(orders.value("secret", std::string()));
  if (!secret.ok()) return fail(secret.status());
  Result<ControlConnection> control = ControlConnection::connect(
      kLoopback, orders.value("port", uint16_t{0}), *secret, kConnectTimeoutNs);
  if (!control.ok()) return fail(control.status());

  // The coordinator prints what goes wrong here: one line, not two.
  const auto refuse = [&](const Status& status) {
    static_cast<void>(send_failure(*control, status));
    return 1;
  };
  const Result<Device> device = Device::open(orders.value("device", std::string()));
  if (!device.ok()) return refuse(device.status());
  const Result<ProtectionDomain> domain = ProtectionDomain::create(*device);
  if (!domain.ok()) return refuse(domain.status());
  const Status status =
      serve_coordinator(*device, *domain, *secret, *control, orders.value("token", uint64_t{0}),
                        orders.value("address", std::string()));
  return status.ok() ? 0 : fail(status);
}

}  // namespace verbena::bench
