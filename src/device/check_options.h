// What `verbena run --check` looks for, and its options. The tool checks them before the program
// starts; the software RNIC finds them in VERBENA_CHECK. Inline, because both need it and neither
// links the other.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace verbena {

inline constexpr const char* kCheckVariable = "VERBENA_CHECK";

// Opens the log to append to; makes it, for the user alone. Negative, with errno, if it cannot be
// written or is no file: a link may be somebody else's, and a FIFO would wait for a reader.
inline int open_check_log(const char* path) {
  const int fd =
      open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return fd;
  struct stat status {};
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) return fd;
  close(fd);
  errno = EINVAL;
  return -1;
}

enum class CheckKind : uint8_t {
  kBufferChanged,
  kReceiveOverlap,
  kReceiveSameBuffer,
  kReceiveOverSend,
  kUnmappedInUse,
  kUnmappedRegistered,
  kDeregisteredInUse,
  kRemoteAccess,
  kLocalAccess,
  kReceiveAccess,
  kSendQueueStuck,
  kCqOverrun,
  kGrhRoom,
  kQueueKey,
  kInlineSize,
  kTooManySges,
  kWrongState,
  kAtomicForm,
  kReadDepth,
  kIgnoredError,
  kUnacknowledgedEvents,
  kLostWakeup,
  kArmThenSleep,
  kLeak,
  kDestroyOrder,
  kUseAfterDestroy,
  kAfterFork,
};

struct CheckKindInfo {
  const char* name;
  // Programs may do it on purpose and be right: reported with `pedantic` only.
  bool pedantic;
};

inline constexpr std::array<CheckKindInfo, 27> kCheckKinds = {{
    {"buffer-changed", false},
    {"receive-overlap", false},
    {"receive-same-buffer", true},
    {"receive-over-send", true},
    {"unmapped-in-use", false},
    {"unmapped-registered", true},
    {"deregistered-in-use", false},
    {"remote-access", false},
    {"local-access", false},
    {"receive-access", false},
    {"send-queue-stuck", false},
    {"cq-overrun", false},
    {"grh-room", false},
    {"queue-key", false},
    {"inline-size", false},
    {"too-many-sges", false},
    {"wrong-state", false},
    {"atomic-form", false},
    {"read-depth", false},
    {"ignored-error", false},
    {"unacknowledged-events", false},
    {"lost-wakeup", false},
    {"arm-then-sleep", true},
    {"leak", false},
    {"destroy-order", false},
    {"use-after-destroy", false},
    {"after-fork", false},
}};
static_assert(static_cast<size_t>(CheckKind::kAfterFork) + 1 == kCheckKinds.size());

inline const char* check_kind_name(CheckKind kind) {
  return kCheckKinds[static_cast<size_t>(kind)].name;
}

// Which send buffers are compared: none, those that only this process writes, all.
enum class CheckedBuffers : uint8_t { kOff, kLocal, kAll };

struct CheckOptions {
  CheckedBuffers buffers = CheckedBuffers::kLocal;
  int exit_code = 86;
  std::string log_path;  // empty: standard error
  bool pedantic = false;
  std::array<bool, kCheckKinds.size()> suppressed{};

  bool wants(CheckKind kind) const {
    const auto index = static_cast<size_t>(kind);
    return !suppressed[index] && (pedantic || !kCheckKinds[index].pedantic);
  }
};

// Reads "key=value,..." into `options`. What is wrong with it, in one line; empty if nothing is.
inline std::string parse_check_options(std::string_view text, CheckOptions& options) {
  const auto suppress = [&options](std::string_view names) -> std::string {
    while (!names.empty()) {
      const std::string_view name = names.substr(0, names.find(':'));
      names.remove_prefix(name.size() < names.size() ? name.size() + 1 : name.size());
      size_t index = 0;
      while (index < kCheckKinds.size() && kCheckKinds[index].name != name) ++index;
      if (index == kCheckKinds.size()) {
        std::string known;
        for (const CheckKindInfo& kind : kCheckKinds) known.append(" ").append(kind.name);
        return "suppress=" + std::string(name) + ": there is no such kind; there are" + known;
      }
      options.suppressed[index] = true;
    }
    return "";
  };
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(item.size() < text.size() ? item.size() + 1 : item.size());
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals != item.npos ? item.substr(equals + 1) : "";
    if (item == "pedantic") {
      options.pedantic = true;
    } else if (item == "on" || item.empty()) {
      continue;
    } else if (key == "buffers" && (value == "off" || value == "local" || value == "all")) {
      options.buffers = value == "off"   ? CheckedBuffers::kOff
                        : value == "all" ? CheckedBuffers::kAll
                                         : CheckedBuffers::kLocal;
    } else if (key == "buffers") {
      return "buffers=" + std::string(value) + ": possible are off, local and all";
    } else if (key == "exit-code") {
      int code = -1;
      const char* const end = value.data() + value.size();
      const auto read = std::from_chars(value.data(), end, code);
      if (read.ec != std::errc() || read.ptr != end || code < 0 || code > 255) {
        return "exit-code=" + std::string(value) + ": exit codes are 0 to 255";
      }
      options.exit_code = code;
    } else if (key == "log" && !value.empty()) {
      options.log_path = value;
    } else if (key == "suppress" && !value.empty()) {
      if (std::string wrong = suppress(value); !wrong.empty()) return wrong;
    } else {
      return "'" + std::string(item) +
             "' is no option of it; there are buffers=off|local|all, log=FILE, exit-code=N, "
             "suppress=KIND[:KIND...] and pedantic";
    }
  }
  return "";
}

}  // namespace verbena
