#include "tests/soft/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "tests/test_seed.h"

namespace verbena::soft_test {
namespace {

constexpr int kPatienceMs = 600'000;
constexpr const char* kRoleOption = "--child=";
// Where a child finds its end of the link, and the process that it belongs to.
constexpr int kLinkDescriptor = 3;

std::map<std::string, ChildMain>& roles() {
  static std::map<std::string, ChildMain> all;
  return all;
}

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "process %d: the other side of the test's link %s (%s)\n", getpid(), what,
               std::strerror(errno));
  std::fflush(nullptr);
  _exit(99);
}

std::vector<std::string> arguments_of(const std::string& role,
                                      const std::vector<std::string>& further) {
  std::vector<std::string> all = {"/proc/self/exe", kRoleOption + role};
  all.insert(all.end(), further.begin(), further.end());
  return all;
}

std::string runtime_directory;

void remove_runtime_directory() {
  std::error_code ignored;
  std::filesystem::remove_all(runtime_directory, ignored);
}

void make_runtime_directory() {
  char path[] = "/tmp/verbena-test-XXXXXX";
  if (mkdtemp(path) == nullptr) {
    std::perror("mkdtemp");
    std::exit(1);
  }
  runtime_directory = path;
  setenv("VERBENA_RUNTIME_DIR", path, 1);
  // Registered before the device is opened, so it runs after the device has left the registry.
  std::atexit(remove_runtime_directory);
}

}  // namespace

// ---- link ----

Link::~Link() { close(socket_); }

void Link::put_bytes(const void* bytes, size_t size_bytes) {
  const auto* at = static_cast<const char*>(bytes);
  while (size_bytes > 0) {
    const ssize_t sent = send(socket_, at, size_bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) give_up("does not listen");
    at += sent;
    size_bytes -= static_cast<size_t>(sent);
  }
}

void Link::get_bytes(void* bytes, size_t size_bytes) {
  auto* at = static_cast<char*>(bytes);
  while (size_bytes > 0) {
    pollfd readable{.fd = socket_, .events = POLLIN, .revents = 0};
    const int ready = poll(&readable, 1, kPatienceMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) give_up("is silent");
    const ssize_t got = recv(socket_, at, size_bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) give_up("is gone");
    at += got;
    size_bytes -= static_cast<size_t>(got);
  }
}

bool Link::readable() const {
  pollfd look{.fd = socket_, .events = POLLIN, .revents = 0};
  return poll(&look, 1, 0) > 0;
}

// ---- child ----

Child::Child(const std::string& role, const std::vector<std::string>& arguments)
    : Child(role, arguments, make_ends()) {}

Child::Child(const std::string& role, const std::vector<std::string>& arguments, Ends ends)
    : ChildProcess(arguments_of(role, arguments),
                   {.file = "/proc/self/exe",
                    .descriptors = {{ends.second->descriptor(), kLinkDescriptor}}}),
      link_(std::move(ends.first)) {}

Child::Ends Child::make_ends() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    std::perror("socketpair");
    std::abort();
  }
  return {std::make_unique<Link>(sockets[0]), std::make_unique<Link>(sockets[1])};
}

void Child::kill() {
  signal(SIGKILL);
  wait();
}

ChildRole::ChildRole(const char* name, ChildMain body) { roles()[name] = body; }

int run_main(int argc, char** argv) {
  const size_t option_chars = std::strlen(kRoleOption);
  if (argc >= 2 && std::strncmp(argv[1], kRoleOption, option_chars) == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fcntl(kLinkDescriptor, F_SETFD, FD_CLOEXEC);
    const auto role = roles().find(argv[1] + option_chars);
    if (role == roles().end()) return 98;
    Link link(kLinkDescriptor);
    const int code = role->second(link, {argv + 2, argv + argc});
    return testing::Test::HasFailure() ? 97 : code;
  }
  fix_seed_of_tests();
  testing::InitGoogleTest(&argc, argv);
  if (!testing::GTEST_FLAG(list_tests)) {
    make_runtime_directory();
    std::printf("VERBENA_SEED=%llu\n", static_cast<unsigned long long>(run_seed()));
  }
  return RUN_ALL_TESTS();
}

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 4096; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) ++count;
  }
  return count;
}

size_t iterations(size_t usual) {
  const char* soak = std::getenv("VERBENA_SOAK");
  if (soak != nullptr && *soak == '1') return usual * 20;
#if VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER
  return std::max<size_t>(usual / 4, 1);
#else
  return usual;
#endif
}

}  // namespace verbena::soft_test
