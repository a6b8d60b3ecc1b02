// What the tool prints. Neither a full disk, a closed descriptor nor a reader that left ends a
// program in the middle of its work: standard error loses the text, and of standard output the
// first failure is kept for the end.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace verbena {

// First in main(). Standard descriptors that the caller closed are taken, so that no socket and no
// file gets their numbers and then what is printed; writing to them still fails. A write into a
// closed pipe is an error, not the end; programs that this one starts get both as they were.
void prepare_standard_descriptors();

void write_output(std::string_view text);
void write_error_output(std::string_view text);

template <typename... Args>
void print_output(fmt::format_string<Args...> format, Args&&... args) {
  write_output(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void print_error_output(fmt::format_string<Args...> format, Args&&... args) {
  write_error_output(fmt::format(format, std::forward<Args>(args)...));
}

// Writes what is buffered. The errno of the first write to standard output that failed, 0 if none
// did.
int flush_output();

}  // namespace verbena
