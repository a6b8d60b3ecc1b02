#include "src/bench/baselines/contenders/key_value_server.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/base/spawn.h"

namespace verbena::bench::baselines {

namespace {

constexpr uint64_t kStartTimeoutNs = 30'000'000'000;

bool listens(const std::string& path) {
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return probe.valid() &&
         connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

Status serve(Side& side, const std::vector<std::string>& command) {
  VERBENA_ASSIGN_OR_RETURN(const pid_t server,
                           spawn(command, {.files = {{STDOUT_FILENO, "/dev/null"}}}));
  const Status met = side.meet();
  kill(server, SIGTERM);
  const Status ended = wait_for_exit(server).status();
  return met.ok() ? ended : met;
}

Status use_when_ready(Side& side, const std::string& path,
                      const std::function<Status(Side&, const std::string& path)>& use) {
  const uint64_t begun_ns = now_ns();
  while (!listens(path)) {
    if (now_ns() - begun_ns > kStartTimeoutNs) {
      return {StatusCode::kTimeout, fmt::format("no server has begun to listen at {}", path)};
    }
    sleep_ns(1'000'000);
  }
  VERBENA_RETURN_IF_ERROR(use(side, path));
  return side.meet();
}

}  // namespace

Result<double> with_key_value_server(
    const CpuPair& cpus,
    const std::function<std::vector<std::string>(const std::string& path)>& command,
    const std::function<Status(Side&, const std::string& path)>& use) {
  std::string folder = "/tmp/verbena-peer-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return Status(StatusCode::kUnavailable, "cannot make a folder in /tmp for a server's socket");
  }
  const std::string path = folder + "/socket";
  Result<double> result = run_pair(cpus, [&](Side& side) {
    return side.number() == 0 ? use_when_ready(side, path, use) : serve(side, command(path));
  });
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  return result;
}

}  // namespace verbena::bench::baselines
