// Whether this build is instrumented: the few places that a sanitizer cannot follow do without
// their trick then.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define VERBENA_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VERBENA_THREAD_SANITIZER 1
#endif
#endif
#if !defined(VERBENA_THREAD_SANITIZER)
#define VERBENA_THREAD_SANITIZER 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define VERBENA_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VERBENA_ADDRESS_SANITIZER 1
#endif
#endif
#if !defined(VERBENA_ADDRESS_SANITIZER)
#define VERBENA_ADDRESS_SANITIZER 0
#endif
