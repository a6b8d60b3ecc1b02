// Replacing functions of other libraries under any version: those of the C library mostly.
#pragma once

#include <dlfcn.h>

// Starts the definition of verbena_NAME, which programs find as NAME of any version. "@@" with
// nothing behind it is the base version: the only one that matches every request, and one that no
// version script can name beside others.
#define VERBENA_REPLACE(name)                   \
  asm(".symver verbena_" #name "," #name "@@"); \
  extern "C" __attribute__((used, visibility("default")))

// The next definition of a replaced function: the C library's, or that of another library that
// replaces it too.
#define VERBENA_NEXT(name)                                                                 \
  ([]() -> decltype(&::name) {                                                             \
    static const auto next = reinterpret_cast<decltype(&::name)>(dlsym(RTLD_NEXT, #name)); \
    return next;                                                                           \
  }())
