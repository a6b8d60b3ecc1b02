// Opens the connection manager's device file in a program that forks and that closes descriptors
// unseen: it has to stay a channel for those, and only those, whose it is.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

#include "tests/support/process_checks.h"

namespace {

using verbena::test::failures;

int open_channel() { return open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC); }

bool is_channel(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISCHR(status.st_mode);
}

template <typename Body>
bool command(int fd, uint32_t number, const Body& body, uint16_t out_bytes) {
  struct {
    rdma_ucm_cmd_hdr header;
    Body body;
  } __attribute__((packed)) whole{{number, sizeof(Body), out_bytes}, body};
  return write(fd, &whole, sizeof(whole)) == static_cast<ssize_t>(sizeof(whole));
}

// An identifier, an address and the event of it.
bool works(int fd) {
  rdma_ucm_create_id_resp response{};
  rdma_ucm_create_id create{};
  create.uid = 1;
  create.ps = RDMA_PS_TCP;
  create.response = reinterpret_cast<uint64_t>(&response);
  if (!command(fd, RDMA_USER_CM_CMD_CREATE_ID, create, sizeof(response))) return false;
  rdma_ucm_resolve_ip resolve{};
  resolve.id = response.id;
  auto* target = reinterpret_cast<sockaddr_in*>(&resolve.dst_addr);
  target->sin_family = AF_INET;
  target->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!command(fd, RDMA_USER_CM_CMD_RESOLVE_IP, resolve, 0)) return false;
  pollfd end{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&end, 1, 0) == 1;
}

void check_child_that_shares_memory() {
  const int fd = open_channel();
  CHECK(is_channel(fd));
  const pid_t child = vfork();
  if (child == 0) {
    close(fd);
    _exit(0);
  }
  CHECK(child > 0 && waitpid(child, nullptr, 0) == child);
  CHECK(is_channel(fd));
  CHECK(works(fd));
  CHECK(close(fd) == 0);
}

void check_child_of_its_own() {
  const int fd = open_channel();
  CHECK(is_channel(fd));
  const pid_t child = fork();
  if (child == 0) {
    CHECK(!is_channel(fd));
    const int own = open_channel();
    CHECK(is_channel(own) && !is_channel(fd));
    CHECK(works(own));
    CHECK(close(fd) == 0 && close(own) == 0);
    std::fflush(stdout);
    _exit(failures);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  CHECK(works(fd));
  CHECK(close(fd) == 0);
}

// Channels that are closed by the kernel alone, and whose numbers the pipes of others get.
void check_unseen_close() {
  constexpr int kChannels = 8;
  int channels[kChannels];
  for (int round = 0; round < 3; ++round) {
    for (int& fd : channels) fd = open_channel();
    for (const int fd : channels) syscall(SYS_close, fd);
  }
  for (int& fd : channels) {
    fd = open_channel();
    CHECK(is_channel(fd));
    CHECK(works(fd));
  }
  for (const int fd : channels) CHECK(close(fd) == 0);
}

}  // namespace

int main() {
  constexpr unsigned kPatienceS = 300;
  alarm(kPatienceS);  // a lock that is taken twice ends it
  check_child_that_shares_memory();
  check_child_of_its_own();
  check_unseen_close();
  return failures == 0 ? 0 : 1;
}
