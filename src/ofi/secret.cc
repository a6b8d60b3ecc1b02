#include "src/ofi/secret.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "src/base/runtime.h"

namespace verbena::ofi {
namespace {

const char* environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

std::string home() {
  if (const std::string named = environment("HOME"); !named.empty()) return named;
  const passwd* const user = getpwuid(getuid());
  return user == nullptr ? "" : user->pw_dir;
}

// Processes that start at once make one file: each writes its own, and the first one's gets the
// name.
Status make_secret(const std::string& folder, const std::string& path) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Status(StatusCode::kPermissionDenied,
                  fmt::format("cannot make {} for the secret of this user's processes: {}; name a "
                              "file with a secret in "
                              "VERBENA_JOB_SECRET_FILE",
                              folder, strerror(errno)));
  }
  uint64_t number = 0;
  secure_random(&number, sizeof(number));
  const std::string own = fmt::format("{}.{:016x}", path, number);
  if (Status written = JobSecret::random().write_file(own); !written.ok()) return written;
  const bool linked = link(own.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const int error = errno;
  unlink(own.c_str());
  if (linked) return {};
  return Status(StatusCode::kPermissionDenied,
                fmt::format("cannot make {}: {}; name a file with a secret in "
                            "VERBENA_JOB_SECRET_FILE",
                            path, strerror(error)));
}

}  // namespace

Result<JobSecret> find_secret() {
  if (const std::string file = environment("VERBENA_JOB_SECRET_FILE"); !file.empty())
    return JobSecret::from_file(file);
  if (const std::string text = environment("VERBENA_JOB_SECRET"); !text.empty())
    return JobSecret::from_string(text);
  const std::string folder = home() + "/.verbena";
  const std::string path = folder + "/secret";
  Result<JobSecret> known = JobSecret::from_file(path);
  if (known.ok() || known.status().code() != StatusCode::kNotFound) return known;
  if (Status made = make_secret(folder, path); !made.ok()) return made;
  return JobSecret::from_file(path);
}

}  // namespace verbena::ofi
