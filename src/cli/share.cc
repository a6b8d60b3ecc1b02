#include "src/cli/share.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace verbena::cli {

Result<std::string> own_path() {
  std::error_code error;
  const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return executable.string();
  return Status(StatusCode::kInternal,
                fmt::format("cannot read /proc/self/exe: {}; is /proc mounted?", error.message()));
}

Result<std::string> find_share(std::string_view name, std::string_view probe) {
  VERBENA_ASSIGN_OR_RETURN(const std::string executable, own_path());
  const std::filesystem::path folder =
      std::filesystem::path(executable).parent_path().parent_path() / "share" / "verbena" / name;
  std::error_code error;
  if (std::filesystem::exists(folder / probe, error)) return folder.string();
  return Status(StatusCode::kUnavailable,
                fmt::format("{} is missing; install verbena again", (folder / probe).string()));
}

}  // namespace verbena::cli
