#include "src/device/sim/profile_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

namespace verbena::sim {

namespace {

struct Provided {
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> texts;
};

Provided& provided() {
  static Provided all;
  return all;
}

const char* set_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> text_in(const std::filesystem::path& folder, std::string_view name) {
  const bool plain = !name.empty() && name.find('/') == std::string_view::npos;
  if (folder.empty() || !plain) return std::nullopt;
  std::ifstream file(folder / fmt::format("{}.toml", name));
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// `what`: of which kind the file is, for who asked for one that is not there.
Status not_found(const std::filesystem::path& folder, std::string_view name, std::string_view what,
                 const std::vector<std::string>& names) {
  const char* const remedy = set_variable("VERBENA_PROFILES") == nullptr
                                 ? "install verbena again"
                                 : "copy those of the installed profiles";
  return {StatusCode::kNotFound,
          fmt::format("there is no {} '{}' in {}; {}", what, name, folder.string(),
                      names.empty() ? fmt::format("there are none: {}", remedy)
                                    : fmt::format("there are {}", fmt::join(names, ", ")))};
}

Result<std::string> read_installed(const char* folder, std::string_view name,
                                   std::string_view what) {
  const std::filesystem::path path = profile_directory() / folder;
  if (std::optional<std::string> text = text_in(path, name)) return *std::move(text);
  return not_found(path, name, what, names_in(path));
}

}  // namespace

std::filesystem::path profile_directory() {
  if (const char* const chosen = set_variable("VERBENA_PROFILES")) return chosen;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "share/verbena/profiles";
}

std::filesystem::path own_profile_directory() {
  if (set_variable("VERBENA_PROFILES") != nullptr) return {};
  constexpr const char* kFolder = "verbena/profiles";
  if (const char* const data = set_variable("XDG_DATA_HOME")) {
    return std::filesystem::path(data) / kFolder;
  }
  const char* const home = set_variable("HOME");
  return home == nullptr ? std::filesystem::path()
                         : std::filesystem::path(home) / ".local/share" / kFolder;
}

Result<std::string> read_profile_text(std::string_view name) {
  {
    Provided& given = provided();
    const std::scoped_lock lock(given.mutex);
    const auto found = given.texts.find(name);
    if (found != given.texts.end()) return found->second;
  }
  // An own profile never stands for an installed one.
  for (const auto& folder : {profile_directory(), own_profile_directory()}) {
    if (std::optional<std::string> text = text_in(folder, name)) return *std::move(text);
  }
  return not_found(profile_directory(), name, "profile of an RNIC", profile_names());
}

Result<std::string> read_chip_text(std::string_view name) {
  return read_installed("chips", name, "chip");
}

Result<std::string> read_template_text(std::string_view name) {
  return read_installed("templates", name, "template of a profile");
}

void provide_profile(const std::string& name, std::string text) {
  Provided& given = provided();
  const std::scoped_lock lock(given.mutex);
  given.texts[name] = std::move(text);
}

std::vector<std::string> installed_profile_names() { return names_in(profile_directory()); }

std::vector<std::string> profile_names() {
  std::vector<std::string> names = installed_profile_names();
  const std::filesystem::path own = own_profile_directory();
  if (!own.empty()) {
    for (std::string& name : names_in(own)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace verbena::sim
