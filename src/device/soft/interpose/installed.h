// The way from the interposer to the libibverbs that is installed and to the software RNIC, and
// what all its files share.
//
// Every public verb that takes an object is defined here under its own name and version. It asks
// owns() about the object's context and hands the call to the software RNIC (libverbena.so), or on
// unchanged: the installed functions look behind the public structures, where the software RNIC's
// objects have other things.
//
// An object that is gone or damaged names no context. The software RNIC refuses it, with EINVAL and
// a line; the installed functions would follow the pointer. Inline functions of verbs.h
// (ibv_post_send, ibv_poll_cq, ibv_req_notify_cq, ibv_query_device_ex ...) follow it in the program
// itself, before anybody is asked.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>

#include "src/device/soft/soft_rnic.h"

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

// The software RNIC of this process. Where libverbena.so cannot be used, because it is of another
// version, this says so once, and the result has no device, so that nothing belongs to it.
const SoftRnic& rnic();

// Whether a device is soft0 or one of its kind.
inline bool owns(const ibv_device* device) {
  const SoftRnic& soft = rnic();
  for (size_t i = 0; i < soft.device_count; ++i) {
    if (device == soft.devices[i]) return true;
  }
  return false;
}

enum class Whose : uint8_t { kSoft, kInstalled, kNobody };
// Follows no pointer that leads nowhere. Cost for the context that was asked about last: two loads;
// for others a system call or two.
Whose whose(const ibv_context* context);
// To be called when one was closed: another may come to lie there.
void forget(const ibv_context* context);

// Whether soft0 is to answer: an object is its own, or nobody's.
inline bool owns(const ibv_context* context) { return whose(context) != Whose::kInstalled; }
template <typename Object>
bool owns(const Object* object) {
  return owns(object != nullptr ? object->context : nullptr);
}
// What soft0's control calls can look into, and null for what is no context: they refuse that.
// Objects need no such care: control calls look at their contexts only when these are theirs.
inline ibv_context* checked(ibv_context* context) {
  return whose(context) == Whose::kSoft ? context : nullptr;
}
inline const VerbsControl& control() { return *rnic().control; }

inline const DatagramVerbs& datagrams() { return *rnic().datagrams; }

inline int reported(int error, const char* verb) {
  if (error != 0) [[unlikely]]
    rnic().report_refusal(verb);
  return error;
}

template <typename Object>
Object* reported(Object* object, const char* verb) {
  if (object == nullptr) [[unlikely]]
    rnic().report_refusal(verb);
  return object;
}

// For verbs that no control call answers: whether soft0 has this context open; if not, errno and
// the line are as if one had refused it.
inline bool is_open(ibv_context* context, const char* verb) {
  ibv_port_attr port;
  return reported(control().query_port(checked(context), 1, &port), verb) == 0;
}

// What soft0 answers to verbs that it does not have.
inline int not_supported() {
  errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}

}  // namespace verbena::soft::interpose
