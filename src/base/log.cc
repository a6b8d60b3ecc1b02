#include "src/base/log.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace verbena {

namespace {

constexpr int kLevelNotRead = -1;
std::atomic<int> current_level{kLevelNotRead};

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kOff:
      break;
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
  }
  return "off";
}

// Takes no lock but the stream's: that one is free in a child of fork(), whatever the parent's
// threads were doing.
void write_line(LogLevel level, std::string_view message) {
  const std::string line = fmt::format("verbena: {}: {}\n", name_of(level), message);
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
  std::fflush(stderr);
}

LogLevel read_level_from_environment() {
  const char* name = std::getenv("VERBENA_LOG");
  if (name == nullptr || *name == '\0') return LogLevel::kWarning;
  std::optional<LogLevel> level = parse_log_level(name);
  if (!level.has_value()) {
    write_line(LogLevel::kWarning,
               fmt::format("VERBENA_LOG is '{}'; it can be off, error, warn, info or debug; using "
                           "warn",
                           std::string_view(name).substr(0, 32)));
    return LogLevel::kWarning;
  }
  return *level;
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view name) {
  if (name == "off") return LogLevel::kOff;
  if (name == "error") return LogLevel::kError;
  if (name == "warn" || name == "warning") return LogLevel::kWarning;
  if (name == "info") return LogLevel::kInfo;
  if (name == "debug") return LogLevel::kDebug;
  return std::nullopt;
}

LogLevel log_level() {
  int level = current_level.load(std::memory_order_relaxed);
  if (level == kLevelNotRead) [[unlikely]] {
    int read = static_cast<int>(read_level_from_environment());
    // set_log_level() of another thread wins over the environment.
    if (current_level.compare_exchange_strong(level, read)) level = read;
  }
  return static_cast<LogLevel>(level);
}

void set_log_level(LogLevel level) { current_level.store(static_cast<int>(level)); }

void read_log_level_again() { current_level.store(kLevelNotRead); }

void log_line(LogLevel level, std::string_view message) {
  if (level == LogLevel::kOff || !log_enabled(level)) return;
  std::string line(message);
  std::replace_if(
      line.begin(), line.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  write_line(level, line);
}

bool LogRateLimit::allow(uint64_t now_ns, uint64_t* suppressed) {
  if (now_ns - period_start_ns_ >= period_ns_) {
    period_start_ns_ = now_ns;
    lines_in_period_ = 0;
  }
  if (lines_in_period_ >= lines_) {
    ++suppressed_;
    return false;
  }
  ++lines_in_period_;
  *suppressed = suppressed_;
  suppressed_ = 0;
  return true;
}

}  // namespace verbena
