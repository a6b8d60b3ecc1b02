// Messaging systems of others as echoes over their local transports: requests per second.
//
// Each is set up as its documentation advises for this case, in two processes that are pinned like
// Verbena's. Their helper threads share the process's core, and they wait by blocking: spinning
// would take the core from those threads.
#pragma once

#include <string>

#include "src/bench/baselines/echo.h"
#include "src/bench/baselines/process_pair.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

// A pair of ZeroMQ sockets of type PAIR over ipc.
Result<double> zeromq_echo(const CpuPair& cpus, const EchoPlan& plan);
// A pair of nng sockets of protocol pair0 over ipc.
Result<double> nng_echo(const CpuPair& cpus, const EchoPlan& plan);
// gRPC's generic asynchronous unary calls over a unix socket.
Result<double> grpc_echo(const CpuPair& cpus, const EchoPlan& plan);

// A name for a socket in Linux's abstract namespace, which leaves no file behind.
std::string socket_name();

}  // namespace verbena::bench::baselines
