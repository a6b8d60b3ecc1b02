// Messaging systems of others as echoes over their local transports: requests per second; and
// key-value stores of others.
//
// Each is set up as its documentation advises for this case, in two processes that are pinned like
// Verbena's. Their helper threads share the process's core, and they wait by blocking: spinning
// would take the core from those threads.
#pragma once

#include <string>

#include "src/bench/baselines/applications.h"
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

// One client of a Redis server over its Unix socket, by hiredis: operations per second. Those that
// are pending are pipelined.
Result<double> redis_rate(const CpuPair& cpus, const KeyValuePlan& plan);
// One client of a memcached server over its Unix socket, by libmemcached: one operation at a time.
Result<double> memcached_rate(const CpuPair& cpus, const KeyValuePlan& plan);

// A name for a socket in Linux's abstract namespace, which leaves no file behind.
std::string socket_name();

}  // namespace verbena::bench::baselines
