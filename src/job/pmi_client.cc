#include "src/job/pmi_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "src/base/known_file.h"
#include "src/control/tcp_socket.h"

namespace verbena::job {

namespace {

constexpr size_t kMaxLineBytes = 65536;

Status failed(std::string_view what) {
  return Status(StatusCode::kUnavailable,
                fmt::format("the launcher's PMI server {}; give rank 0's address with "
                            "--coordinator or VERBENA_COORDINATOR instead",
                            what));
}

// Of finish_at_exit(); never destroyed.
struct Leaving {
  std::mutex mutex;
  pid_t process = 0;
  int descriptor = -1;
  KnownFile file;
};
Leaving& this_process() {
  static auto* const leaving = new Leaving;
  return *leaving;
}

}  // namespace

std::string pmi_value(std::string_view line, std::string_view key) {
  while (!line.empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, end);
    if (word.size() > key.size() && word.substr(0, key.size()) == key && word[key.size()] == '=') {
      return std::string(word.substr(key.size() + 1));
    }
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return {};
}

Result<PmiClient> PmiClient::start(int descriptor, int64_t timeout_ns) {
  PmiClient client(descriptor, timeout_ns);
  VERBENA_ASSIGN_OR_RETURN(
      const std::string hello,
      client.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init"));
  if (pmi_value(hello, "rc") != "0" || pmi_value(hello, "pmi_version") != "1") {
    return failed("does not speak version 1");
  }
  VERBENA_ASSIGN_OR_RETURN(const std::string name, client.ask("cmd=get_my_kvsname", "my_kvsname"));
  client.space_ = pmi_value(name, "kvsname");
  if (client.space_.empty()) return failed("has no key-value space");
  return client;
}

Status PmiClient::put(const std::string& key, const std::string& value) {
  VERBENA_ASSIGN_OR_RETURN(
      const std::string answer,
      ask(fmt::format("cmd=put kvsname={} key={} value={}", space_, key, value), "put_result"));
  return pmi_value(answer, "rc") == "0" ? Status::ok_status() : failed("refused a value");
}

Status PmiClient::barrier() { return ask("cmd=barrier_in", "barrier_out").status(); }

Result<std::string> PmiClient::get(const std::string& key) {
  VERBENA_ASSIGN_OR_RETURN(
      const std::string answer,
      ask(fmt::format("cmd=get kvsname={} key={}", space_, key), "get_result"));
  std::string value = pmi_value(answer, "value");
  if (pmi_value(answer, "rc") != "0" || value.empty()) return failed("returned no value");
  return value;
}

void PmiClient::finish_at_exit() const {
  Leaving& leaving = this_process();
  const std::lock_guard lock(leaving.mutex);
  leaving.process = getpid();
  leaving.descriptor = descriptor_;
  leaving.file = KnownFile(descriptor_);
}

// As the process's code is let go of, behind all handlers of atexit(): an MPI has one that says it.
__attribute__((destructor)) void finish_pmi() {
  constexpr int64_t kPatienceNs = 5'000'000'000;
  const Leaving& leaving = this_process();
  // Not by a forked child, and not where an MPI has said it and closed the descriptor.
  if (getpid() != leaving.process || !leaving.file.is_at(leaving.descriptor)) return;
  // Nobody is there any more who could do anything about a failure.
  static_cast<void>(PmiClient(leaving.descriptor, kPatienceNs).ask("cmd=finalize", "finalize_ack"));
}

Result<std::string> PmiClient::ask(const std::string& line, std::string_view answer) {
  const std::string text = line + "\n";
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::send(descriptor_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failed(fmt::format("is gone: {}", std::strerror(errno)));
    sent += static_cast<size_t>(count);
  }
  VERBENA_ASSIGN_OR_RETURN(std::string found, read_line());
  if (pmi_value(found, "cmd") != answer) {
    return failed(fmt::format("answered '{}' instead of {}", found, answer));
  }
  return found;
}

Result<std::string> PmiClient::read_line() {
  for (;;) {
    const size_t end = unread_.find('\n');
    if (end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (unread_.size() > kMaxLineBytes) return failed("sent a line that is too long");
    pollfd waiting{descriptor_, POLLIN, 0};
    if (poll_until({&waiting, 1}, deadline_) == 0) return failed("did not answer");
    char bytes[1024];
    const ssize_t count = ::recv(descriptor_, bytes, sizeof(bytes), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failed("is gone");
    unread_.append(bytes, static_cast<size_t>(count));
  }
}

}  // namespace verbena::job
