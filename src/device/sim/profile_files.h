// Where the texts of profiles are: given by this process, the user's own, or installed.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "verbena/status.h"

namespace verbena::sim {

// Those that are installed, in the source tree's place or the installed one, both beside the
// running program; or where VERBENA_PROFILES says, and then there are no others.
std::filesystem::path profile_directory();
// The user's own, which `verbena calibrate` writes: $XDG_DATA_HOME/verbena/profiles, or the same in
// ~/.local/share. Empty where there is no home, or VERBENA_PROFILES is set.
std::filesystem::path own_profile_directory();

// kNotFound names those there are.
Result<std::string> read_profile_text(std::string_view name);
Result<std::string> read_chip_text(std::string_view name);
// What `verbena calibrate` starts from.
Result<std::string> read_template_text(std::string_view name);

// From now on this process finds a profile of that name, before any file; again with another text
// it takes the place of the first. Any thread may call it.
void provide_profile(const std::string& name, std::string text);

// Of all files, sorted.
std::vector<std::string> profile_names();
// Of the installed ones alone.
std::vector<std::string> installed_profile_names();

}  // namespace verbena::sim
