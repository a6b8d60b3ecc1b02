#include "src/bench/responder_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/bench/interrupt.h"
#include "src/bench/messages.h"
#include "src/bench/responder_service.h"
#include "verbena/device.h"

extern char** environ;

namespace verbena::bench {

namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr int64_t kStartTimeoutNs = 20'000'000'000;
constexpr int64_t kAcceptLookNs = 50'000'000;
constexpr uint64_t kFarewellNs = 1'000'000'000;
constexpr uint64_t kDeathLookNs = 2'000'000;
constexpr size_t kMaxOrdersBytes = 16384;

Result<pid_t> spawn_self(int orders) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, orders, STDIN_FILENO);
  // Standard output is for results.
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  std::string name = "verbena";
  std::string command = kResponderCommand;
  char* argv[] = {name.data(), command.data(), nullptr};
  pid_t process = -1;
  const int error = posix_spawn(&process, "/proc/self/exe", &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot start the responder's process: {}; raise the limit of "
                              "processes (ulimit -u) or free memory",
                              std::strerror(error)));
  }
  return process;
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
    return fmt::format("the responder's process was killed by signal {} ({}){}", signal,
                       strsignal(signal),
                       no_memory ? "; if nobody did that by hand, memory or /dev/shm ran out" : "");
  }
  return fmt::format("the responder's process ended with exit code {}", WEXITSTATUS(wait_status));
}

}  // namespace

Result<std::unique_ptr<ResponderProcess>> ResponderProcess::start(const std::string& device,
                                                                  int cpu, uint16_t port) {
  const JobSecret secret = JobSecret::random();
  VERBENA_ASSIGN_OR_RETURN(ControlListener listener,
                           ControlListener::listen(kLoopback, port, secret));
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return Status(
        StatusCode::kLimitExceeded,
        fmt::format("cannot make a socket for the responder's process: {}; raise the limit "
                    "of open files (ulimit -n)",
                    std::strerror(errno)));
  }
  const FileDescriptor ours(sockets[0]);
  FileDescriptor theirs(sockets[1]);
  VERBENA_ASSIGN_OR_RETURN(const pid_t process, spawn_self(theirs.get()));
  theirs.reset();
  std::unique_ptr<ResponderProcess> responder(new ResponderProcess(process));

  const nlohmann::json orders = {
      {"port", listener.port()}, {"secret", secret.text()}, {"device", device}, {"cpu", cpu}};
  bool lost = !send_orders(ours.get(), orders.dump());
  const uint64_t deadline_ns = now_ns() + uint64_t{kStartTimeoutNs};
  while (!lost && now_ns() < deadline_ns && !interrupted()) {
    Result<ControlConnection> connection = listener.accept(kAcceptLookNs);
    if (connection.ok()) {
      responder->control_ = std::make_unique<ControlConnection>(std::move(*connection));
      VERBENA_RETURN_IF_ERROR(
          expect_message(responder->control(), MessageKind::kReady, kStartTimeoutNs).status());
      return responder;
    }
    if (connection.status().code() != StatusCode::kTimeout) return connection.status();
    lost = responder->ended_within(0);
  }
  if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
  const std::string reason = lost ? responder->reason_of_death() : std::string();
  return Status(StatusCode::kTimeout,
                reason.empty() ? "the responder's process did not connect within 20 s; is the "
                                 "machine overloaded?"
                               : reason);
}

ResponderProcess::~ResponderProcess() {
  control_.reset();
  if (!ended_within(kFarewellNs)) {
    kill(process_, SIGKILL);
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

bool ResponderProcess::ended_within(uint64_t timeout_ns) {
  const uint64_t start_ns = now_ns();
  while (!ended_) {
    const pid_t found = waitpid(process_, &wait_status_, WNOHANG);
    ended_ = found == process_ || (found < 0 && errno == ECHILD);
    if (ended_ || now_ns() - start_ns >= timeout_ns) break;
    sleep_ns(kDeathLookNs);
  }
  return ended_;
}

std::string ResponderProcess::reason_of_death() {
  constexpr uint64_t kMomentNs = 500'000'000;
  return ended_within(kMomentNs) ? describe_end(wait_status_) : std::string();
}

int responder_process_main() {
  const auto fail = [](const Status& status) {
    fmt::print(stderr, "verbena: error: responder: {}\n", status.message());
    return 1;
  };
  ignore_interrupts();
  prctl(PR_SET_NAME, "verbena-respond");
  const nlohmann::json orders = nlohmann::json::parse(receive_orders(), nullptr, false);
  if (!orders.is_object() || !orders.contains("secret")) {
    fmt::print(stderr,
               "verbena: error: {} is started by 'verbena bench' only; on two hosts use "
               "'verbena bench one-to-one --listen'\n",
               kResponderCommand);
    return 2;
  }
  const Result<JobSecret> secret = JobSecret::from_string(orders.value("secret", std::string()));
  if (!secret.ok()) return fail(secret.status());
  Result<ControlConnection> control = ControlConnection::connect(
      kLoopback, orders.value("port", uint16_t{0}), *secret, kStartTimeoutNs);
  if (!control.ok()) return fail(control.status());

  const int cpu = orders.value("cpu", -1);
  if (cpu >= 0) static_cast<void>(pin_this_thread(cpu));  // the requester says what it asked for
  // The requester prints what goes wrong here: one line, not two.
  const auto refuse = [&](const Status& status) {
    static_cast<void>(send_failure(*control, status));
    return 1;
  };
  const Result<Device> device = Device::open(orders.value("device", std::string()));
  if (!device.ok()) return refuse(device.status());
  const Result<ProtectionDomain> domain = ProtectionDomain::create(*device);
  if (!domain.ok()) return refuse(domain.status());
  const Status ready = send_message(*control, {.kind = MessageKind::kReady});
  const Status status = ready.ok() ? serve_requester(*device, *domain, *control) : ready;
  return status.ok() ? 0 : fail(status);
}

}  // namespace verbena::bench
