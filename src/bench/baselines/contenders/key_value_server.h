// Starts a key-value store as a child of this process, which listens at a Unix socket of its own.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "src/bench/baselines/process_pair.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

// Side 1 starts the program that `command` names for the path of a socket, on its CPU, and ends it
// when side 0 is done. Side 0 calls `use` with that path once somebody listens there.
Result<double> with_key_value_server(
    const CpuPair& cpus,
    const std::function<std::vector<std::string>(const std::string& path)>& command,
    const std::function<Status(Side&, const std::string& path)>& use);

}  // namespace verbena::bench::baselines
