#include "src/bench/baselines/process_pair.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "src/base/runtime.h"

namespace verbena::bench::baselines {

namespace {

constexpr uint64_t kMeetTimeoutNs = 60'000'000'000;

struct UnmapBoard {
  void operator()(Board* board) const { munmap(board, sizeof(Board)); }
};

[[noreturn]] void be_side(Board& board, int number, int cpu,
                          const std::function<Status(Side&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin_this_thread(cpu);
  Side side(board, number);
  const Status status = body(side);
  if (!status.ok()) {
    std::strncpy(board.error[number], status.message().c_str(), sizeof(board.error[number]) - 1);
    board.failed[number].value.store(1, std::memory_order_release);
  }
  _exit(status.ok() ? 0 : 1);
}

}  // namespace

Status Side::meet() {
  Board::Line& mine = board_.step[number_];
  const Board::Line& theirs = board_.step[1 - number_];
  mine.value.store(++steps_, std::memory_order_release);
  const uint64_t start_ns = now_ns();
  Waiter waiter;
  while (theirs.value.load(std::memory_order_acquire) < steps_) {
    waiter.idle();
    if (board_.failed[1 - number_].value.load(std::memory_order_acquire) != 0 ||
        now_ns() - start_ns > kMeetTimeoutNs) {
      return Status(StatusCode::kUnavailable, "the other process gave up");
    }
  }
  return Status::ok_status();
}

Result<double> run_pair(const CpuPair& cpus, const std::function<Status(Side&)>& body) {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot map {} bytes of shared memory: {}", sizeof(Board),
                              std::strerror(errno)));
  }
  const std::unique_ptr<Board, UnmapBoard> board(new (memory) Board);
  pid_t processes[2];
  for (int number : {0, 1}) {
    processes[number] = fork();
    if (processes[number] == 0) be_side(*board, number, cpus.cpu[number], body);
  }
  bool ended_well = true;
  for (int number : {0, 1}) {
    int wait_status = 0;
    while (processes[number] > 0 && waitpid(processes[number], &wait_status, 0) < 0 &&
           errno == EINTR) {
    }
    if (processes[number] < 0 || wait_status != 0) {
      ended_well = false;
      board->failed[number].value.store(1, std::memory_order_release);
    }
  }
  if (ended_well) return board->result[0];
  const char* error = board->error[0][0] != '\0' ? board->error[0] : board->error[1];
  return Status(StatusCode::kUnavailable,
                *error != '\0' ? error : "a measuring process could not start or was killed");
}

Result<double> run_connected_pair(const CpuPair& cpus,
                                  const std::function<Status(const ConnectedSide&)>& body) {
  constexpr int64_t kTimeoutNs = 20'000'000'000;
  const JobSecret secret = JobSecret::random();
  VERBENA_ASSIGN_OR_RETURN(ControlListener listener,
                           ControlListener::listen("127.0.0.1", 0, secret));
  return run_pair(cpus, [&](Side& side) -> Status {
    VERBENA_ASSIGN_OR_RETURN(
        ControlConnection control,
        side.number() == 0
            ? ControlConnection::connect("127.0.0.1", listener.port(), secret, kTimeoutNs)
            : listener.accept(kTimeoutNs));
    VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open("soft0"));
    VERBENA_ASSIGN_OR_RETURN(const ProtectionDomain domain, ProtectionDomain::create(device));
    return body({side, device, domain, control});
  });
}

}  // namespace verbena::bench::baselines
