// Paths of /sys at which programs find soft0, though the kernel has nothing there: calls that take
// such a path get another one, of a private directory with the same files (sysfs_tree.h).
//
// Without root there is no mount, and in a user namespace of its own a process could not share its
// memory with others. So the paths are exchanged, in the calls of path_calls.cc.
#pragma once

#include <climits>
#include <cstddef>
#include <cstring>

namespace verbena::soft::interpose {

using PathBuffer = char[PATH_MAX];

// Which of a device's names a path has: exact ones, for a pattern (glob) also those that it may
// stand for.
enum class Names : bool { kExact, kPattern };

// Whether a path can be read up to its end: a call that gets another one fails by EFAULT, in the
// kernel. Costs a short system call.
bool is_readable(const char* path);

// `path`, or what to use in its place, in `buffer`. A path that is not below /sys costs a few
// compares.
const char* shown_path_below_sys(const char* path, PathBuffer& buffer, Names names);
// A relative path, from a working directory that may be below /sys.
void see_relative_path(const char* path);
inline const char* shown_readable_path(const char* path, PathBuffer& buffer,
                                       Names names = Names::kExact) {
  if (path[0] != '/' && std::strstr(path, "counters") != nullptr) [[unlikely]]
    see_relative_path(path);
  if (path[0] != '/' || path[1] != 's' || path[2] != 'y' || path[3] != 's') [[likely]]
    return path;
  return shown_path_below_sys(path, buffer, names);
}
// The same for any pointer that a program gives.
inline const char* shown_path(const char* path, PathBuffer& buffer, Names names = Names::kExact) {
  return is_readable(path) ? shown_readable_path(path, buffer, names) : path;
}

// The other way: cuts the private directory's place from the beginning of what a call found out.
// Returns the length that is left.
size_t hide_root(char* path, size_t length_chars);

// As long as it lives, this thread's paths are the machine's own.
class RealPaths {
 public:
  RealPaths();
  ~RealPaths();
  RealPaths(const RealPaths&) = delete;
  RealPaths& operator=(const RealPaths&) = delete;
};

}  // namespace verbena::soft::interpose
