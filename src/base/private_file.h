// Files that a process writes beside its program: private to the user, and one for each process.
#pragma once

#include <string>

#include "src/base/file_descriptor.h"
#include "src/base/known_file.h"
#include "verbena/status.h"

namespace verbena {

// `pattern` with the process's number for each %p.
std::string with_pid(const std::string& pattern);

// Before the program starts, so that what cannot be written is known at once: makes the file if
// there is none. The second also empties it, unless a process writes to it.
Status check_private_file(const std::string& pattern);
Status prepare_private_file(const std::string& pattern);

struct PrivateFile {
  FileDescriptor file;
  std::string path;
  KnownFile known{file.get()};

  // False once the program has closed the descriptor: then its number may be of another file.
  bool is_there() const { return known.is_at(file.get()); }
};
// Opens the file for this process alone. Where another process has written to it, the number of
// this one goes into the name: "trace.json" becomes "trace.4711.json".
Result<PrivateFile> claim_private_file(const std::string& pattern);

}  // namespace verbena
