// The way from the interposer to the libibverbs that is installed, and what all its files share.
//
// Every public verb that takes an object is defined here under its own name and version. It asks
// soft::owns() about the object's context and answers itself, or hands the call on unchanged: the
// installed functions look behind the public structures, where the software RNIC's objects have
// other things.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>

#include "src/device/soft/soft.h"

// verbs.h gives these names to macros; here they are functions.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

// A function that programs find in place of the installed one.
#define VERBENA_EXPORT extern "C" __attribute__((visibility("default")))

// The installed function of this name and version. Cost after the first call: a load and a branch.
#define VERBENA_INSTALLED(function, version)                               \
  ([]() -> decltype(&::function) {                                         \
    static const auto installed = reinterpret_cast<decltype(&::function)>( \
        ::verbena::soft::interpose::find_installed(#function, version));   \
    return installed;                                                      \
  }())

namespace verbena::soft::interpose {

// Never null: ends the program with a message if the installed libibverbs lacks the function, as
// the dynamic linker would.
void* find_installed(const char* name, const char* version);
// Null where it lacks it.
void* find_installed_if_any(const char* name, const char* version);

// Prints one line on why soft0 refused a verb, if it has a reason to give; VERBENA_LOG=off silences
// it. Keeps errno.
void report_refusal(const char* verb);

// Whether this program has ever opened soft0.
bool device_was_opened();

inline int reported(int error, const char* verb) {
  if (error != 0) [[unlikely]]
    report_refusal(verb);
  return error;
}

template <typename Object>
Object* reported(Object* object, const char* verb) {
  if (object == nullptr) [[unlikely]]
    report_refusal(verb);
  return object;
}

// What soft0 answers to verbs that it does not have.
inline int not_supported() {
  errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}

}  // namespace verbena::soft::interpose
