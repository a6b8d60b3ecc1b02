#include "src/device/soft/cm/channel_calls.h"

#include <rdma/rdma_user_cm.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "src/base/log.h"
#include "src/base/no_cancellation.h"
#include "src/device/soft/cm/connection_manager.h"
#include "src/device/soft/cm/user_memory.h"

namespace verbena::soft::cm {
namespace {

constexpr uint32_t kCommands = kWriteCmEvent + 1;
constexpr size_t kMaxCommandBytes = 1024;

struct Command {
  rdma_ucm_cmd_hdr header{};
  std::array<std::byte, kMaxCommandBytes> body{};
  size_t body_bytes = 0;
};

int copy_command(const void* from, size_t size_bytes, Command& command) {
  const auto address = reinterpret_cast<uint64_t>(from);
  if (size_bytes < sizeof(command.header)) return EINVAL;
  if (const int error = copy_from_program(address, &command.header, sizeof(command.header));
      error != 0) {
    return error;
  }
  if (command.header.cmd >= kCommands || command.header.in > size_bytes - sizeof(command.header)) {
    return EINVAL;
  }
  command.body_bytes = std::min<size_t>(command.header.in, command.body.size());
  return copy_from_program(address + sizeof(command.header), command.body.data(),
                           command.body_bytes);
}

int execute(int fd, const Command& command) {
  const NoCancellation guard;
  ConnectionManager* manager = ConnectionManager::existing();
  if (manager == nullptr) return EBADF;
  const std::span body(command.body.data(), command.body_bytes);
  if (command.header.cmd == RDMA_USER_CM_CMD_GET_EVENT) {
    return manager->take_event(fd, body, command.header.out);
  }
  return manager->execute(fd, command.header.cmd, body, command.header.out);
}

}  // namespace

int open_channel(int flags) {
  const NoCancellation guard;
  Result<ConnectionManager*> manager = ConnectionManager::get();
  if (manager.ok()) return (*manager)->open_channel(flags);
  log_error("{}", manager.status().message());
  errno = manager.status().code() == StatusCode::kPermissionDenied ? EACCES : ENODEV;
  return -1;
}

ssize_t write_command(int fd, const void* from, size_t size_bytes) {
  Command command;
  int error = copy_command(from, size_bytes, command);
  if (error == 0 && command.header.cmd != RDMA_USER_CM_CMD_GET_EVENT) {
    error = execute(fd, command);
  } else if (error == 0) {
    // Each event has a byte in the pipe. The kernel waits for one as for a read of the program, by
    // what the program set for its descriptor: at once or not, cancelled, interrupted by a signal
    // and begun again. Nothing in this function and those that call it needs to be undone then.
    do {
      char byte;
      if (read(fd, &byte, 1) != 1) return -1;
      error = execute(fd, command);
    } while (error == EAGAIN);
  }
  if (error == 0) return static_cast<ssize_t>(size_bytes);
  errno = error;
  return -1;
}

bool is_channel(int fd) {
  ConnectionManager* manager = ConnectionManager::existing();
  return manager != nullptr && manager->is_channel(fd);
}

void channel_closed() {
  const NoCancellation guard;
  if (ConnectionManager* manager = ConnectionManager::existing()) manager->drop_closed_channels();
}

const ConnectionChannels& channel_calls() {
  static const ConnectionChannels calls = {.open = open_channel,
                                           .write = write_command,
                                           .is_channel = is_channel,
                                           .closed = channel_closed};
  return calls;
}

}  // namespace verbena::soft::cm
