// What callgrind_counter.h makes callgrind write: one file per poll.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "src/bench/load/callgrind_counter.h"

namespace verbena::bench {

// Begins the reason that a file names, before the side and the number of messages.
inline constexpr std::string_view kDumpLabel = "verbena-poll";
inline constexpr std::string_view kDumpSides[] = {"requester", "responder", "dispatcher"};

struct CallgrindDump {
  Side side = Side::kRequester;
  uint32_t messages = 0;  // that the poll found; 0: what counting itself costs
  // Without what they call; by full names.
  std::map<std::string, uint64_t> instructions_by_function{};

  uint64_t instructions() const;
};

// Nothing if the text is of no poll, such as what callgrind writes when a process ends. Pure.
std::optional<CallgrindDump> parse_callgrind_dump(std::string_view text);

}  // namespace verbena::bench
