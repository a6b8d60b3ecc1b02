#include <fmt/format.h>
#include <zmq.h>

#include <cerrno>
#include <vector>

#include "src/bench/baselines/contenders/contenders.h"

namespace verbena::bench::baselines {

namespace {

constexpr int kTimeoutMs = 20'000;

Status failed(const char* what) {
  return Status(StatusCode::kUnavailable,
                fmt::format("ZeroMQ: cannot {}: {}", what, zmq_strerror(errno)));
}

Status run(Side& side, const EchoPlan& plan, const std::string& address) {
  // Ends with the process.
  void* context = zmq_ctx_new();
  void* socket = context != nullptr ? zmq_socket(context, ZMQ_PAIR) : nullptr;
  if (socket == nullptr) return failed("make a socket");
  zmq_setsockopt(socket, ZMQ_RCVTIMEO, &kTimeoutMs, sizeof(kTimeoutMs));
  zmq_setsockopt(socket, ZMQ_SNDTIMEO, &kTimeoutMs, sizeof(kTimeoutMs));
  if (side.number() == 1 && zmq_bind(socket, address.c_str()) != 0) return failed("bind");
  VERBENA_RETURN_IF_ERROR(side.meet());
  if (side.number() == 0 && zmq_connect(socket, address.c_str()) != 0) return failed("connect");

  if (side.number() == 1) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    for (uint64_t i = 0; i < plan.all(); ++i) {
      // Sends back the very message, without a copy.
      if (zmq_msg_recv(&message, socket, 0) < 0) return failed("receive");
      if (zmq_msg_send(&message, socket, 0) < 0) return failed("send");
    }
    return side.meet();
  }
  std::vector<char> request(plan.bytes, 'z');
  std::vector<char> response(plan.bytes);
  VERBENA_RETURN_IF_ERROR(request_echoes(
      side, plan, [&] { return zmq_send(socket, request.data(), request.size(), 0) >= 0; },
      [&]() -> int64_t {
        const int got = zmq_recv(socket, response.data(), response.size(), 0);
        return got == static_cast<int>(plan.bytes) ? 1 : -1;
      }));
  return side.meet();
}

}  // namespace

Result<double> zeromq_echo(const CpuPair& cpus, const EchoPlan& plan) {
  const std::string address = "ipc://@" + socket_name();
  return run_pair(cpus, [&](Side& side) { return run(side, plan, address); });
}

}  // namespace verbena::bench::baselines
