// Which build of Verbena this is, for `verbena --version` and for result files.
#pragma once

namespace verbena {

// The commit this was built from, 12 hexadecimal digits, with "-dirty" behind it where files
// differed from it; "unknown" outside a git checkout.
const char* build_commit();

// Compiler and build type, such as "gcc 12.2.0 RelWithDebInfo".
const char* build_configuration();

}  // namespace verbena
