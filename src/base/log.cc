#include "src/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

namespace verbena {

namespace {

constexpr int kLevelNotRead = -1;
std::atomic<int> current_level{kLevelNotRead};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kOff:
      return spdlog::level::off;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kDebug:
      return spdlog::level::debug;
  }
  return spdlog::level::err;
}

// Not in spdlog's registry: the program around us may use spdlog itself, with its own settings.
// Never destroyed, since threads may log while the process ends.
spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* made = new spdlog::logger("verbena", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("verbena: %l: %v");
    made->set_level(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

LogLevel read_level_from_environment() {
  const char* name = std::getenv("VERBENA_LOG");
  if (name == nullptr || *name == '\0') return LogLevel::kWarning;
  std::optional<LogLevel> level = parse_log_level(name);
  if (!level.has_value()) {
    logger().warn("VERBENA_LOG is '{}'; it can be off, error, warn, info or debug; using warn",
                  std::string_view(name).substr(0, 32));
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
  logger().log(spdlog_level(level), spdlog::string_view_t(line));
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
