// `verbena run -- PROGRAM ARGS`: starts an unmodified verbs program that sees soft0 beside the real
// devices; and what other commands that become another program share with it.
#pragma once

#include <string>
#include <vector>

#include "verbena/status.h"

namespace verbena::cli {

// A library of lib/verbena beside the directory of this executable, in the build tree as in an
// installed one: `file` is its name. kNotFound names where it should be.
Result<std::string> find_library(const char* file);

// `preload` with `library` behind what it lists already: others, such as a sanitizer's runtime,
// want to be first. kInvalidArgument if the path has a character that separates entries.
Result<std::string> append_preload(const std::string& preload, const std::string& library);

// Sets an environment variable of this process, and so of the program that replaces it. kInternal
// if there is no memory for it.
Status set_environment(const char* name, const std::string& value);

// Replaces this process by the program `arguments[0]`, searched for in PATH, in front of whose
// libibverbs soft0's goes. Returns only if that fails, with a line on stderr: the exit code is 127
// if there is no such program, 126 if it cannot be executed, 2 if none is named, else 1.
int run_program(const std::vector<std::string>& arguments);
// The same with the environment that makes an MPI use libverbena-fi.so (mpi_command.cc).
int run_mpi_program(const std::vector<std::string>& arguments);
// The program with the tracer loaded, to its end: its exit code, or that of what went wrong here
// (trace_record.cc).
int record_mpi_program(const std::vector<std::string>& arguments);
// The same as run_program() with the environment as it is.
int replace_process(const std::vector<std::string>& arguments);
// Prints an error line; returns `exit_code`.
int fail_command(int exit_code, const std::string& message);

}  // namespace verbena::cli
