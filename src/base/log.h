// The log: one line per event to stderr, "verbena: warning: ...".
//
// The environment variable VERBENA_LOG sets the level: off, error, warn (the default), info or
// debug. A disabled line costs one comparison; its arguments are not formatted. The data path never
// logs.
//
//   log_warning("the peer {} speaks version {}, this is version {}", peer, theirs, ours);
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace verbena {

enum class LogLevel : int { kOff = 0, kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };

// The level that VERBENA_LOG or set_log_level() chose.
LogLevel log_level();
void set_log_level(LogLevel level);
// Takes the level from VERBENA_LOG anew: after a change of the environment.
void read_log_level_again();
// The level of a name as VERBENA_LOG takes it; nothing if there is no such level.
std::optional<LogLevel> parse_log_level(std::string_view name);

inline bool log_enabled(LogLevel level) { return level <= log_level(); }

// Writes one line if `level` is enabled. Control characters are replaced, so that bytes from a
// stranger can neither start a line of their own nor move the terminal's cursor.
void log_line(LogLevel level, std::string_view message);

template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kError)) {
    log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kWarning)) {
    log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kInfo)) {
    log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kDebug)) {
    log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
}

// Lets at most `lines` lines per `period_ns` through, so that a stranger cannot flood the log. Not
// thread-safe: one per owner.
class LogRateLimit {
 public:
  LogRateLimit(uint32_t lines, uint64_t period_ns) : lines_(lines), period_ns_(period_ns) {}

  // Whether the line of this moment may be written. If so, `*suppressed` is the number of lines
  // that were refused since the last one that was allowed.
  bool allow(uint64_t now_ns, uint64_t* suppressed);

 private:
  uint32_t lines_;
  uint64_t period_ns_;
  uint64_t period_start_ns_ = 0;
  uint32_t lines_in_period_ = 0;
  uint64_t suppressed_ = 0;
};

}  // namespace verbena
