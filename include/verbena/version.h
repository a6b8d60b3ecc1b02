// The version of Verbena: https://semver.org. The build and the installed packages read it from
// these lines.
#pragma once

#define VERBENA_VERSION_MAJOR 0
#define VERBENA_VERSION_MINOR 1
#define VERBENA_VERSION_PATCH 0

#define VERBENA_VERSION_TEXT_INNER(major, minor, patch) #major "." #minor "." #patch
#define VERBENA_VERSION_TEXT(major, minor, patch) VERBENA_VERSION_TEXT_INNER(major, minor, patch)

namespace verbena {

// "major.minor.patch"
inline constexpr const char* kVersion =
    VERBENA_VERSION_TEXT(VERBENA_VERSION_MAJOR, VERBENA_VERSION_MINOR, VERBENA_VERSION_PATCH);

}  // namespace verbena
