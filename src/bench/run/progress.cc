#include "src/bench/run/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

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

Progress::Progress(uint64_t steps, double weight)
    : steps_(steps),
      weight_(weight > 0 ? weight : static_cast<double>(steps)),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_ns_(now_ns()),
      last_ns_(start_ns_) {}

void Progress::step(const std::string& what, double weight) {
  ++begun_;
  begun_weight_ += weight;
  last_weight_ = weight;
  const uint64_t now = now_ns();
  if (now - last_ns_ < (terminal_ ? kTerminalPeriodNs : kOtherPeriodNs)) return;
  last_ns_ = now;
  std::string line =
      fmt::format("[{:>{}}/{}]{} {}", begun_, fmt::formatted_size("{}", steps_), steps_,
                  remaining_text(begun_weight_ - last_weight_, weight_, now - start_ns_), what);
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

std::string remaining_text(double done_weight, double weight, uint64_t elapsed_ns) {
  constexpr double kFirstShare = 0.05;
  if (done_weight <= 0 || done_weight < kFirstShare * weight) return "";
  const double left_ns = static_cast<double>(elapsed_ns) / done_weight * (weight - done_weight);
  const auto seconds = static_cast<uint64_t>(std::max(0.0, left_ns) / 1e9) + 1;
  return fmt::format(" {}:{:02} left", seconds / 60, seconds % 60);
}

}  // namespace verbena::bench
