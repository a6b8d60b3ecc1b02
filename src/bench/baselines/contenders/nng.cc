#include <fmt/format.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>

#include <cstring>

#include "src/bench/baselines/contenders/contenders.h"

namespace verbena::bench::baselines {

namespace {

constexpr nng_duration kTimeoutMs = 20'000;

Status failed(const char* what, int error) {
  return Status(StatusCode::kUnavailable,
                fmt::format("nng: cannot {}: {}", what, nng_strerror(error)));
}

Status open_socket(Side& side, const EchoPlan& plan, const std::string& address,
                   nng_socket& socket) {
  // Ends with the process.
  int error = nng_pair0_open(&socket);
  if (error != 0) return failed("make a socket", error);
  nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, kTimeoutMs);
  nng_socket_set_ms(socket, NNG_OPT_SENDTIMEO, kTimeoutMs);
  if (plan.pending > 1) {
    // Else nothing is pipelined: without buffers each send waits for the socket.
    nng_socket_set_int(socket, NNG_OPT_SENDBUF, static_cast<int>(plan.pending));
    nng_socket_set_int(socket, NNG_OPT_RECVBUF, static_cast<int>(plan.pending));
  }
  if (side.number() == 1) error = nng_listen(socket, address.c_str(), nullptr, 0);
  if (error != 0) return failed("listen", error);
  VERBENA_RETURN_IF_ERROR(side.meet());
  if (side.number() == 0) error = nng_dial(socket, address.c_str(), nullptr, 0);
  return error == 0 ? Status::ok_status() : failed("connect", error);
}

Status run(Side& side, const EchoPlan& plan, const std::string& address) {
  nng_socket socket;
  VERBENA_RETURN_IF_ERROR(open_socket(side, plan, address, socket));
  if (side.number() == 1) {
    for (uint64_t i = 0; i < plan.all(); ++i) {
      // Sends back the very message, without a copy.
      nng_msg* message = nullptr;
      int error = nng_recvmsg(socket, &message, 0);
      if (error == 0) error = nng_sendmsg(socket, message, 0);
      if (error != 0) return failed("echo", error);
    }
    return side.meet();
  }
  VERBENA_RETURN_IF_ERROR(request_echoes(
      side, plan,
      [&] {
        nng_msg* message = nullptr;
        if (nng_msg_alloc(&message, plan.bytes) != 0) return false;
        std::memset(nng_msg_body(message), 'n', plan.bytes);
        return nng_sendmsg(socket, message, 0) == 0;
      },
      [&]() -> int64_t {
        nng_msg* message = nullptr;
        if (nng_recvmsg(socket, &message, 0) != 0) return -1;
        const bool whole = nng_msg_len(message) == plan.bytes;
        nng_msg_free(message);
        return whole ? 1 : -1;
      }));
  return side.meet();
}

}  // namespace

Result<double> nng_echo(const CpuPair& cpus, const EchoPlan& plan) {
  const std::string address = "abstract://" + socket_name();
  return run_pair(cpus, [&](Side& side) { return run(side, plan, address); });
}

}  // namespace verbena::bench::baselines
