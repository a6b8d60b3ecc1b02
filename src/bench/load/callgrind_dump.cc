#include "src/bench/load/callgrind_dump.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>

namespace verbena::bench {

namespace {

// The first of what is separated by `separator`, which goes too.
std::string_view take_part(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

bool take_number(std::string_view text, auto& number) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

// "desc: Trigger: Client Request: verbena-poll responder 3"
bool take_trigger(std::string_view line, CallgrindDump& dump) {
  const size_t label = line.find(kDumpLabel);
  if (label == std::string_view::npos) return false;
  line.remove_prefix(std::min(label + kDumpLabel.size() + 1, line.size()));
  const std::string_view side = take_part(line, ' ');
  const auto found = std::find(std::begin(kDumpSides), std::end(kDumpSides), side);
  if (found == std::end(kDumpSides)) return false;
  dump.side = static_cast<Side>(found - std::begin(kDumpSides));
  return take_number(line, dump.messages);
}

}  // namespace

uint64_t CallgrindDump::instructions() const {
  uint64_t sum = 0;
  for (const auto& [function, count] : instructions_by_function) sum += count;
  return sum;
}

// Names are not compressed (--compress-strings=no), and instructions are the only event.
std::optional<CallgrindDump> parse_callgrind_dump(std::string_view text) {
  CallgrindDump dump;
  bool of_poll = false;
  bool of_call = false;  // the next cost is of what a function calls
  std::string function;
  while (!text.empty()) {
    std::string_view line = take_part(text, '\n');
    if (line.starts_with("desc: Trigger:")) {
      of_poll = take_trigger(line, dump);
    } else if (line.starts_with("fn=")) {
      function = line.substr(3);
    } else if (line.starts_with("calls=")) {
      of_call = true;
    } else if (!line.empty() && std::string_view("0123456789+-*").find(line[0]) != line.npos) {
      take_part(line, ' ');  // where in the source
      uint64_t count = 0;
      if (!of_call && take_number(line, count)) dump.instructions_by_function[function] += count;
      of_call = false;
    }
  }
  if (!of_poll) return std::nullopt;
  return dump;
}

}  // namespace verbena::bench
