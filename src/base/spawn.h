// Starts other programs, and waits for them.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "verbena/status.h"

namespace verbena {

struct SpawnOptions {
  struct File {
    int descriptor;  // of the program
    std::string path;
    int flags = O_WRONLY | O_CREAT | O_TRUNC;
  };

  std::string file{};  // what is run, where that is not the first argument
  std::map<std::string, std::string> environment{};  // beside this process's variables
  std::string directory{};                           // where it starts, if not here
  // Descriptors of this process, each with its number in the program.
  std::vector<std::pair<int, int>> descriptors{};
  std::vector<File> files{};
};

// Starts the program arguments[0], found by PATH, without fork(): a copy of a process with an open
// device is another matter. It blocks the signals that this process did when it was started.
// kNotFound if there is no such program, else kUnavailable.
Result<pid_t> spawn(const std::vector<std::string>& arguments, const SpawnOptions& options = {});

// Waits for the end of a child: its exit code, or 128 + the signal that ended it.
Result<int> wait_for_exit(pid_t process);

// Both together.
Result<int> run_and_wait(const std::vector<std::string>& arguments,
                         const SpawnOptions& options = {});

}  // namespace verbena
