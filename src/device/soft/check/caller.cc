#include "src/device/soft/check/caller.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unwind.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace verbena::soft::check {
namespace {

std::string_view file_name(const char* path) {
  const std::string_view whole = path != nullptr ? path : "";
  return whole.substr(whole.rfind('/') + 1);  // npos + 1 is 0
}

constexpr std::string_view kConnectionManager = "librdmacm.so";

bool is_in_between(std::string_view file) {
  for (const std::string_view prefix :
       {std::string_view("libverbena.so"), std::string_view("libverbena-verbs.so"),
        std::string_view("libibverbs.so"), kConnectionManager}) {
    if (file.starts_with(prefix)) return true;
  }
  return false;
}

struct Search {
  static constexpr int kMaxFrames = 64;
  int frames = 0;
  Caller found;
};

// Whether `address` is the caller that is looked for.
bool is_caller(const void* address, Caller& found) {
  Dl_info place{};
  if (dladdr(address, &place) == 0) return false;
  const std::string_view file = file_name(place.dli_fname);
  if (file.starts_with(kConnectionManager)) found.is_connection_manager = true;
  if (is_in_between(file)) return false;
  found.place = address;
  return true;
}

_Unwind_Reason_Code look_at(_Unwind_Context* context, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  const auto* address = reinterpret_cast<const void*>(_Unwind_GetIP(context));
  if (++search.frames > Search::kMaxFrames || address == nullptr) return _URC_END_OF_STACK;
  return is_caller(address, search.found) ? _URC_END_OF_STACK : _URC_NO_REASON;
}

_Unwind_Reason_Code keep(_Unwind_Context* context, void* argument) {
  auto& frames = *static_cast<Frames*>(argument);
  const auto* address = reinterpret_cast<const void*>(_Unwind_GetIP(context));
  if (frames.count == Frames::kMax || address == nullptr) return _URC_END_OF_STACK;
  frames.addresses[frames.count++] = address;
  return _URC_NO_REASON;
}

}  // namespace

Caller find_caller() {
  Search search;
  _Unwind_Backtrace(look_at, &search);
  return search.found;
}

void collect_frames(Frames& frames) {
  frames.count = 0;
  _Unwind_Backtrace(keep, &frames);
}

const void* place_of(const Frames& frames) {
  Caller found;
  for (size_t i = 0; i < frames.count; ++i) {
    if (is_caller(frames.addresses[i], found)) break;
  }
  return found.place;
}

std::string describe_place(const void* address) {
  if (address == nullptr) return "unknown";
  // A return address may be behind its function's end.
  const void* within = static_cast<const char*>(address) - 1;
  Dl_info place{};
  if (dladdr(within, &place) == 0 || place.dli_fname == nullptr) return fmt::format("{}", address);
  const auto offset = [within](const void* base) {
    return static_cast<const char*>(within) - static_cast<const char*>(base);
  };
  if (place.dli_sname == nullptr) {
    return fmt::format("{}+{:#x}", place.dli_fname, offset(place.dli_fbase));
  }
  int status = -1;
  const std::unique_ptr<char, void (*)(void*)> readable(
      abi::__cxa_demangle(place.dli_sname, nullptr, nullptr, &status), std::free);
  return fmt::format("{}+{:#x} ({}+{:#x})", status == 0 ? readable.get() : place.dli_sname,
                     offset(place.dli_saddr), place.dli_fname, offset(place.dli_fbase));
}

}  // namespace verbena::soft::check
