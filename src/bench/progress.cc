#include "src/bench/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "src/base/output.h"
#include "src/base/runtime.h"

namespace verbena::bench {

namespace {

size_t terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

Progress::Progress(uint64_t steps)
    : steps_(steps),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_ns_(now_ns()),
      last_ns_(start_ns_) {}

void Progress::step(const std::string& what) {
  ++begun_;
  const uint64_t now = now_ns();
  if (now - last_ns_ < (terminal_ ? kTerminalPeriodNs : kOtherPeriodNs)) return;
  last_ns_ = now;
  std::string line = fmt::format("[{:>{}}/{}]{} {}", begun_, fmt::formatted_size("{}", steps_),
                                 steps_, remaining_text(now - start_ns_), what);
  if (terminal_) {
    line.resize(std::min(line.size(), terminal_columns() - 1));
    print_error_output("\r{}\x1b[K", line);
    shown_ = true;
  } else {
    print_error_output("{}\n", line);
  }
}

void Progress::clear() {
  if (!shown_) return;
  print_error_output("\r\x1b[K");
  shown_ = false;
}

std::string Progress::remaining_text(uint64_t elapsed_ns) const {
  const uint64_t done = begun_ - 1;
  if (done == 0) return "";
  const uint64_t seconds = elapsed_ns / done * (steps_ - done) / 1'000'000'000 + 1;
  return fmt::format(" {}:{:02} left", seconds / 60, seconds % 60);
}

}  // namespace verbena::bench
