#include "src/base/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>

namespace verbena {

namespace {

std::atomic<int> first_output_error{0};

void note_output_error(int error) {
  int none = 0;
  first_output_error.compare_exchange_strong(none, error);
}

}  // namespace

void prepare_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one. Opened for the other direction, so that its use still
    // fails; closed again in programs that are started.
    const int direction = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    static_cast<void>(open("/dev/null", direction | O_CLOEXEC));
  }
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    // A handler, since programs that are started would inherit SIG_IGN.
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

void write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) note_output_error(errno);
}

void write_error_output(std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
  std::fflush(stderr);
}

int flush_output() {
  if (std::fflush(stdout) != 0) note_output_error(errno);
  // What others wrote to the stream; nobody knows its reason any more.
  if (std::ferror(stdout) != 0) note_output_error(EIO);
  return first_output_error.load();
}

}  // namespace verbena
