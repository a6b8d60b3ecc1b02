#include "src/cli/check_option.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "src/cli/run_command.h"
#include "src/device/check_options.h"

namespace verbena::cli {

namespace {

Status wrong_check(std::string_view why) {
  return {StatusCode::kInvalidArgument, fmt::format("is wrong: {}", why)};
}

// Of a value that was checked.
std::string log_path_of(std::string_view value) {
  CheckOptions options;
  parse_check_options(value, options);
  return options.log_path;
}

}  // namespace

Status check_check(std::string_view value) {
  CheckOptions options;
  const std::string wrong = parse_check_options(value, options);
  return wrong.empty() ? Status() : wrong_check(wrong);
}

Status prepare_check(std::string_view value) {
  const std::string path = log_path_of(value);
  if (path.empty()) return {};
  const int fd = open_check_log(path.c_str());
  if (fd < 0) {
    return wrong_check(
        fmt::format("cannot write log={}: {}; name a file, which may be new but is no link, in a "
                    "folder that is there and can be written",
                    path, std::strerror(errno)));
  }
  close(fd);
  std::error_code error;
  const std::string whole = std::filesystem::absolute(path, error).string();
  if (whole.find(',') != std::string::npos) {
    return wrong_check(
        fmt::format("log={} has a comma in its path; name a file in a folder without", whole));
  }
  return {};
}

std::string check_variable_of(std::string_view value) {
  std::string passed = value.empty() ? "on" : std::string(value);
  if (const std::string path = log_path_of(value); !path.empty()) {
    // The program may change its directory.
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::absolute(path, error);
    if (!error) passed.append(",log=").append(whole.string());
  }
  return passed;
}

std::string check_help() {
  std::string text =
      "--check[=OPTION,...] reports misuse of verbs that this device or hardware forgives by "
      "luck:\n"
      "  log=FILE            append the reports to FILE instead of standard error\n"
      "  exit-code=N         of a program that ends with 0 although something was reported (86);\n"
      "                      0 leaves it\n"
      "  buffers=off|local|all\n"
      "                      compare send buffers between post and completion: none; those that\n"
      "                      only this process writes (the default); those that peers may, too\n"
      "  suppress=KIND[:KIND...]\n"
      "                      leave kinds of reports out; may be given more than once\n"
      "  pedantic            also what programs may do on purpose (the kinds in brackets)\n"
      "Kinds:\n ";
  size_t width = 1;
  for (const CheckKindInfo& kind : kCheckKinds) {
    const std::string word = fmt::format(fmt::runtime(kind.pedantic ? " [{}]" : " {}"), kind.name);
    if (width + word.size() > 96) {
      text += "\n ";
      width = 1;
    }
    text += word;
    width += word.size();
  }
  return text;
}

}  // namespace verbena::cli
