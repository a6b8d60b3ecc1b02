// Verbena's own requests and responses as echoes.
#pragma once

#include "src/bench/baselines/echo.h"
#include "src/bench/baselines/process_pair.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

// One connection over soft0, marks in the last bit; requests per second.
Result<double> rpc_echo(const CpuPair& cpus, Protocol protocol, const EchoPlan& plan);

}  // namespace verbena::bench::baselines
